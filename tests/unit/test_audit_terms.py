"""What an operator says of an audit's range is read as it is written, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.errors import InvalidUsage
from delivery.operate.auditing import Terms
from delivery.operate.reach import Offsets, offsets_in

MIDDLE = Offsets(topic="in", partition=0, first=10, last=19)


def test_offsets_are_written_like_seqs() -> None:
    assert offsets_in("in/0/17..42") == Offsets(topic="in", partition=0, first=17, last=42)
    assert offsets_in("a..b/3/..42") == Offsets(topic="a..b", partition=3, first=0, last=42)
    assert offsets_in("in/0/17..") == Offsets(topic="in", partition=0, first=17)
    assert str(offsets_in("in/0/17..")) == "in/0/17.."
    for wrong in ("in/0/17", "in/0/9..8", "in/x/1..2", "in/0/1..x", "0/1..2", "", ".."):
        with pytest.raises(InvalidUsage, match=r"orders/0/17\.\.42"):
            offsets_in(wrong)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"since_ms": 5, "until_ms": 5}, "begins when it has ended"),
        ({"since_ms": 6, "until_ms": 5}, "begins when it has ended"),
        ({"since_ms": 6, "offsets": (MIDDLE,)}, "of time and of offsets"),
        ({"until_ms": 6, "finished": True}, "leave the end out"),
        ({"offsets": (MIDDLE,), "finished": True}, "leave the end out"),
    ],
)
def test_ranges_that_nobody_can_mean_are_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidUsage, match=said):
        Terms(**terms)
