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

#: How far apart the clocks of two machines may be.
MARGIN_MS = 60 * 60 * 1000

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

    def add(self, incarnation: Incarnation, seq: int, minted_at_ms: int, parents: Offsets) -> None:
        """Take the outputs of one seal in one batch."""
        seal = self._seals.setdefault((incarnation, seq), _Seal(minted_at_ms))
        seal.parents.append(parents)

    @property
    def history(self) -> tuple[Kept, ...]:
        """The incarnations, oldest first, each with the last seq that counts of it.

        A restore goes on behind the last seq that it kept, and runs inputs again. So of an
        incarnation nothing counts from the first seq on that a later one has too, or whose inputs
        a later one has outputs of.
        """
        kept: list[Kept] = []
        below: int | None = None
        later = _NONE
        for incarnation, seals in self._newest_first():
            ends = [] if below is None else [below]
            again = seals.items() if len(later) else ()
            ends += [seq for seq, found in again if np.isin(found, later).any()]
            last = max((seq for seq in seals if not ends or seq < min(ends)), default=None)
            if last is not None:
                kept.append(Kept(incarnation, last))
            below = min([*seals, *([] if below is None else [below])])
            later = np.concatenate([later, *seals.values()])
        return tuple(reversed(kept))

    def _newest_first(self) -> list[tuple[Incarnation, dict[int, Offsets]]]:
        """Return each incarnation with the inputs that have an output, by seq."""
        found: dict[Incarnation, dict[int, Offsets]] = {}
        minted: dict[Incarnation, int] = {}
        for (incarnation, seq), seal in self._seals.items():
            found.setdefault(incarnation, {})[seq] = np.concatenate(seal.parents)
            minted[incarnation] = min(minted.get(incarnation, seal.minted_at_ms), seal.minted_at_ms)
        return sorted(found.items(), key=lambda one: minted[one[0]], reverse=True)

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

    def spans(self) -> dict[Incarnation, tuple[int, int]]:
        """Return of every incarnation that left something the first and the last seq seen."""
        return {one: (min(seals), max(seals)) for one, seals in self._newest_first()}

    def minted_after(self, time_ms: int) -> int | None:
        """Return the first input that has an output minted later than a time; None: there is none."""
        later = [
            int(parents.min())
            for seal in self._seals.values()
            if seal.minted_at_ms > time_ms
            for parents in seal.parents
            if len(parents)
        ]
        return min(later, default=None)

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
        cut: output partitions whose first records are gone, each with the time of the first one
            that is left; None if none is.
        holed: output partitions that have holes: records went out of their middle.
    """

    lanes: dict[str, Sight]
    ends: Frontier
    cut: dict[Source, int | None]
    holed: frozenset[Source]

    def certain_from(self, sight: Sight, outputs: Iterable[Source]) -> int | None:
        """Return the input offset from which a missing output is really missing; None: nowhere.

        SUBTLE: what is gone was sent before the first record that is left, so it was minted before.
        Whatever was minted after that has all its copies behind the cut. The first record that is
        left says nothing by itself: it may be a late copy by a process that was overtaken, whose
        inputs' successors lie before the cut. Clocks of two machines are compared here, so there
        is a margin; on its wrong side inputs are taken for done, not made twice.
        """
        certain = 0
        for output in outputs:
            if output in self.holed:
                return None
            if output in self.cut:
                cut_ms = self.cut[output]
                first = None if cut_ms is None else sight.minted_after(cut_ms + MARGIN_MS)
                if first is None:
                    return None
                certain = max(certain, first)
        return certain


def look(
    cluster: Cluster,
    topics: Iterable[Topic],
    lanes: Mapping[str, tuple[Source, frozenset[TopicId]]],
    told: TopicId | None = None,
) -> Sights:
    """Read topics and return what they show of lanes.

    Args:
        cluster: where they are.
        topics: output topics.
        lanes: by name, each with the partition it reads and the topics it writes.
        told: the topic of duplicates: what is there says that a seal was, and nothing of inputs
            that took effect. A repeat may have been sent, and not yet the output of the first one.
    """
    found: dict[str, Sight] = {}
    ends: list[tuple[Source, int]] = []
    cut: dict[Source, int | None] = {}
    holed: set[Source] = set()
    for topic in topics:
        bounds = cluster.bounds(topic)
        counts = dict.fromkeys(topic.sources, 0)
        begun: dict[Source, int] = {}
        for batch in cluster.read(topic, bounds.low, bounds.high):
            counts[batch.source] += len(batch)
            begun.setdefault(batch.source, int(batch.timestamps_ms[0]))
            _take(found, lanes, batch, effects=topic.id != told)
        low = dict(bounds.low)
        for source, end in bounds.high:
            ends.append((source, end))
            begin = low.get(source, 0)
            if begin > 0:
                cut[source] = begun.get(source)
            if counts[source] < end - begin:
                holed.add(source)
    return Sights(found, Frontier.of(ends), cut, frozenset(holed))


def _take(
    found: dict[str, Sight],
    lanes: Mapping[str, tuple[Source, frozenset[TopicId]]],
    batch: Batch,
    *,
    effects: bool,
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
            parents = parents if effects else _NONE
            sight.add(mark.incarnation, mark.seq, mark.minted_at_ms, parents)


def _own(headers: Headers | None) -> bytes | None:
    """Return the last header of our name."""
    return next((value for name, value in reversed(headers or ()) if name == NAME), None)
