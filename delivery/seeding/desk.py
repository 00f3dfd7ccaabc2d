"""A pipeline's stages as lanes that can be begun: which there are, where they start, whose they are.

What it is: `Desk`, over one Kafka client and one catalog.
What it must not know: ids, how they are read.

Invariants:
    A start outside its log is refused: what is gone unread cannot be begun at.
    A lane is begun by one conditional write; one that somebody else began is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from threading import Event
from types import TracebackType
from typing import Self

from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from dedup.model import Frontier, Source, TopicId
from dedup.seeding import Beginning, Seeds, begin, begun_as
from delivery.host.adapters import open_emitter
from delivery.host.clock import SystemClock
from delivery.host.spec import Plan, StageSpec
from delivery.host.starting import topics_of
from delivery.kafka.opening import open_client
from delivery.kafka.port import Bounds, Topic
from delivery.seeding.checkpoint import Uncommitted, positions
from delivery.seeding.request import Request
from delivery.sinks import close_sink

__all__ = ["Desk", "Lane"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane that is to begin."""

    spec: StageSpec
    source: Source
    start: int

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.lane(self.source)


class Desk:
    """The stages of one pipeline, looked at and begun. Used in a `with`.

    Args:
        plan: the pipeline.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = SystemClock(Event())
        self._stack = ExitStack()
        self._written: dict[str, tuple[TopicId, ...]] = {}

    def __enter__(self) -> Self:
        plan = self._plan
        with ExitStack() as stack:
            self.client = stack.enter_context(
                open_client(plan.kafka, plan.options, plan.client, LOG.warning)
            )
            self._catalog = open_catalog(plan.catalog)
            stack.enter_context(closing(self._catalog.store))
            self._topics = topics_of(self.client, plan.stages, create=False)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # Looking ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the clock: the latest that lane time may be."""
        return self._clock.now_ms()

    def stage(self, name: str) -> StageSpec:
        """Return a stage by its name.

        Raises:
            InvalidUsage: there is none.
        """
        found = next((spec for spec in self._plan.stages if spec.name == name), None)
        if found is None:
            known = ", ".join(spec.name for spec in self._plan.stages) or "none"
            hint = f"the stages are {known}; nothing was read: declare it first, or mend the name"
            raise InvalidUsage("begin a stage", name, hint)
        return found

    def front(self, spec: StageSpec) -> StageSpec:
        """Return the stage that reads for this one: its re-keying, or itself."""
        found = (one for one in self._plan.stages if one.by_id and spec.reads in one.writes)
        return next(found, spec)

    def fronts(self) -> list[StageSpec]:
        """Return the stages that read what no re-keying of this pipeline writes."""
        return [spec for spec in self._plan.stages if self.front(spec) is spec]

    def topic(self, name: str) -> Topic:
        """Return a topic as it is now.

        Raises:
            InvalidUsage: there is none.
        """
        found = self._topics.get(name) or self.client.describe([name]).get(name)
        if found is None:
            hint = "there is no such topic; nothing was read: mend the name"
            raise InvalidUsage("read a topic", name, hint)
        return found

    def bounds(self, topic: Topic) -> Bounds:
        """Return what its log holds just now."""
        return self.client.bounds(topic.name, topic.sources)

    # Starts -----------------------------------------------------------------------------------

    def starts(self, spec: StageSpec, request: Request) -> dict[int, int]:
        """Return where each partition of a stage's input begins.

        Raises:
            InvalidUsage: what was said does not fit the topic.
        """
        if request.checkpoint is not None:
            return self.checkpointed(spec, request.checkpoint, request.uncommitted)
        start = spec.start if request.start is None else request.start
        topic = self.topic(spec.reads)
        bounds = self.bounds(topic)
        if isinstance(start, str):
            if start not in {"earliest", "latest"}:
                raise _unfit(topic, f"start={start!r}", 'say "earliest", "latest" or offsets')
            chosen = bounds.low if start == "earliest" else bounds.high
            return {source.partition: chosen.at(source) or 0 for source in topic.sources}
        missing = {source.partition for source in topic.sources} - start.keys()
        if missing:
            text = f"start=... says nothing of partitions {sorted(missing)}"
            raise _unfit(topic, text, "say an offset for each partition")
        return self._checked(topic, bounds, start)

    def checkpointed(
        self, spec: StageSpec, checkpoint: str, uncommitted: Uncommitted
    ) -> dict[int, int]:
        """Return where a Spark query stands in a stage's input; what it never saw begins first."""
        found = positions(checkpoint, uncommitted)
        topic = self.topic(spec.reads)
        if spec.reads not in found:
            text = f"the query of {checkpoint} reads {', '.join(sorted(found))}"
            raise _unfit(topic, text, "say the checkpoint of the query that reads this topic")
        bounds = self.bounds(topic)
        lowest = {source.partition: bounds.low.at(source) or 0 for source in topic.sources}
        return self._checked(topic, bounds, lowest | dict(found[spec.reads].offsets))

    def lowest(self, spec: StageSpec) -> dict[int, int]:
        """Return the first offset of each partition of a stage's input."""
        topic = self.topic(spec.reads)
        low = self.bounds(topic).low
        return {source.partition: low.at(source) or 0 for source in topic.sources}

    def _checked(self, topic: Topic, bounds: Bounds, starts: Mapping[int, int]) -> dict[int, int]:
        known = {source.partition: source for source in topic.sources}
        for partition, start in sorted(starts.items()):
            if partition not in known:
                hint = "was the topic deleted and created again since? then say where to begin"
                raise _unfit(topic, f"there is no partition {partition}", hint)
            low = bounds.low.at(known[partition]) or 0
            high = bounds.high.at(known[partition]) or 0
            if start < low:
                text = f"offsets {start} to {low} of partition {partition} are gone unread"
                raise _unfit(topic, text, "if that is no loss, say start=... with where to begin")
            if start > high:
                text = f"partition {partition} ends at {high}, below {start}"
                raise _unfit(topic, text, "was the topic deleted and created again since?")
        return dict(starts)

    # Lanes ------------------------------------------------------------------------------------

    def lanes(self, spec: StageSpec, starts: Mapping[int, int]) -> list[Lane]:
        """Return the lanes of a stage, one for each partition of its input."""
        sources = self.topic(spec.reads).sources
        return [Lane(spec, source, starts[source.partition]) for source in sources]

    def missing(self, lanes: Iterable[Lane], mark: str) -> list[Lane]:
        """Return the lanes that are still to be begun, if those that exist were begun as this.

        Raises:
            InvalidUsage: a lane exists for another reason.
        """
        found = {lane: begun_as(self._catalog, lane.name) for lane in lanes}
        strange = [lane for lane, begun in found.items() if begun not in (None, mark)]
        if strange:
            raise _exists(strange)
        return [lane for lane, begun in found.items() if begun is None]

    def begin(self, lane: Lane, seeds: Seeds, mark: str, now_ms: int) -> bool:
        """Begin a lane; False if the same request, run elsewhere, was quicker.

        Raises:
            InvalidUsage: somebody else began it meanwhile.
        """
        beginning = Beginning(
            start=Frontier.of([(lane.source, lane.start)]),
            topics=((lane.spec.reads, lane.source.topic),),
            writes=self._writes(lane.spec),
            lane_time_ms=now_ms if seeds.count else 0,
            mark=mark,
        )
        won = begin(self._catalog, lane.name, beginning, seeds, self._clock.fresh)
        if not won:
            self.missing([lane], mark)
        return won

    def _writes(self, spec: StageSpec) -> tuple[TopicId, ...]:
        """Return who a stage's sinks are, as a worker that goes on with its lanes will find them."""
        if spec.name not in self._written:
            emitter = open_emitter(self.client, spec)
            self._stack.callback(close_sink, emitter)
            self._written[spec.name] = emitter.writes
        return self._written[spec.name]


def _exists(lanes: Sequence[Lane]) -> InvalidUsage:
    return InvalidUsage(
        "begin a stage",
        f"{lanes[0].name} and {len(lanes) - 1} more" if lanes[1:] else lanes[0].name,
        "it ran before, so its lanes say where it goes on, and what they read was judged without these "
        "ids; nothing was written: name the stage otherwise, or go on without; where it goes on is "
        "changed with `delivery stage reset`",
    )


def _unfit(topic: Topic, what: str, hint: str) -> InvalidUsage:
    return InvalidUsage(
        "begin a stage", f"topic {topic.name}", f"{what}; nothing was written: {hint}"
    )
