"""The Kafka sink: each edge of a stage goes to a topic.

What it is: the emitter port over a Kafka client. Keyed: every record carries its id, and receivers
drop repeats.
What it must not know: sources, catalogs, which client library serves.

Invariants:
    Topics and their partition counts are read when the emitter is made; the target partition is
    frozen with the stored row, so a topic that grows meanwhile changes nothing that is stored.
    A topic that cannot take every record that may be sealed is refused before anything is.
    After a failed emission, and when offsets fall, the topics are looked at again: what was meant
    for a deleted topic is never acknowledged as delivered to the one created after it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from delivery import InvalidUsage
from delivery.batch import Emissions, Rows
from delivery.kafka.partitioner import partitions_of
from delivery.kafka.port import MESSAGE_BYTES_MIN, Client, Topic
from delivery.kafka.waiting import Link, Watched
from delivery.ports import Frontier, Sending, Source, TopicId
from delivery.sinks import Kind

__all__ = ["KafkaEmitter", "examined"]

LOG = logging.getLogger(__name__)

#: How long nobody looks whether something has landed, where nothing tells.
UNTOLD_SECONDS = 0.002


class KafkaEmitter:
    """Sends each edge to one topic.

    Args:
        client: the cluster.
        topics: name of the topic behind each edge.
        internal: those of them that only stages of ours read: none may lose records to compaction.
        by_id: edges whose records are placed by their kept id, for re-keying.
    """

    kind = Kind.KEYED

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        *,
        internal: Collection[str] = (),
        by_id: Collection[int] = (),
    ) -> None:
        self._client = client
        self._names = tuple(topics)
        self._by_id = frozenset(by_id)
        self._topics = self._described()
        self.writes: tuple[TopicId, ...] = tuple(topic.id for topic in self._topics)
        self.counts: tuple[int, ...] = tuple(topic.partitions for topic in self._topics)
        #: What is allowed, and worth knowing.
        self.warnings: tuple[str, ...] = tuple(
            warning
            for name in dict.fromkeys(topics)
            for warning in self._examined(name, internal=name in internal)
        )
        for warning in self.warnings:
            LOG.warning(warning)
        self._doubtful = False
        self._behind: dict[Source, int] = {}
        self._producer = client.producer()

    def place(self, rows: Rows) -> list[int]:
        """Return the partitions: by key, or by the parent where there is none."""
        return self.place_among(rows, self.counts)

    def place_among(self, rows: Rows, counts: Sequence[int]) -> list[int]:
        """Return the partitions where each edge has so many."""
        if len(self._topics) == 1:
            return self._placed(rows, 0, range(len(rows)), counts[0])
        partitions = [0] * len(rows)
        for edge in set(rows.edges):
            chosen = [at for at, other in enumerate(rows.edges) if other == edge]
            for at, partition in zip(
                chosen, self._placed(rows, edge, chosen, counts[edge]), strict=True
            ):
                partitions[at] = partition
        return partitions

    def emit(self, emissions: Emissions) -> Frontier:
        """Send in order, flush, and say behind which offsets; see the port."""
        if self._doubtful:
            self._check_identities()
        self._doubtful = True
        return self._landed(self._producer.emit(self._topics, emissions), self._behind)

    def begin(self, emissions: Emissions) -> Sending:
        """Send in order and wait for nothing, where the client can; see `Sender`."""
        begin = getattr(self._producer, "begin", None)
        if begin is None or self._doubtful:
            return _Sent(self.emit(emissions))
        return _Begun(self, begin(self._topics, emissions), self._behind)

    def look(
        self, sending: Sending, behind: Mapping[Source, int], seconds: float
    ) -> Frontier | None:
        """Look at what was begun when the logs were known to end at `behind`; see `emit`."""
        self._doubtful = True
        frontier = sending.done(seconds)
        if frontier is not None:
            return self._landed(frontier, behind)
        self._doubtful = False
        return None

    def watched(self, seconds: float) -> tuple[Sequence[Link], float]:
        """Return over which connections news comes of what is on its way; see `Watched`."""
        if isinstance(self._producer, Watched):
            return self._producer.watched(seconds)
        return (), min(seconds, UNTOLD_SECONDS)

    def close(self) -> None:
        """Let go of the producer. May be called twice."""
        self._producer.close()

    # Inside -----------------------------------------------------------------------------------

    def _landed(self, frontier: Frontier, behind: Mapping[Source, int]) -> Frontier:
        """Take note of where records landed: behind where the logs ended before, or look closer."""
        known = self._behind
        if any(offset <= behind.get(source, 0) for source, offset in frontier):
            # A log only grows. Clients follow a topic's name without a word, also to another topic.
            self._check_identities()
            known = {}
        # A new one each time: what is on its way holds on to the one it began with.
        ends = {source: max(offset, known.get(source, 0)) for source, offset in frontier}
        self._behind = self._behind | ends
        self._doubtful = False
        return frontier

    def _placed(self, rows: Rows, edge: int, chosen: Sequence[int], count: int) -> list[int]:
        keys: list[bytes | None]
        if edge in self._by_id:
            assert None not in rows.kept_ids, "a re-keyed record keeps its id"
            keys = [rows.kept_ids[at] for at in chosen]
        else:
            keys = [rows.keys[at] for at in chosen]
        parents = [rows.parent_partitions[at] for at in chosen]
        offsets = [rows.parent_offsets[at] for at in chosen]
        return [int(p) for p in partitions_of(keys, parents, offsets, count).tolist()]

    def _described(self) -> tuple[Topic, ...]:
        found = self._client.describe(list(dict.fromkeys(self._names)))
        missing = [name for name in dict.fromkeys(self._names) if name not in found]
        if missing:
            raise InvalidUsage(
                "write to a topic",
                ", ".join(missing),
                "there is no such topic; nothing was read or written: create it, let the stage "
                "create it, or mend the name",
            )
        return tuple(found[name] for name in self._names)

    def _check_identities(self) -> None:
        for before, now in zip(self._topics, self._described(), strict=True):
            if before.id != now.id:
                raise InvalidUsage(
                    "write to a topic",
                    before.name,
                    "it was deleted and created again under its name; what is sealed was meant for "
                    "the old one, and is not acknowledged: if that is meant, say `delivery stage "
                    "accept-topic`",
                )

    def _examined(self, name: str, *, internal: bool) -> list[str]:
        """Return what is worth knowing about a topic; refuse what cannot work."""
        try:
            settings = self._client.settings_of(name)
        except InvalidUsage as error:
            return [f"the settings of topic {name} may not be read and were not checked: {error}"]
        return examined(name, settings, internal=internal)


class _Sent:
    """What was emitted already."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    def done(self, _seconds: float = 0.0) -> Frontier | None:
        """Return where it landed."""
        return self._frontier


