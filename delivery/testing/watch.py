"""What must hold after every single step of a world, and when a process or the world ends.

What it is: the step invariants: nothing moves backwards, nothing is emitted before its seal,
nothing is acknowledged before it is in the log, who succeeds left nothing undone.
What it must not know: how the core decides.

Invariants:
    Every check reads the raw tables and the raw log, never what a process believes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob, RawLane
from dedup.errors import Corrupt
from dedup.formats.segment import Bucket, Origin
from dedup.ids import minted
from dedup.model import LaneRow, RecordId, Source
from delivery.checker import Evidence, LaneInput, Log, check
from delivery.header import NAME, decode_header
from delivery.outputs import decode_outputs
from delivery.protocol import messages as m
from delivery.recipe import recipe_in
from delivery.testing.explore import Violation
from delivery.testing.scenario import NOW_MS

if TYPE_CHECKING:
    from delivery.testing.process import Process
    from delivery.testing.scenario import LaneSpec
    from delivery.testing.world import LaneWorld
    from delivery.timing import TimeFrom

#: Stored outputs whose emissions are remembered: neighbouring states share most of theirs.
REMEMBERED = 1 << 12

#: No plan has that many faults: a lane whose processes end more often than this never gets on.
GENERATIONS_MAX = 8


@dataclass(slots=True)
class Watch:
    """What was seen so far of every lane and partition."""

    rows: dict[str, tuple[RawLane, LaneRow]] = field(default_factory=dict)
    lengths: dict[Source, int] = field(default_factory=dict)

    def copy(self) -> Watch:
        """Return a snapshot."""
        return replace(self, rows=dict(self.rows), lengths=dict(self.lengths))

    def step(self, world: LaneWorld) -> None:
        """Check everything that the last step changed."""
        catalog = Catalog(MemoryStore(world.tables))
        for lane, raw in world.tables.lanes.items():
            before = self.rows.get(lane)
            if before is not None and before[0] is raw:
                continue
            row = catalog.load(lane)
            assert row is not None, "the row is there"
            if before is not None:
                _monotone(lane, before[1], row)
                _delivered(world, catalog, lane, before[1].ack.seq, row)
            self.rows[lane] = (raw, row)
        self._sealed(world)

    def _sealed(self, world: LaneWorld) -> None:
        """Whatever appeared in the log was sealed before."""
        for spec in world.scenario.lanes:
            for source in _written(world, spec):
                log = world.broker.partitions[source]
                for record in log[self.lengths.get(source, 0) :]:
                    header = decode_header((record.header(NAME) if record else None) or b"")
                    if header is None or world.restored:
                        continue  # after a restore, zombies emit what they sealed before it
                    seen = self.rows.get(header.mark.sender)
                    last = seen[1].head.last_kept(header.mark.incarnation) if seen else None
                    if last is None or header.mark.seq > last:
                        raise Violation(f"emitted before its seal: {header.mark}")
                self.lengths[source] = len(log)

    def ended(self, world: LaneWorld, process: Process, stop: m.Stop) -> None:
        """Check what a process leaves behind when it stops."""
        refused = stop.end is m.End.REFUSED and not world.scenario.refusals
        if refused or stop.end is m.End.CORRUPT:
            raise Violation(f"{process.name} stopped as {stop.end.value}: {stop.why}")
        if isinstance(process.state.error, Corrupt) and not world.scenario.refusals:
            raise Violation(f"{process.name} found damage, and nothing is damaged: {stop.why}")
        if stop.end is m.End.FENCED and not world.restored:
            raise Violation(f"{process.name} was fenced, and nobody fences: {stop.why}")
        if stop.end is m.End.BROKEN and not (
            world.restored or world.faults < world.scenario.faults
        ):
            raise Violation(f"{process.name} broke though nothing failed: {stop.why}")
        if process.generation > GENERATIONS_MAX:
            raise Violation(f"{process.spec.name} is started again and again: {stop.why}")
        if stop.end is m.End.DONE:
            row = Catalog(MemoryStore(world.tables)).load(process.spec.name)
            assert row is not None, "a lane that somebody ran exists"
            if row.ack.seq < row.head.ref.seq:
                raise Violation(f"{process.name} succeeded before everything was acknowledged")

    def quiet(self, world: LaneWorld) -> None:
        """Check a world in which nothing can happen any more."""
        for process in world.processes.values():
            if not process.state.lane.idle:
                raise Violation(f"{process.name} is stuck: {process.state.lane}")
        findings = [
            finding
            for finding in check(evidence(world))
            if (finding.lane, finding.kind) not in world.scenario.pardoned
        ]
        if findings:
            raise Violation("; ".join(str(finding) for finding in findings))
        _losers_lost(world)
        for spec in world.scenario.lanes:
            if spec.time_from is not None:
                _timely(world, spec, spec.time_from)


def evidence(world: LaneWorld) -> Evidence:
    """Return what the independent checker is shown: the raw input, catalog and output."""
    logs = {
        source: Log(records, len(records)) for source, records in world.broker.partitions.items()
    }
    # The window is said where a repeat behind it has no effect; elsewhere no world goes so far.
    lanes = {
        spec.name: LaneInput(
            id_from=spec.id_from,
            window_ms=world.scenario.window_ms if spec.time_from else None,
        )
        for spec in world.scenario.lanes
    }
    store = MemoryStore(world.tables)
    return Evidence(store=store, logs=logs, lanes=lanes, finished=True, restored=world.restored)


def _written(world: LaneWorld, spec: LaneSpec) -> list[Source]:
    """Return every partition that a lane writes."""
    return [source for topic in spec.edges for source in world.broker.sources(topic)]


def _timely(world: LaneWorld, spec: LaneSpec, time_from: TimeFrom) -> None:
    """Of each name one record took effect, and none was put aside that could not be a repeat."""
    effects = {
        header.parent
        for source in world.broker.sources(spec.writes)
        for record in world.broker.partitions[source]
        if record and (header := decode_header(record.header(NAME) or b""))
    }
    seen: dict[bytes | None, bool] = {}
    newest_ms, window_ms = 0, world.scenario.window_ms
    # What is later is put aside by one clock and taken by another, and either is right.
    ahead_ms = min(spec.clocks_ms or (NOW_MS,)) + window_ms
    for source in world.broker.sources(spec.reads):
        for offset, record in enumerate(world.broker.partitions[source]):
            if record is None or source.partition not in spec.partitions:
                continue
            name, time_ms = spec.id_from(record), int(cast("int", time_from(record)))
            took = (source.partition, offset) in effects
            if took and seen.get(name):
                raise Violation(f"{name!r} took effect twice, though its time tells")
            end_ms = Bucket.at(Origin.EXTERNAL, time_ms).end_ms
            in_time = time_ms <= ahead_ms and newest_ms < end_ms + window_ms
            if not took and name not in seen and in_time:
                raise Violation(f"{name!r} was put aside, though it came in time")
            seen[name] = took or seen.get(name, False)
            newest_ms = max(newest_ms, time_ms)


def _losers_lost(world: LaneWorld) -> None:
    """Who is noted as a loser did not win: what is undecided is not given up."""
    catalog = Catalog(MemoryStore(world.tables))
    for slot in world.tables.losers:
        seal = catalog.seal(slot.lane, slot.incarnation, slot.seq)
        if seal is not None and seal.ref.attempt == slot.attempt:
            raise Violation(f"{slot} was given up as lost, but it is sealed")


def _monotone(lane: str, before: LaneRow, now: LaneRow) -> None:
    if before.head.ref.incarnation != now.head.ref.incarnation:
        raise Violation(f"{lane} changed its incarnation, and nobody asked for it")
    if now.head.ref.seq < before.head.ref.seq or now.ack.seq < before.ack.seq:
        raise Violation(f"{lane} moved backwards")
    if now.collected < before.collected or now.head.lane_time_ms < before.head.lane_time_ms:
        raise Violation(f"{lane} moved backwards")
    if not now.head.frontier.covers(before.head.frontier):
        raise Violation(f"the frontier of {lane} moved backwards")
    if not now.ack.delivered.covers(before.ack.delivered):
        raise Violation(f"delivered offsets of {lane} moved backwards")
    known = {read.key: read.seq for read in now.head.read_seqs}
    if any(known.get(read.key, -1) < read.seq for read in before.head.read_seqs):
        raise Violation(f"read seqs of {lane} moved backwards")
    if now.collected > now.ack.seq or now.ack.seq > now.head.ref.seq:
        raise Violation(f"{lane} collected or acknowledged what was not there yet")


def _delivered(world: LaneWorld, catalog: Catalog, lane: str, after: int, row: LaneRow) -> None:
    """Every output acknowledged by this step is in the log, below its delivered offset."""
    for seq in range(after + 1, row.ack.seq + 1):
        seal = catalog.seal(lane, row.head.incarnation_of(seq), seq)
        assert seal is not None, "what is being acknowledged is not collected"
        chunks = catalog.get(Blob.OUTPUTS, lane, seal)
        assert chunks is not None, "what is being acknowledged is not collected"
        spec = next(spec for spec in world.scenario.lanes if spec.name == lane)
        promised: Iterable[tuple[int | None, RecordId]]
        if recipe_in(chunks, lane) is None:
            promised = _emitted(tuple(chunks), lane)
        else:
            # Which partition is in the digest, and so the checker's.
            ordinals = range(seal.outputs.rows)
            promised = [(None, minted(seal.ref.attempt, 0, ordinal)) for ordinal in ordinals]
        for partition, record_id in promised:
            ids = {
                header.id
                for source in _written(world, spec)
                if partition in (None, source.partition)
                for record in world.broker.partitions[source][: row.ack.delivered.at(source) or 0]
                if record and (header := decode_header(record.header(NAME) or b""))
            }
            if record_id not in ids:
                raise Violation(f"{lane} acknowledged seq {seq}, not all of it is delivered")


@lru_cache(maxsize=REMEMBERED)
def _emitted(chunks: tuple[bytes, ...], lane: str) -> tuple[tuple[int, RecordId], ...]:
    """Return partition and id of everything in stored outputs."""
    return tuple((emission.partition, emission.id) for emission in decode_outputs(chunks, lane))
