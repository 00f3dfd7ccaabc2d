"""What the tests of collection share: lanes to collect, and looks at what is left.

What it is: a few runs of a lane, and the seqs that a store still holds.
What it must not know: what is collected, and when.

Invariants:
    Looking changes nothing.
"""

from __future__ import annotations

from dedup.catalog.store import Blob
from dedup.collect import Keep, survey
from dedup.formats.segment import BUCKET_MS
from tests.unit.house import LANE, House

#: A window so short that a few seals move lane time past it.
SHORT_MS = 10 * BUCKET_MS


def words(house: House, keep: Keep | None = None) -> list[str]:
    return [step.what for step in survey(house.catalog(), LANE, keep or Keep())]


def sealed(house: House, count: int, *, at_ms: int = 0, first: int = 0) -> None:
    """Seal one record after the other, everything acknowledged."""
    for number in range(first, first + count):
        house.write(f"record {number}", timestamp_ms=at_ms)
        house.done(house.runner(window_ms=SHORT_MS))


def seqs(house: House) -> list[int]:
    catalog = house.catalog()
    row = catalog.load(LANE)
    return [s.ref.seq for s in catalog.seals(LANE, row.head.ref.incarnation, 0, 1 << 40)]


def stored(house: House, kind: Blob) -> list[int]:
    return sorted(slot.seq for slot in house.store.slots(kind, LANE))


def raced(house: House) -> None:
    """Two processes at once, of records that repeat: the loser leaves what it stored."""
    house.write(*"abcaef")
    runners = [house.runner(), house.runner()]
    for runner in runners:
        house.begin(runner)
    while any(runner.state.stopped is None for runner in runners):
        for runner, cut in zip(runners, (2, 3), strict=True):
            if runner.state.stopped is None:
                house.turn(runner, cut)
