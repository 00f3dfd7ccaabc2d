"""What a soak run fails for: everything that is wrong, and everything that proves nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.acceptance.kit import Effects
from tests.acceptance.soak import KILLS_MIN, PAUSE, SECONDS, SECONDS_A_KILL, verdict

SOUND = Effects(
    inputs=100,
    distinct=80,
    offered=20,
    dropped=25,
    copies=5,
    lost=0,
    doubled=0,
    conflicting=0,
    findings=(),
)
ENOUGH = Counter(worker=KILLS_MIN)


def test_a_sound_run_passes() -> None:
    assert verdict(SOUND, ENOUGH, SECONDS) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lost": 1}, "effects lost: 1"),
        ({"doubled": 2}, "effects doubled: 2"),
        ({"conflicting": 3}, "effects conflicting: 3"),
        ({"findings": ("one", "other")}, "findings: 2"),
        ({"offered": 0}, "no repeat was offered"),
    ],
)
def test_each_thing_that_is_wrong_fails_it(wrong: dict[str, Any], words: str) -> None:
    assert words in (verdict(replace(SOUND, **wrong), ENOUGH, SECONDS) or "")


def test_all_that_is_wrong_is_said() -> None:
    said = verdict(replace(SOUND, lost=1, offered=0), Counter(), SECONDS)
    assert said == (
        "effects lost: 1; no repeat was offered, so nothing was proved; 0 were killed, of 30 at least"
    )


def test_who_only_stood_still_was_not_killed() -> None:
    few = Counter({"worker": KILLS_MIN - 1, PAUSE: 10})
    assert verdict(SOUND, few, SECONDS) == f"{KILLS_MIN - 1} were killed, of {KILLS_MIN} at least"
    assert verdict(SOUND, few + Counter(broker=1), SECONDS) is None


def test_a_short_run_kills_fewer() -> None:
    short = 3 * SECONDS_A_KILL
    assert verdict(SOUND, Counter(worker=3), short) is None
    assert verdict(SOUND, Counter(worker=2), short) is not None