class _Begun:
    """What is on its way."""

    def __init__(
        self, emitter: KafkaEmitter, sending: Sending, behind: Mapping[Source, int]
    ) -> None:
        self._emitter = emitter
        self._sending = sending
        self._behind = behind

    def done(self, seconds: float = 0.0) -> Frontier | None:
        """Return where it landed, once it has."""
        return self._emitter.look(self._sending, self._behind, seconds)


def examined(name: str, settings: Mapping[str, str], *, internal: bool) -> list[str]:
    """Return what is worth knowing about a topic's settings.

    Raises:
        InvalidUsage: with them, records that were sealed could not be sent, or would be lost.
    """
    largest = int(settings.get("max.message.bytes", MESSAGE_BYTES_MIN))
    if largest < MESSAGE_BYTES_MIN:
        raise InvalidUsage(
            "write to a topic",
            name,
            f"its max.message.bytes is {largest}, and a record that is sealed may need "
            f"{MESSAGE_BYTES_MIN}; nothing was read or written: raise it",
        )
    if "compact" not in settings.get("cleanup.policy", ""):
        return []
    if internal:
        raise InvalidUsage(
            "write to a topic",
            name,
            "its cleanup.policy compacts, so records would be gone before the next stage reads "
            "them; nothing was read or written: set it to delete",
        )
    warning = (
        f"topic {name} is compacted: Kafka takes records of equal keys away, read or not, and "
        "refuses records without a key"
    )
    return [warning]
