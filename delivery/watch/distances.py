"""How late publishers repeat themselves: from a repeat back to the record that it repeats.

What it is: `distances`, which looks some duplicates up, and `Distances`.
What it must not know: how records are named: every way is tried, and an id is 128 bits of a hash.

Invariants:
    A sample: some seals of each stage, some duplicates of each. What was sampled and what was found
    is said.
    A distance is measured as windows are, along the lane's own time; of an id that was merged it
    is known to ten minutes and said to be the longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.errors import DeliveryError
from dedup.formats.dropped import Verdict, decode_dropped
from dedup.formats.segment import BUCKET_MS, Part, decode_segment
from dedup.model import Frontier, Incarnation, Seal, Source
from delivery.header import NAME, decode_header
from delivery.operate.guessing import id_by, ways_of
from delivery.operate.logs import Cluster
from delivery.records import Record
from delivery.watch.rows import StageRows
from delivery.watch.tally import seals_of

__all__ = ["BOUNDS_MS", "LABELS", "Distances", "distances"]

#: Seals of a lane whose duplicates are looked up, and duplicates of each seal.
SEALS_TRIED = 24
REPEATS_TRIED = 40
#: Seals of a lane whose ids are looked in, the newest.
SEALS_MAX = 20_000

#: Upper bounds of the classes of distances, and what they are called; the last has no bound.
BOUNDS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
LABELS = ("1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "24 h", "more")

#: Of equal words the first, and the one behind the last.
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
_Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Distances:
    """What was found of one stage.

    Attributes:
        sampled: duplicates that were looked up; of the others the record or its original is gone.
        found_ms: the distances that were found, shortest first; 0: within one bundle.
        named_ms: those of records that publishers name: a window is for these. What a stage made is
            told from its repeats by other means.
        window_ms: the longest window that the stage's last seals say; 0: none does.
    """

    sampled: int = 0
    found_ms: list[int] = field(default_factory=list)
    named_ms: list[int] = field(default_factory=list)
    window_ms: int = 0

    @property
    def classes(self) -> list[int]:
        """How many fell into each class of `LABELS`."""
        counts = [0] * len(LABELS)
        for one in self.found_ms:
            counts[bisect_left(BOUNDS_MS, one)] += 1
        return counts

    @property
    def longest_ms(self) -> int | None:
        """The longest of those that publishers name; None: none was found."""
        return self.named_ms[-1] if self.named_ms else None


def distances(catalog: Catalog, cluster: Cluster, stage: StageRows) -> Distances:
    """Look some duplicates of a stage up in Kafka and in the ids of its lanes."""
    found = Distances(window_ms=stage.window_ms)
    for lane, row in stage.lanes.items():
        seals = list(seals_of(catalog, lane, row, max(1, row.head.ref.seq - SEALS_MAX + 1)))
        repeats = [seal for seal in seals if seal.counts.duplicate]
        step = max(1, len(repeats) // SEALS_TRIED)
        wanted: list[tuple[Seal, set[bytes], bool]] = []
        for seal in repeats[::-1][::step][:SEALS_TRIED]:
            wanted += [(seal, *one) for one in _repeated(catalog, cluster, lane, seal)]
        if wanted:
            found.sampled += len(wanted)
            for distance_ms, is_named in _look_up(catalog, lane, seals, wanted):
                found.found_ms.append(distance_ms)
                found.named_ms += [distance_ms] if is_named else []
    found.found_ms.sort()
    found.named_ms.sort()
    return found


def _repeated(
    catalog: Catalog, cluster: Cluster, lane: str, seal: Seal
) -> Iterator[tuple[set[bytes], bool]]:
    """Yield the ids that each of some duplicates of a seal may have, and whether a publisher names it."""
    spots: dict[Source, set[int]] = {}
    for chunk in catalog.get(Blob.DROPPED, lane, seal) or ():
        for run in decode_dropped(chunk, f"dropped offsets of {lane} seq {seal.ref.seq}"):
            room = REPEATS_TRIED - sum(map(len, spots.values()))
            if run.verdict is Verdict.DUPLICATE and room > 0:
                some = range(run.offset, run.offset + min(run.count, room))
                spots.setdefault(run.source, set()).update(some)
    for source, offsets in spots.items():
        topic = cluster.topics().get(source.topic)
        if topic is None:
            continue
        low = max(min(offsets), cluster.bounds(topic).low.at(source) or 0)
        span = (Frontier.of([(source, low)]), Frontier.of([(source, max(offsets) + 1)]))
        try:
            batches = list(cluster.read(topic, *span))
        except DeliveryError:
            continue  # what is gone meanwhile is not in the sample
        for batch in batches:
            rows = np.flatnonzero(np.isin(batch.offsets, list(offsets)))
            for record in batch.records(rows):
                yield _names(record)


def _names(record: Record) -> tuple[set[bytes], bool]:
    found = {bytes(name) for way in ways_of(record) if (name := id_by(way, record)) is not None}
    header = decode_header(record.header(NAME) or b"")
    if header is None:
        return found, True
    return found | {bytes(header.id)}, header.mark.kept


def _look_up(
    catalog: Catalog,
    lane: str,
    seals: Sequence[Seal],
    wanted: Sequence[tuple[Seal, set[bytes], bool]],
) -> Iterator[tuple[int, bool]]:
    """Yield how long after its original each of these was sealed, where that is known."""
    words, times = _decided(catalog, lane, seals)
    for seal, ids, is_named in wanted:
        asked, now_ms = _first_words(b"".join(sorted(ids))), _time_of(seal)
        spans = zip(*(np.searchsorted(words, asked, side) for side in _SIDES), strict=True)
        # The last by then: what came later than the window took effect, and is repeated itself.
        known = [at for low, high in spans for at in times[low:high].tolist() if at <= now_ms]
        if known:
            yield now_ms - max(known), is_named


def _decided(
    catalog: Catalog, lane: str, seals: Sequence[Seal]
) -> tuple[_Words, npt.NDArray[np.int64]]:
    """Return the first words of all ids of a lane, sorted, and when each was decided.

    Half of an id is enough to tell a few thousand of them from all others.
    """
    columns: list[tuple[_Words, int]] = []
    known = {(seal.ref.incarnation, seal.ref.seq): _time_of(seal) for seal in seals}
    for seal in seals:
        for chunk in catalog.get(Blob.SEGMENT, lane, seal) or ():
            for part in decode_segment(chunk, f"segment of {lane} seq {seal.ref.seq}"):
                columns += [(_first_words(part.ids), _time_of(seal))]
    listed = catalog.segment_list(lane)
    named = set() if listed is None else set(listed.slots)
    for slot in named:
        if (slot.incarnation, slot.seq) in known:
            continue
        for chunk in catalog.store.get(Blob.SEGMENT, slot):
            for part in decode_segment(chunk, segment_place(catalog, slot)):
                columns += _merged(part, known)
    if not columns:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    words = np.concatenate([words for words, _ in columns])
    times = np.repeat(
        np.array([time for _, time in columns], np.int64), [len(words) for words, _ in columns]
    )
    order = np.argsort(words, kind="stable")
    return words[order], times[order]


def _merged(
    part: Part, known: Mapping[tuple[Incarnation, int], int]
) -> Iterable[tuple[_Words, int]]:
    """Yield the ids of a segment whose seals may be gone, with the time of each."""
    begun = part.bucket.number * BUCKET_MS
    words = _first_words(part.ids)
    if not part.origins:
        yield words, begun
        return
    indexes = part.indexes()
    for number, origin in enumerate(part.origins):
        yield words[indexes == number], known.get(origin, begun)


def _first_words(ids: bytes) -> _Words:
    return np.frombuffer(ids, dtype=">u8")[::2].astype(np.uint64)


def _time_of(seal: Seal) -> int:
    """Return what windows are measured on; before any timestamp was seen, the seal's own time."""
    return seal.lane_time_ms or seal.minted_at_ms
