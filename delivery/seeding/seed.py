"""Switching a stage on beside what ran before: its lanes begun, with ids and positions of the past.

What it is: `seed` and `start_from`: which ids each lane gets, and the order of the work.
What it must not know: how ids are read out of anything, Spark.

Invariants:
    Everything is looked at before anything is written: all lanes are refused, or none.
    A stage that is seeded from the topic it reads is seeded with what lies below its start alone:
    what it is still to read must not be known to it.
    Ids are read and gathered first; lanes are begun one behind the other at the very end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dedup.arrays import Ids, to_raw
from dedup.errors import InvalidUsage
from dedup.model import IDENTITY_BYTES, Source
from dedup.seeding import Gathering, Seeds
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.partitioner import partitions_of
from delivery.naming import forgiving, id_from
from delivery.seeding.checkpoint import Uncommitted, positions
from delivery.seeding.desk import Desk, Lane
from delivery.seeding.names import Named, of_column, of_topic
from delivery.seeding.report import Progress, Report, Teller
from delivery.seeding.request import Request, mark_of

__all__ = ["seed", "start_from"]

#: Ids that one call holds at once, for all lanes together: a gibibyte.
GATHERED_IDS_MAX = 64 * 1024 * 1024


def seed(
    plan: Plan, stage: str, request: Request, progress: Callable[[Progress], None] | None = None
) -> Report:
    """Begin the lanes of a stage that never ran, with ids it is to take for repeats.

    Raises:
        InvalidUsage: the stage has lanes already, or this cannot be what was meant. Nothing counts
            that was written.
        Unavailable: Kafka or the catalog does not answer; run it again.
    """
    with Desk(plan) as desk:
        spec = desk.stage(stage)
        front = desk.front(spec)
        starts = desk.starts(front, request)
        lanes = desk.lanes(spec, starts if front is spec else desk.lowest(spec))
        before: list[Lane] = []
        if front is not spec and (request.says_start or request.topic == front.reads):
            before = desk.lanes(front, starts)
        mark = request.mark(stage)
        report = Report(starts={lane.name: lane.start for lane in (*lanes, *before)})
        missing = desk.missing([*lanes, *before], mark)
        if not missing:
            return report
        told = Teller(progress)
        share = _Share.of(spec, front, request, len(lanes))
        gathered = share.gather(_named(desk, front, request, starts, told))
        if told.records == told.unnamed:
            raise _nothing(request)
        now, ids, begun = desk.now_ms(), 0, 0
        for key, group in share.groups(lanes, missing).items():
            seeds = Seeds.of(gathered[key].ids, now) if key in gathered else Seeds()
            for lane in group:
                ids += seeds.count
                begun += desk.begin(lane, seeds, mark, now)
        for lane in before:
            if lane in missing:
                begun += desk.begin(lane, Seeds(), mark, now)
        return replace(report, begun=begun, ids=ids, records=told.records, unnamed=told.unnamed)


def start_from(
    plan: Plan, checkpoint: str, stage: str | None = None, uncommitted: Uncommitted = "refuse"
) -> Report:
    """Begin the lanes of stages that never ran where a Spark query stands.

    Args:
        plan: the pipeline.
        checkpoint: directory of the query's checkpoint.
        stage: which stage; None: all that read a topic the query reads.
        uncommitted: what becomes of a batch that was planned and not committed.

    Raises:
        InvalidUsage: a stage has lanes already, or the checkpoint does not fit. Nothing was begun.
        Unavailable: Kafka, the catalog or the checkpoint does not answer; run it again.
    """
    with Desk(plan) as desk:
        if stage is not None:
            chosen = [desk.front(desk.stage(stage))]
        else:
            found = positions(checkpoint, uncommitted)
            chosen = [spec for spec in desk.fronts() if spec.reads in found]
        if not chosen:
            raise InvalidUsage(
                "start from a checkpoint",
                checkpoint,
                f"no stage of pipeline {plan.stages[0].pipeline if plan.stages else '?'} reads "
                f"{', '.join(sorted(found))}; nothing was written: declare the stage first",
            )
        mark = mark_of("from", checkpoint, uncommitted)
        lanes = [
            lane
            for spec in chosen
            for lane in desk.lanes(spec, desk.checkpointed(spec, checkpoint, uncommitted))
        ]
        missing = desk.missing(lanes, mark)
        begun = sum(desk.begin(lane, Seeds(), mark, 0) for lane in missing)
        return Report(starts={lane.name: lane.start for lane in lanes}, begun=begun)


# Which ids each lane gets ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Share:
    """How ids are shared out among the lanes of a stage.

    A record belongs to one lane. Where that can be told of an id, by the partition it was read from
    or by the id itself, its lane alone gets it; else all do.
    """

    by_partition: bool = False
    #: Partitions of the topic that records are re-keyed into; 0 for a stage without re-keying.
    by_id: int = 0

    @staticmethod
    def of(spec: StageSpec, front: StageSpec, request: Request, lanes: int) -> _Share:
        if front is not spec:
            return _Share(by_id=lanes)
        return _Share(by_partition=request.topic == spec.reads)

    def key(self, source: Source) -> int | None:
        """Return which ids a lane gets."""
        return source.partition if self.by_partition or self.by_id else None

    def gather(self, named: Iterator[Named]) -> dict[int | None, Gathering]:
        """Return the ids of each key."""
        gathered: dict[int | None, Gathering] = {}
        for one in named:
            for key, ids in self._split(one):
                gathered.setdefault(key, Gathering()).add(ids)
            held = sum(len(group) for group in gathered.values())
            if held > GATHERED_IDS_MAX:
                raise _too_many()
        return gathered

    def groups(
        self, lanes: Sequence[Lane], missing: Sequence[Lane]
    ) -> Mapping[int | None, list[Lane]]:
        """Return the lanes that are to be begun, by the ids they get."""
        wanted, groups = set(missing), dict[int | None, list[Lane]]()
        for lane in lanes:
            if lane in wanted:
                groups.setdefault(self.key(lane.source), []).append(lane)
        return groups

    def _split(self, named: Named) -> Iterator[tuple[int | None, Ids]]:
        if self.by_id:
            raw, count = to_raw(named.ids), len(named.ids)
            keys = [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]
            placed = partitions_of(keys, [0] * count, [0] * count, self.by_id)
            for partition in np.unique(placed).tolist():
                yield partition, named.ids[placed == partition]
        else:
            partition = named.source.partition if named.source is not None else None
            yield (partition if self.by_partition else None), named.ids


def _named(
    desk: Desk, front: StageSpec, request: Request, starts: Mapping[int, int], told: Teller
) -> Iterator[Named]:
    """Yield the ids that were asked for, and count them."""
    found = of_column(request.data, request.column)
    if request.topic is not None:
        way = id_from(request.named if request.named is not None else front.named)
        if front.dead_letters is not None:
            way = forgiving(way)
        topic = desk.topic(request.topic)
        own = starts if request.topic == front.reads else {}
        ranges = _ranges(desk, request, own)
        told.total = sum(max(0, end - first) for first, end in ranges.values())
        found = of_topic(desk.client, topic, ranges, way)
    for one in found:
        told.count(one.records, one.records - len(one.ids))
        yield one


def _ranges(desk: Desk, request: Request, starts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return the offsets to read; of the stage's own input only what lies below its start."""
    assert request.topic is not None, "a topic has offsets"
    topic = desk.topic(request.topic)
    bounds = desk.bounds(topic)
    ranges = {}
    for source in topic.sources:
        low, high = bounds.low.at(source) or 0, bounds.high.at(source) or 0
        first, end = low, high
        if request.offsets is not None:
            first, end = request.offsets.get(source.partition, (low, low))
        end = min(end, high, starts.get(source.partition, high))
        ranges[source.partition] = (max(first, low), end)
    return ranges


def _nothing(request: Request) -> InvalidUsage:
    return InvalidUsage(
        "seed a stage",
        request.topic or request.column or "the column",
        "no record of it names itself, or there is none below where the stage begins; nothing was "
        "written: say id_from=..., offsets=... or start=..., or begin without seeding",
    )


def _too_many() -> InvalidUsage:
    return InvalidUsage(
        "seed a stage",
        f"more than {GATHERED_IDS_MAX} ids",
        "nothing was written: seed those of the window alone; older repeats would be forgotten at "
        "once",
    )
