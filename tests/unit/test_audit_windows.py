"""Every range of a clean run is exact, whatever its lanes read and whatever became of their history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.model import Frontier, Seal
from delivery.batch import batches_of
from delivery.checker.columns import Doubt
from delivery.operate import proving
from delivery.operate.compaction import Rules, tidy
from delivery.operate.reach import Offsets
from delivery.protocol import messages as m
from delivery.records import Record
from tests.unit.checker.worlds import FIRST, LEFT, RIGHT, World, abandon
from tests.unit.checker.worlds import chained as chain
from tests.unit.memory_kafka import MemoryClient
from tests.unit.test_audit_ranges import audited

WHOLE = "p/s/all"
WAYS = {"": "header:id"}
#: How many offsets of its two partitions each seal of a stage lane reads.
CUTS = ((5, 5), (5, 0), (0, 5), (3, 2), (0, 4), (7, 4))


def write(world: World, topic: str, first: int, last: int, ids: int) -> None:
    for source in world.broker.sources(topic):
        for at in range(first, last):
            name = b"%d-%d" % (source.partition, at % ids)
            record = Record(key=b"k%d" % at, value=b"%d" % at, headers=(("id", name),))
            world.broker.append(source, record)


def staged() -> World:
    """One lane over two partitions, of which a seal may read one only."""
    world = World()
    world.broker.create("in", 2)
    world.broker.create("out", 2)
    write(world, "in", 0, 20, 13)
    sources = world.broker.sources("in")
    runner = world.runner(WHOLE, sources, "out")
    position = dict.fromkeys(sources, 0)
    runner.tell(m.Opened(Frontier.of(position.items())))
    runner.drain()
    for cut in CUTS:
        ends = {
            source: position[source] + count for source, count in zip(sources, cut, strict=True)
        }
        batches = [
            batch
            for source in sources
            for batch in batches_of(world.broker.read(source, position[source], ends[source]))
        ]
        runner.offer(m.Polled(Frontier.of(position.items()), Frontier.of(ends.items())), batches)
        runner.drain()
        position = ends
    runner.tell(m.Ending(world.broker.high(sources)))
    runner.drain()
    assert runner.state.stopped is not None
    assert runner.state.stopped.end is m.End.DONE
    return world


def abandoned() -> World:
    """Three lanes, one of which has given up a seal whose outputs are read."""
    world = World()
    world.broker.create("in")
    world.broker.create("mid", 2)
    world.broker.create("out", 2)
    source, mids = world.topic("in"), world.broker.sources("mid")

    def ship(starts: list[int]) -> list[int]:
        ends = [len(world.broker.partitions[mid]) for mid in mids]
        for lane, mid, start, end in zip((LEFT, RIGHT), mids, starts, ends, strict=True):
            world.run(lane, mid, "out", ((start, end),), (FIRST,))
        return ends

    write(world, "in", 0, 8, 5)
    world.run(FIRST, source, "mid", ((0, 4), (4, 8)))
    abandon(world, FIRST, 1)
    world.run(FIRST, source, "mid", ((4, 8),))
    ends = ship([0, 0])
    write(world, "in", 8, 12, 5)
    world.run(FIRST, source, "mid", ((8, 12),))
    ship(ends)
    return world


def collected() -> World:
    """A lane whose first half is in the segment list."""
    world = staged()
    now_ms = history(world, WHOLE)[3].minted_at_ms + 1
    tidy(Catalog(world.store), WHOLE, Rules(entries_ms=1), now_ms, perform=True)
    assert [seal.ref.seq for seal in history(world, WHOLE)] == [4, 5, 6]
    return world


def history(world: World, lane: str) -> list[Seal]:
    catalog = Catalog(world.store)
    return catalog.history(lane, catalog.load(lane).head)


def windows(world: World) -> Iterator[tuple[int | None, int | None]]:
    """Yield ranges of time between every other seal, and those that are open at an end."""
    minted = {seal.minted_at_ms for lane in world.store.lanes() for seal in history(world, lane)}
    yield from combinations([None, *sorted(minted)[::2], None], 2)


def doubt(*_: Any, **__: Any) -> None:
    raise Doubt(None, "everything", "a test wants it looked at closer")


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("made", [chain, staged, abandoned, collected])
def test_every_range_of_time_is_exact(monkeypatch: pytest.MonkeyPatch, made: Any, way: str) -> None:
    world = made()
    if way == "rows":
        monkeypatch.setattr(proving, "prove", doubt)
    for since, until in windows(world):
        client = MemoryClient(world.broker)
        found = audited(world.store, client, since_ms=since, until_ms=until, ways=WAYS)
        assert found.findings == (), (since, until)
        if made is collected and until == history(world, WHOLE)[0].minted_at_ms:
            assert "were collected" in found.unproved[WHOLE]
        else:
            assert found.unproved == {}, (since, until)
        if way == "columns" and made is not abandoned:
            assert not found.looked_closer, (since, until)


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("made", [staged, collected])
def test_every_range_of_offsets_is_exact_or_was_collected(
    monkeypatch: pytest.MonkeyPatch, made: Any, way: str
) -> None:
    world = made()
    if way == "rows":
        monkeypatch.setattr(proving, "prove", doubt)
    verdicts = set()
    for first, last in combinations((0, 4, 5, 9, 12, 19), 2):
        for other in (None, Offsets(topic="in", partition=1, first=2, last=7)):
            one = Offsets(topic="in", partition=0, first=first, last=last)
            asked = (one,) if other is None else (one, other)
            client = MemoryClient(world.broker)
            found = audited(world.store, client, offsets=asked, ways=WAYS)
            assert found.findings == (), asked
            assert found.unproved == {} or "were collected" in found.unproved[WHOLE]
            assert way == "rows" or not found.looked_closer, asked
            verdicts.add(found.verdict)
    assert verdicts == ({"exact"} if made is staged else {"exact", "unproved"})


def test_several_partitions_are_one_range() -> None:
    world = chain()
    asked = tuple(Offsets(topic="mid", partition=at, first=2) for at in (0, 1))
    found = audited(world.store, MemoryClient(world.broker), offsets=asked)
    assert found.verdict == "exact"
    assert [(one["lane"], one["first"]) for one in found.ranges] == [(LEFT, 2), (RIGHT, 2)]
    world = staged()
    left, right = (
        Offsets(topic="in", partition=0, first=11, last=12),
        Offsets(topic="in", partition=1, first=6, last=6),
    )
    for asked, expected in (((left,), (4, 4)), ((right,), (3, 3)), ((left, right), (3, 4))):
        (one,) = audited(world.store, MemoryClient(world.broker), offsets=asked).ranges
        assert (one["first"], one["last"]) == expected
