"""Repeats later than the window, as an audit sees them: held to what the seals say, or somebody else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from dedup.formats.lane import decode_head, decode_seal
from dedup.formats.segment import BUCKET_MS
from delivery.checker import rows
from delivery.operate.auditing import Terms, audit
from delivery.operate.logs import Cluster
from delivery.operate.proved import load, save
from delivery.operate.verification import verify
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.test_repeats import EDGE, WINDOW_MS, run


def asked(house: House, window_ms: int | None) -> list[str]:
    """Prove with another window, by both checkers, which must agree, and name what is found."""
    house.inputs[LANE] = replace(house.inputs[LANE], window_ms=window_ms)
    found = [finding.kind.name for finding in house.proved()]
    catalog, cluster = house.catalog(), Cluster(MemoryClient(house.broker))
    windows = {} if window_ms is None else {"": window_ms}
    audited = audit(catalog, cluster, [LANE], Terms(windows=windows, finished=True))
    assert [one.kind.name for one in (*audited.findings, *audited.notes)] == found
    verdict = "broken" if "DECIDED_TWICE" in found else "unproved" if found else "exact"
    assert audited.verdict == verdict
    closer = {LANE} if found else set()
    assert set(audited.looked_closer) == closer, "what is right is proved over columns"
    # The catalog alone knows it to a bucket.
    checked = verify(house.store, [LANE], window_of=lambda _: window_ms)
    assert checked.whole or found == ["DECIDED_TWICE"]
    assert not verify(house.store, [LANE], window_of=lambda _: WINDOW_MS + BUCKET_MS).whole
    assert [one.kind.name for one in checked.notes] == ["LATE_REPEAT"] * found.count("LATE_REPEAT")
    return found


def silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows say no window, as before they said one."""
    for name, decode in (("_seal", decode_seal), ("_head", decode_head)):
        silent = partial(lambda decode, *given: replace(decode(*given), window_ms=0), decode)
        monkeypatch.setattr(rows, name, silent)


def test_an_audit_knows_a_repeat_later_than_the_window(house, monkeypatch):
    """And one that came as late as that, but not later than a longer window, for twice decided."""
    for at_ms in (EDGE, EDGE + BUCKET_MS + WINDOW_MS):
        assert run(house, f"moves lane time to {at_ms}", at_ms=at_ms) == 1
        assert run(house, "a", at_ms=at_ms) == 1
    assert asked(house, WINDOW_MS) == []
    assert asked(house, WINDOW_MS + 1) == ["DECIDED_TWICE"]
    assert asked(house, None) == [], "the seals say it"
    silenced(monkeypatch)
    assert asked(house, None) == ["LATE_REPEAT"]


def test_what_was_decided_twice_within_the_window_is_broken_in_any_case(house):
    """Whoever wrote it forgot too early: another window was given to one of two processes."""
    assert run(house, "a", at_ms=EDGE) == 1
    run(house, "moves lane time", at_ms=EDGE + BUCKET_MS)
    house.write("a", timestamp_ms=EDGE + BUCKET_MS)
    house.home = None
    runner = house.runner(window_ms=0)
    runner._policy = replace(runner._policy, window_ms=WINDOW_MS)
    house.done(runner)
    assert asked(house, None) == ["DECIDED_TWICE"], "by the window that its seal says"
    assert asked(house, 1) == ["DECIDED_TWICE"]


@pytest.mark.parametrize(("then_ms", "found"), [(1, []), (100 * WINDOW_MS, ["DECIDED_TWICE"])])
def test_a_repeat_is_held_to_the_window_of_the_seal_that_took_it_in(house, then_ms, found):
    """One ran with a window, the next with another one: that of both is what the seals say."""
    assert run(house, "a", at_ms=EDGE) == 1
    end = EDGE + 3 * BUCKET_MS
    assert run(house, "moves lane time", at_ms=end) == 1
    house.write("a", timestamp_ms=end)
    # Its index holds ids for less than anybody said, or for what its seal says.
    runner = house.runner(window_ms=1)
    runner._policy = replace(runner._policy, window_ms=then_ms)
    house.done(runner)
    assert asked(house, None) == found


def test_a_longer_window_brings_no_id_back_that_was_let_go(house, tmp_path):
    """What was collected under the shorter one is right to take effect, whatever came after."""
    assert run(house, "a", at_ms=EDGE) == 1
    assert run(house, "moves lane time", at_ms=EDGE + BUCKET_MS + WINDOW_MS) == 1
    catalog, file = house.catalog(), tmp_path / "proved"
    cluster = Cluster(MemoryClient(house.broker))
    save(file, house.store.url, audit(catalog, cluster, [LANE], Terms()).next)
    house.write("a", timestamp_ms=EDGE + BUCKET_MS + WINDOW_MS)
    runner = house.runner(window_ms=1)
    runner._policy = replace(runner._policy, window_ms=30 * WINDOW_MS)
    house.done(runner)
    assert len(house.sent()) == 3
    assert asked(house, None) == []
    later = audit(catalog, cluster, [LANE], Terms(), proved=load(file, house.store.url))
    assert (later.verdict, later.looked_closer) == ("exact", {}), "the file remembers it"
    assert asked(house, 30 * WINDOW_MS) == ["DECIDED_TWICE"], "as if nobody had run with less"
