"""Damage to what seals say of the records that took no effect."""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.catalog import blob_ref
from dedup.formats.dropped import Run, Verdict, decode_dropped, dropped_chunks
from delivery.checker import Kind
from tests.unit.checker.damage import register
from tests.unit.checker.worlds import FIRST, LEFT, World, flipped

DAMAGE, found = register()


def put_runs(world: World, lane: str, seq: int, runs: list[Run]) -> None:
    """Store runs as they are; the counts stay."""
    chunks = dropped_chunks(runs)
    ref = blob_ref(chunks, len(runs))
    world.put_seal(lane, seq, dropped=ref, inline_dropped=b"".join(chunks))


def runs(world: World, lane: str, seq: int) -> list[Run]:
    return decode_dropped(world.seal(lane, seq).inline_dropped, "test")


@found(Kind.DROPPED_GONE)
def dropped_offsets_gone(world: World) -> None:
    world.put_seal(FIRST, 2, inline_dropped=b"")


@found(Kind.UNREADABLE)
def dropped_offsets_flipped(world: World) -> None:
    world.put_seal(FIRST, 2, inline_dropped=flipped(world.seal(FIRST, 2).inline_dropped))


@found(Kind.DIGEST)
def dropped_offsets_of_another_seal(world: World) -> None:
    world.put_seal(FIRST, 2, inline_dropped=world.seal(FIRST, 3).inline_dropped)


@found(Kind.COUNTS)
def another_number_of_runs_promised(world: World) -> None:
    dropped = world.seal(FIRST, 2).dropped
    world.put_seal(FIRST, 2, dropped=replace(dropped, rows=dropped.rows + 1))


@found(Kind.NOT_ACCOUNTED, Kind.COUNTS)
def duplicate_left_out(world: World) -> None:
    (run,) = runs(world, FIRST, 2)
    put_runs(world, FIRST, 2, [replace(run, count=run.count - 1)])


@found(Kind.NOT_ACCOUNTED, Kind.COUNTS)
def nothing_dropped_at_all(world: World) -> None:
    put_runs(world, FIRST, 2, [])


@found(Kind.DROPPED_FRESH, Kind.COUNTS)
def fresh_record_dropped_too(world: World) -> None:
    (run,) = runs(world, FIRST, 2)
    put_runs(world, FIRST, 2, [replace(run, offset=run.offset - 1, count=run.count + 1)])


@found(Kind.DROPPED_OUTSIDE)
def run_of_a_range_before(world: World) -> None:
    put_runs(
        world, FIRST, 2, [Run(world.topic("in"), 0, 1, Verdict.DUPLICATE), *runs(world, FIRST, 2)]
    )


@found(Kind.DROPPED_OUTSIDE)
def run_beyond_the_range(world: World) -> None:
    (run,) = runs(world, FIRST, 2)
    put_runs(world, FIRST, 2, [replace(run, count=1 << 62)])


@found(Kind.DROPPED_OUTSIDE)
def run_of_another_partition(world: World) -> None:
    stray = Run(replace(world.topic("in"), partition=7), 0, 1, Verdict.DUPLICATE)
    put_runs(world, FIRST, 2, [*runs(world, FIRST, 2), stray])


@found(Kind.DROPPED_OUTSIDE)
def run_of_nothing(world: World) -> None:
    nothing = Run(world.topic("in"), 7, 0, Verdict.DUPLICATE)
    put_runs(world, FIRST, 2, [nothing, *runs(world, FIRST, 2)])


@found(Kind.DROPPED_OUTSIDE, Kind.COUNTS)
def hole_dropped(world: World) -> None:
    hole = Run(world.topic("in"), 16, 1, Verdict.DUPLICATE)
    put_runs(world, FIRST, 3, [*runs(world, FIRST, 3), hole])


@found(Kind.DROPPED_WHY)
def duplicate_called_a_remnant_though_nobody_sent_it(world: World) -> None:
    verdicts = world.verdicts(FIRST, 2)
    world.put_verdicts(FIRST, 2, dict.fromkeys(verdicts, Verdict.REMNANT))


@found(Kind.DROPPED_WHY)
def duplicate_called_a_remnant_before_its_sender_was_read(world: World) -> None:
    verdicts = world.verdicts(LEFT, 2)
    world.put_verdicts(LEFT, 2, dict.fromkeys(verdicts, Verdict.REMNANT))


@found(Kind.DROPPED_WHY, Kind.COUNTS)
def duplicate_called_abandoned(world: World) -> None:
    verdicts = world.verdicts(LEFT, 2)
    world.put_verdicts(LEFT, 2, dict.fromkeys(verdicts, Verdict.ABANDONED))


@found(Kind.DROPPED_WHY, Kind.DROPPED_OUTSIDE)
def record_dropped_twice(world: World) -> None:
    (run,) = runs(world, FIRST, 2)
    # Within one partition runs cannot overlap; it takes another one between them.
    stray = Run(replace(world.topic("in"), partition=7), 0, 1, Verdict.DUPLICATE)
    put_runs(world, FIRST, 2, [run, stray, run])


@found(Kind.COUNTS)
def remnants_counted_as_duplicates(world: World) -> None:
    world.put_verdicts(LEFT, 3, world.verdicts(LEFT, 3), duplicate=1, remnant=0)


@found(Kind.COUNTS)
def conflict_counted_though_no_repeat_differs(world: World) -> None:
    counts = world.seal(LEFT, 2).counts
    world.put_seal(LEFT, 2, counts=replace(counts, conflict=counts.duplicate))
