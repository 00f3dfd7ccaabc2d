"""What may happen in a world besides the steps of those who run.

Late requests, zombies, collectors, a backup, a restore.

What it is: one function each, and the list of those that may happen now.
What it must not know: what a process does with it.

Invariants:
    Every incident uses up what allowed it: no plan is endless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dedup import backup, compact
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.collect import Keep, survey
from delivery.testing.faulty import Crashed, FaultyStore, Wire
from delivery.testing.process import Collector
from delivery.testing.putback import mixed

if TYPE_CHECKING:
    from delivery.testing.world import LaneWorld

#: Something that happens in a world.
Act = Callable[["LaneWorld"], None]


def incidents(world: LaneWorld) -> Iterator[tuple[str, Act]]:
    """Yield what may happen besides the next steps of those who run."""
    for index in range(len(world.late)):
        yield f"~{index}", partial(deliver, index=index)
    for lane in sorted(set(world.zombies)):
        yield f"+{lane}", partial(zombie, lane=lane)
    for lane in sorted(set(world.collections)):
        yield f"%{lane}", partial(send_collector, lane=lane)
    for lane in sorted(set(world.compactions)):
        yield f"&{lane}", partial(send_compactor, lane=lane)
    exist = all(spec.name in world.tables.lanes for spec in world.scenario.lanes)
    if world.restores and world.backup is None and exist:
        yield "#backup", back_up
    if world.restores and world.backup is not None:
        yield "#restore", restore


def zombie(world: LaneWorld, lane: str) -> None:
    """Start a second process on a lane; it has read the lane already."""
    world.zombies = _without(world.zombies, lane)
    world.perform(world.begin(world.spec(lane)))


def deliver(world: LaneWorld, index: int) -> None:
    """Carry out a late request."""
    request = world.late[index]
    world.late = (*world.late[:index], *world.late[index + 1 :])
    wire = Wire({"store": MemoryStore(world.tables), "log": world.broker})
    wire.carry_out(request)


def send_collector(world: LaneWorld, lane: str) -> None:
    """Let a collector read a lane and plan."""
    world.collections = _without(world.collections, lane)
    catalog = Catalog(MemoryStore(world.tables))
    steps = survey(catalog, lane, Keep(window_ms=world.scenario.window_ms))
    name = f"C{len(world.collections)}"
    if steps:
        world.collectors[name] = Collector(name, world.tables.frozen(), tuple(steps))


def send_compactor(world: LaneWorld, lane: str) -> None:
    """Let a compactor read a lane and plan; it goes on as collectors do."""
    world.compactions = _without(world.compactions, lane)
    catalog = Catalog(MemoryStore(world.tables))
    steps = compact.survey(catalog, lane, world.scenario.window_ms, plain_min=1)
    name = f"M{len(world.compactions)}"
    if steps:
        world.collectors[name] = Collector(name, world.tables.frozen(), tuple(steps))


def step_collector(world: LaneWorld, name: str) -> None:
    """Let a collector do its next step."""
    collector = world.collectors[name]
    wire = world.wire()
    catalog = Catalog(FaultyStore(MemoryStore(world.tables), wire))
    try:
        going_on = collector.steps[0].perform(catalog)
    except (Crashed, Exception):  # noqa: BLE001 - whatever befalls a collector ends its plan
        going_on = False
    world.account(wire)
    world.calls = len(wire.calls)
    rest = collector.steps[1:] if going_on else ()
    if rest:
        world.collectors[name] = replace(collector, steps=rest)
    else:
        del world.collectors[name]


def back_up(world: LaneWorld) -> None:
    """Take one more head for the backup, in its own order; after the last one, write it."""
    catalog = Catalog(MemoryStore(world.tables))
    order = [name for name, _ in world.taken]
    rest = [lane for lane in backup.downstream_first(catalog) if lane not in order]
    if rest:
        world.taken = (*world.taken, (rest[0], backup.take(catalog, rest[0])))
    if len(rest) <= 1:
        world.backup = tuple(backup.frames(catalog, world.taken))


def restore(world: LaneWorld) -> None:
    """Put the backup into an empty catalog that everybody sees from now on.

    Lanes that are kept elsewhere, with the database of a same-transaction sink, stay.
    """
    assert world.backup is not None, "there is a backup"
    world.restores -= 1
    fresh = iter(range(1, 1_000))
    restored = Tables()
    backup.restore(
        Catalog(MemoryStore(restored)),
        world.backup,
        lambda: f"restored:{next(fresh)}".encode().ljust(16, b"."),
    )
    back = world.scenario.restored
    if back is not None:
        restored = mixed(world.tables, restored, back)
    world.tables = restored
    world.restored, world.done, world.watch.rows = True, frozenset(), {}
    if world.scenario.orderly:
        world.processes = {}
    for spec in world.scenario.lanes:
        if world.scenario.orderly or back is None or spec.name in back:
            world.begin(spec)


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    index = names.index(name)
    return (*names[:index], *names[index + 1 :])
