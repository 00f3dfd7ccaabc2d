"""A lost catalog, rebuilt from the topics: which lanes there were, where each goes on, what it knows.

What it is: `survey`, which says what can be rebuilt and what cannot be known, and `perform`, which
writes it.
What it must not know: command lines, how pipelines are declared in files.

Invariants:
    A lane that the catalog has is left as it is. Nothing is written by a survey.
    A rebuilt lane has a new incarnation; those seen in the topics are its past, so that receivers
    take what was emitted for what it is, and drop what a forgotten process still emits.
    The head row comes BEFORE the list of ids: until the list is there no process can load the
    lane's ids, and so none can run it. Killed in between, the same call again finishes it.
    Every stage is stopped meanwhile: what a lost catalog's process still writes, nobody can fence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from dedup.formats.segment import segment_chunks
from dedup.model import (
    IDENTITY_BYTES,
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    SegmentList,
    Slot,
    Source,
)
from delivery.host.spec import StageSpec, scheme_of
from delivery.kafka.port import Topic
from delivery.naming import forgiving
from delivery.operate.logs import Cluster
from delivery.operate.repair.found import Lane, Lost, Terms, stretches
from delivery.operate.repair.recall import Recalled, recall
from delivery.operate.repair.sights import Sight, Sights, look

__all__ = ["perform", "refuse_unknown", "survey"]

#: Named steps at which tests end the process.
At = Callable[[str], None]


def survey(
    catalog: Catalog,
    cluster: Cluster,
    stages: Sequence[StageSpec],
    terms: Terms | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Lost:
    """Say what can be rebuilt of the lanes that these stages had, and what cannot be known.

    Args:
        catalog: what is left; an empty one if nothing is.
        cluster: the topics.
        stages: as the pipeline declares them.
        terms: what only the operator knows.
        report: is told each lane.

    Raises:
        InvalidUsage: a topic is missing, or was made anew; a stage is not declared that wrote it.
        Unavailable: the topics cannot be read just now.
    """
    found = _Survey(catalog, cluster, terms or Terms(), report)
    for spec in upstream_first(stages):
        found.stage(spec)
    return found.result()


def perform(catalog: Catalog, lost: Lost, at: At = lambda _: None) -> None:
    """Write the lanes that a survey found. Run again with a new survey, it finishes what is left.

    Raises:
        Corrupt: a lane that was left unfinished is not the one that the topics show now.
    """
    for lane in lost.lanes:
        slots = _stored(catalog, lane)
        at("ids-stored")
        if not lane.unfinished:
            catalog.recreate(lane.lane, lane.row)
            at("lane-made")
        row = catalog.load(lane.lane)
        if row is None or row.head.past != lane.row.head.past:
            raise Corrupt(
                "rebuild a lane",
                lane.lane,
                "its head is not of the history that the topics show; its ids were not written, so "
                "no process can run it: see what else writes this catalog, and rebuild into a new one",
            )
        listed = SegmentList(version=1, upto=row.head.ref.seq, slots=slots)
        catalog.replace_segment_list(lane.lane, None, listed)
        at("ids-listed")


def upstream_first(stages: Iterable[StageSpec]) -> list[StageSpec]:
    """Return stages so that whoever writes a topic comes before whoever reads it."""
    waiting, ordered = list(stages), list[StageSpec]()
    while waiting:
        written = {topic for spec in waiting for topic in spec.kafka_topics}
        # Stages that form a circle come as they are declared.
        ready = [spec for spec in waiting if spec.reads not in written] or waiting[:1]
        ordered += ready
        waiting = [spec for spec in waiting if spec not in ready]
    return ordered


def _stored(catalog: Catalog, lane: Lane) -> tuple[Slot, ...]:
    """Store the ids as seeds of the oldest incarnation: known before anything that is left."""
    oldest = lane.row.head.past[0].incarnation
    slots = []
    for parts in lane.segments:
        slot = Slot(lane.lane, oldest, 0, Attempt(os.urandom(IDENTITY_BYTES)))
        catalog.store.put(Blob.SEGMENT, slot, segment_chunks(parts))
        slots.append(slot)
    catalog.store.flush()
    return tuple(sorted(slots))


@dataclass(frozen=True, slots=True)
class _Edges:
    """A stage and its topics as they are now."""

    spec: StageSpec
    topic: Topic
    outputs: Sequence[Topic]


class _Survey:
    """A survey, stage by stage."""

    def __init__(
        self, catalog: Catalog, cluster: Cluster, terms: Terms, report: Callable[[str], None]
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._terms = terms
        self._report = report
        self._lanes: list[Lane] = []
        self._present: list[str] = []
        self._silent: list[str] = []
        self._unknown: dict[str, str] = {}
        #: What receivers will find: rows that are there, and those that would be.
        self._senders = Catalog(MemoryStore())
        for lane in catalog.lanes():
            row = catalog.load(lane)
            if row is not None:
                self._senders.recreate(lane, row)

    def result(self) -> Lost:
        """Return what was found."""
        return Lost(
            lanes=tuple(self._lanes),
            present=tuple(self._present),
            silent=tuple(self._silent),
            unknown=self._unknown,
        )

    def stage(self, spec: StageSpec) -> None:
        """Look for the lanes of a stage."""
        name = f"{spec.pipeline}/{spec.name}"
        topic = self._cluster.topic(spec.reads)
        wanted: dict[str, Source] = {}
        for source in topic.sources:
            lane = spec.lane(source)
            row = self._catalog.load(lane)
            if row is not None and not unfinished(self._catalog, lane, row):
                self._present.append(lane)
            else:
                wanted[lane] = source
        if not wanted:
            return
        elsewhere = [target for target in spec.topics if scheme_of(target)]
        if elsewhere or not spec.kafka_topics:
            where = f"into {', '.join(map(scheme_of, elsewhere))}" if elsewhere else "to no topic"
            self._unknown[name] = f"it writes {where}, and only topics say what an output is of"
            return
        outputs = [self._cluster.topic(target) for target in spec.topics]
        ids = frozenset(output.id for output in outputs)
        unique = list({output.id: output for output in outputs}.values())
        sights = look(
            self._cluster,
            unique,
            {lane: (source, ids) for lane, source in wanted.items()},
            None if spec.duplicate_edge is None else outputs[spec.duplicate_edge].id,
        )
        for lane in wanted:
            sight = sights.lanes.get(lane)
            if sight is None or not sight.history:
                if sights.cut or sights.holed:
                    self._unknown[lane] = (
                        "records are gone from its output topics, maybe all of its"
                    )
                else:
                    self._silent.append(lane)
                continue
            self._report(f"rebuild {lane}")
            found = self._lane(_Edges(spec, topic, outputs), lane, sight, sights)
            self._lanes.append(found)
            if not found.unfinished:
                self._senders.recreate(lane, found.row)

    def _lane(self, edges: _Edges, lane: str, sight: Sight, sights: Sights) -> Lane:
        spec, topic = edges.spec, edges.topic
        source, done = sight.source, sight.parents()
        bounds = self._cluster.bounds(topic)
        low, high = bounds.low.at(source) or 0, bounds.high.at(source) or 0
        end = int(done[-1]) + 1 if len(done) else low
        if end > high:
            raise _made_anew(topic, lane, end, high)
        sources = [one for output in edges.outputs for one in output.sources]
        certain = sights.certain_from(sight, sources)
        if certain is None or spec.name in self._terms.skip:
            certain = end
        elif spec.start == "latest" or spec.name in self._terms.late:
            certain = max(certain, int(done[0]) if len(done) else end)
        now_ms = time.time_ns() // 1_000_000
        found = recall(
            self._cluster.read(
                topic, Frontier.of([(source, low)]), Frontier.of([(source, max(low, end))])
            ),
            done,
            max(end, low),
            senders=self._senders,
            # With dead letters such a record was put aside; it has no say in what is rebuilt.
            id_from=forgiving(spec.id_of()) if spec.dead_letters else spec.id_of(),
            certain_from=certain,
            now_ms=now_ms,
        )
        return Lane(
            lane=lane,
            frontier=found.frontier,
            end=end,
            outputs=len(done),
            ids=found.ids,
            again=len(found.again),
            stretches=stretches(found.again.tolist()),
            taken=found.taken,
            behind=max(0, high - max(end, low)),
            gone=int((done < low).sum()),
            skipped=max(0, low - end),
            abandoned=sight.abandoned,
            last=sight.last_bundle(),
            unfinished=self._catalog.load(lane) is not None,
            row=_row(edges, self._history(lane, sight), sight, sights.ends, found),
            segments=found.segments,
        )

    def _history(self, lane: str, sight: Sight) -> tuple[Kept, ...]:
        """Return the past of a lane: what is seen of it, and what its receivers have read of it.

        Seals without outputs leave nothing in topics, and receivers may know that they were there.
        """
        known = {kept.incarnation: kept.seq for kept in sight.history}
        spans = sight.spans()
        for name in self._senders.lanes():
            row = self._senders.load(name)
            for read in row.head.read_seqs if row else ():
                one, seq = read.incarnation, read.seq
                if read.sender != lane or seq <= known.get(one, -1):
                    continue
                # What was given up stays so, and no seq that another one has is claimed.
                whole = one not in spans or known.get(one, -1) >= spans[one][1]
                others = (spans[o][0] for o in known if o != one and o in spans and known[o] > seq)
                if whole and all(first > seq for first in others):
                    known[one] = seq
        return tuple(Kept(*one) for one in sorted(known.items(), key=lambda one: one[1]))


def unfinished(catalog: Catalog, lane: str, row: LaneRow) -> bool:
    """Tell whether a lane is one that a repair has made and not given its ids yet."""
    head = row.head
    return (
        not head.state
        and bool(head.past)
        and row.collected == head.ref.seq
        and catalog.segment_list(lane) is None
        and catalog.seal(lane, head.incarnation_of(head.ref.seq), head.ref.seq) is None
    )


def _row(
    edges: _Edges, past: tuple[Kept, ...], sight: Sight, ends: Frontier, found: Recalled
) -> LaneRow:
    spec, source, outputs = edges.spec, sight.source, edges.outputs
    seq, incarnation = past[-1].seq, Incarnation(os.urandom(IDENTITY_BYTES))
    written = {output.id for output in outputs}
    head = Head(
        ref=HeadRef(incarnation, seq, Attempt(os.urandom(IDENTITY_BYTES))),
        frontier=Frontier.of([(source, found.frontier)]),
        lane_time_ms=found.lane_time_ms,
        minted_at_ms=sight.minted_at_ms,
        topics=((spec.reads, source.topic),),
        writes=tuple(output.id for output in outputs),
        past=past,
    )
    delivered = Frontier.of((s, end) for s, end in ends if s.topic in written)
    # All that is left of these seals is what was delivered: nobody can emit anything of them.
    return LaneRow(head=head, ack=Ack(incarnation, seq, delivered), collected=seq)


def _made_anew(topic: Topic, lane: str, end: int, high: int) -> InvalidUsage:
    return InvalidUsage(
        "rebuild a lane",
        lane,
        f"its outputs were made of inputs up to offset {end - 1}, and topic {topic.name} ends at "
        f"{high}: it was deleted and created again; nothing was written: give the stage another name",
    )


def refuse_unknown(stages: Sequence[StageSpec], asked: Collection[str]) -> None:
    """Refuse names that no stage has.

    Raises:
        InvalidUsage: there is such a name.
    """
    known = [spec.name for spec in stages]
    for name in asked:
        if name not in known:
            raise InvalidUsage(
                "rebuild a catalog",
                f"stage {name}",
                f"the pipeline has none of this name; nothing was done; name one of "
                f"{', '.join(known)}",
            )
