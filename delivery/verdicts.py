"""What became of the records of a bundle, as columns.

What it is: the fresh rows of each batch with their ids, what was dropped and why, and the parts of
the segment that sealing them makes.
What it must not know: how a verdict is found.

Invariants:
    Fresh ids stand in the order of the records, each once.
    Every record read is fresh, or in `dropped`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Ids, Places, order, to_raw
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Run
from dedup.formats.segment import Bucket, Origin, Part
from dedup.model import IDENTITY_BYTES, Counts, ReadSeq, RecordId, Source
from delivery.batch import Batch, taken
from delivery.protocol.senders import Mark
from delivery.repeats import Repeat

#: In place of a bucket: the id is its publisher's, and its bucket is known when it is sealed.
EXTERNAL = -1

_NO_IDS: Ids = np.empty((0, 2), dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A repeat whose payload is not that of the record it repeats."""

    source: Source
    offset: int
    id: bytes

    def error(self, lane: str) -> InvalidUsage:
        """Return the error of a lane that is to stop at it."""
        return InvalidUsage(
            "take a repeat for one",
            f"{lane}: offset {self.offset} of partition {self.source.partition}",
            f"its id {self.id.hex()} was seen before with another payload, and the stage is to "
            "stop at that; nothing of its bundle was sealed or sent, and whoever starts it again "
            "stops here again: let the publisher give different records different ids, and say "
            'conflicts="count" to go past this one, which then takes no effect',
        )


@dataclass(frozen=True, slots=True)
class Pick:
    """The fresh rows of one batch."""

    batch: Batch
    rows: Places
    #: By row, why it is a dead letter that user code never sees: it has no name, no time that could
    #: be told, or one at which it may be a repeat.
    letters: Mapping[int, InvalidUsage] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Verdicts:
    """What became of the records of a bundle."""

    picks: list[Pick] = field(default_factory=list)
    #: Every id this bundle decides, whether or not its index has a bucket yet.
    ids: Ids = field(default_factory=lambda: _NO_IDS)
    buckets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Mark and topic of whoever sent internal records; `mark_of` points here, or is -1.
    marks: list[tuple[Mark, Source]] = field(default_factory=list)
    mark_of: Places = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    #: Of the payloads of all fresh records, or of none.
    digests: npt.NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))
    dropped: list[Run] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    #: What was dropped, record by record, where the stage asks for it.
    repeats: list[Repeat] = field(default_factory=list)
    learned: tuple[ReadSeq, ...] = ()
    #: What lane time may be once this is sealed; 0: no later than before.
    time_ms: int = 0
    #: No publisher named one of these records later than this, as far as that is known: behind
    #: re-keying, or where a time is trusted.
    named_ms: int = 0
    read: int = 0
    duplicate: int = 0
    remnant: int = 0
    abandoned: int = 0
    conflict: int = 0
    #: Records that lack the name that the stage was told of.
    unnamed: int = 0

    @property
    def counts(self) -> Counts:
        """The verdicts, added up."""
        return Counts(
            read=self.read,
            fresh=len(self.ids),
            duplicate=self.duplicate,
            remnant=self.remnant,
            abandoned=self.abandoned,
            conflict=self.conflict,
            unnamed=self.unnamed,
        )

    def add(
        self,
        pick: Pick,
        *,
        ids: Ids,
        buckets: npt.NDArray[np.int64],
        marks: Sequence[Mark],
        mark_of: Places,
        digests: npt.NDArray[np.uint16],
    ) -> None:
        """Add the fresh rows of a batch."""
        if not len(pick.rows):
            return
        source = pick.batch.source
        self.picks.append(pick)
        if len(self.picks) == 1:
            self.ids, self.buckets, self.mark_of, self.digests = ids, buckets, mark_of, digests
            self.marks = [(mark, source) for mark in marks]
            return
        shifted = np.where(mark_of < 0, mark_of, mark_of + len(self.marks))
        self.ids = np.concatenate([self.ids, ids])
        self.buckets = np.concatenate([self.buckets, buckets])
        self.mark_of = np.concatenate([self.mark_of, shifted])
        self.digests = np.concatenate([self.digests, digests])
        self.marks += [(mark, source) for mark in marks]

    def raw_ids(self) -> Iterator[RecordId]:
        """Yield the fresh ids one by one."""
        raw = to_raw(self.ids)
        return (
            RecordId(raw[at : at + IDENTITY_BYTES]) for at in range(0, len(raw), IDENTITY_BYTES)
        )

    def parts(self, lane_time_ms: int) -> tuple[Part, ...]:
        """Return the ids by bucket, once the lane time of the seal is known.

        An external id goes into the bucket of the lane time at its seal, never of its own
        timestamp: that is the publisher's, and may be anything. Behind re-keying lane time waits
        for the slowest partition, and the publisher's window begins at the progress of its own; a
        time that is trusted may be ahead of lane time, and is not forgotten before it is too late.
        """
        if not len(self.ids):
            return ()
        external = Bucket.at(Origin.EXTERNAL, max(lane_time_ms, self.named_ms))
        if not self.marks:
            return (self._part(external, np.arange(len(self.ids))),)
        parts = []
        for number in np.unique(self.buckets).tolist():
            rows = np.flatnonzero(self.buckets == number)
            bucket = external if number == EXTERNAL else Bucket(Origin.INTERNAL, number)
            parts.append(self._part(bucket, rows))
        return tuple(sorted(parts, key=lambda part: part.bucket))

    def _part(self, bucket: Bucket, rows: Places) -> Part:
        ids = self.ids.take(rows, axis=0)
        found = order(ids)
        seen: tuple[ReadSeq, ...] = ()
        digests = b""
        if bucket.origin is Origin.INTERNAL:
            seen = self._seen(rows)
        elif len(self.digests):
            digests = self.digests[rows][found].astype("<u2").tobytes()
        return Part(bucket, to_raw(ids.take(found, axis=0)), seen, digests=digests)

    def _seen(self, rows: Places) -> tuple[ReadSeq, ...]:
        """Return per sender the highest seq of these rows."""
        highest: dict[tuple[str, bytes, bytes], ReadSeq] = {}
        for number in np.unique(self.mark_of[rows]).tolist():
            mark, source = self.marks[number]
            read = ReadSeq(mark.sender, mark.incarnation, source.topic, mark.seq)
            if read.key not in highest or highest[read.key].seq < read.seq:
                highest[read.key] = read
        return tuple(sorted(highest.values()))


def payload_digests(batch: Batch, rows: Places) -> npt.NDArray[np.uint16]:
    """Return sixteen bits of each payload: what repeats of one id are compared by.

    The payload is the value: keys and headers may change from one try of a publisher to the next.
    """
    payloads = [value or b"" for value in taken(batch.values, rows)]
    found = np.fromiter(map(xxhash.xxh3_64_intdigest, payloads), np.uint64, len(rows))
    return found.astype(np.uint16)
