"""What output topics still show of the lanes that wrote them, after the lanes themselves were lost.

What it is: `look`, which reads the headers in output topics, and `Sight`, what they say of one lane:
its incarnations, its seqs, and the inputs that its outputs were made from.
What it must not know: input topics, ids, what is made of it.

Invariants:
    Topics are only read. A record counts for a lane only in a topic that the lane's stage writes.
    Of an incarnation that a restore gave up only what was kept counts, as far as headers tell.
    Where a part of a log is gone, nobody says that there was no output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup.model import Frontier, Incarnation, Kept, Source, TopicId
from delivery.batch import Batch
from delivery.header import NAME, decode_headers
from delivery.kafka.port import Topic
from delivery.operate.logs import Cluster
from delivery.records import Headers

__all__ = ["Offsets", "Sight", "Sights", "look"]

Offsets = npt.NDArray[np.int64]

_NONE: Offsets = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class _Seal:
    """What is seen of one seal: its minted-at, and the parents of its outputs."""

    minted_at_ms: int
    parents: list[Offsets] = field(default_factory=list)


@dataclass(slots=True)
class Sight:
    """One lane, as the outputs in its topics show it."""

    source: Source
    _seals: dict[tuple[Incarnation, int], _Seal] = field(default_factory=dict)
    #: Of each output partition the parent of the first record of this lane that is still there.
    first: dict[Source, int] = field(default_factory=dict)

    def add(
        self,
        output: Source,
        incarnation: Incarnation,
        seq: int,
        minted_at_ms: int,
        parents: Offsets,
    ) -> None:
        """Take the outputs of one seal in one batch, in the order of their offsets."""
        seal = self._seals.setdefault((incarnation, seq), _Seal(minted_at_ms))
        seal.parents.append(parents)
        self.first.setdefault(output, int(parents[0]))

    @property
    def history(self) -> tuple[Kept, ...]:
        """The incarnations, oldest first, each with the last seq that counts of it."""
        spans: dict[Incarnation, tuple[int, int, int]] = {}
        for (incarnation, seq), seal in self._seals.items():
            minted, low, high = spans.get(incarnation, (seal.minted_at_ms, seq, seq))
            spans[incarnation] = (min(minted, seal.minted_at_ms), min(low, seq), max(high, seq))
        # A restore goes on with the seq that it kept, so what a later one has was given up.
        kept: list[Kept] = []
        below: int | None = None
        for incarnation, (_, low, high) in sorted(
            spans.items(), key=lambda one: one[1][0], reverse=True
        ):
            last = high if below is None else min(high, below - 1)
            if last >= low:
                kept.append(Kept(incarnation, last))
            below = low if below is None else min(low, below)
        return tuple(reversed(kept))

    @property
    def minted_at_ms(self) -> int:
        """The highest minted-at."""
        return max((seal.minted_at_ms for seal in self._seals.values()), default=0)

    @property
    def abandoned(self) -> int:
        """How many outputs are of seqs that a restore gave up."""
        return sum(map(len, self._parents(counting=False)))

    def parents(self) -> Offsets:
        """Return the offsets of the inputs that have an output, sorted, each once."""
        found = self._parents(counting=True)
        return np.unique(np.concatenate(found)) if found else _NONE

    def last_bundle(self) -> int:
        """Return how many inputs have an output of the last seal: some others may be on none."""
        history = self.history
        if not history:
            return 0
        found = self._seals[history[-1].incarnation, history[-1].seq].parents
        return len(np.unique(np.concatenate(found)))

    def _parents(self, *, counting: bool) -> list[Offsets]:
        kept = {one.incarnation: one.seq for one in self.history}
        return [
            parents
            for (incarnation, seq), seal in self._seals.items()
            if (seq <= kept.get(incarnation, -1)) == counting
            for parents in seal.parents
        ]


@dataclass(frozen=True, slots=True)
class Sights:
    """What was seen.

    Attributes:
        lanes: by name; one that left nothing is not among them.
        ends: of every output partition the offset behind the last record.
        cut: output partitions whose first records are gone.
        holed: output partitions that have holes: records went out of their middle.
    """

    lanes: dict[str, Sight]
    ends: Frontier
    cut: frozenset[Source]
    holed: frozenset[Source]

    def certain_from(self, sight: Sight, outputs: Iterable[Source]) -> int | None:
        """Return the input offset from which a missing output is really missing; None: nowhere.

        SUBTLE: outputs are sent in the order of their inputs, and again from an earlier one on.
        So behind the first record that is left, every later input still has its record.
        """
        certain = 0
        for output in outputs:
            if output in self.holed or (output in self.cut and output not in sight.first):
                return None
            if output in self.cut:
                certain = max(certain, sight.first[output])
        return certain


def look(
    cluster: Cluster,
    topics: Iterable[Topic],
    lanes: Mapping[str, tuple[Source, frozenset[TopicId]]],
) -> Sights:
    """Read topics and return what they show of lanes.

    Args:
        cluster: where they are.
        topics: output topics.
        lanes: by name, each with the partition it reads and the topics it writes.
    """
    found: dict[str, Sight] = {}
    ends: list[tuple[Source, int]] = []
    cut: set[Source] = set()
    holed: set[Source] = set()
    for topic in topics:
        bounds = cluster.bounds(topic)
        counts = dict.fromkeys(topic.sources, 0)
        for batch in cluster.read(topic, bounds.low, bounds.high):
            counts[batch.source] += len(batch)
            _take(found, lanes, batch)
        low = dict(bounds.low)
        for source, end in bounds.high:
            ends.append((source, end))
            begin = low.get(source, 0)
            if begin > 0:
                cut.add(source)
            if counts[source] < end - begin:
                holed.add(source)
    return Sights(found, Frontier.of(ends), frozenset(cut), frozenset(holed))


def _take(
    found: dict[str, Sight],
    lanes: Mapping[str, tuple[Source, frozenset[TopicId]]],
    batch: Batch,
) -> None:
    columns = decode_headers([_own(headers) for headers in batch.headers])
    for number, mark in enumerate(columns.marks):
        if mark.sender not in lanes or batch.source.topic not in lanes[mark.sender][1]:
            continue
        source = lanes[mark.sender][0]
        rows = (columns.mark_of == number) & (columns.partitions == source.partition)
        parents = columns.offsets[rows]
        if len(parents):
            sight = found.setdefault(mark.sender, Sight(source))
            sight.add(batch.source, mark.incarnation, mark.seq, mark.minted_at_ms, parents)


def _own(headers: Headers | None) -> bytes | None:
    """Return the last header of our name."""
    return next((value for name, value in reversed(headers or ()) if name == NAME), None)
