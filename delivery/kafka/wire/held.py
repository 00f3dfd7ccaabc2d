"""What a consumer holds of one partition: batches as they came, and how far they were handed out.

What it is: `Held`.
What it must not know: brokers, connections, other partitions.

Invariants:
    A batch is taken apart when somebody wants its records, and only then.
    Records of transactions that were given up, markers, and what lies before the position are never
    handed out; the position moves over them.
    What cannot be read is a failure, and everything before it is handed out first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from dedup.errors import Corrupt, DeliveryError, InvalidUsage
from dedup.model import Source
from delivery.batch import Batch, Bytes, joined
from delivery.kafka.port import Fetched, empty, unreadable
from delivery.kafka.wire.codecs import NoCodec
from delivery.kafka.wire.decoding import (
    BrokenBatch,
    Columns,
    OldFormat,
    RawBatch,
    aborts,
    decode,
    split,
)
from delivery.kafka.wire.protocol import FetchedPart, Part

__all__ = ["Held"]

_READ = "read a partition"


class Held:
    """One partition that is being read.

    Args:
        source: which.
        topic: the name of its topic.
        offset: where reading begins.
    """

    def __init__(self, source: Source, topic: str, offset: int) -> None:
        self.source = source
        self.topic = topic
        self.part = Part(source.topic, source.partition)
        self.name = f"{topic}[{source.partition}]"
        self.paused = False
        #: Before this moment it is not asked for.
        self.not_before = 0.0
        #: Since when brokers do not know it.
        self.unknown_since = 0.0
        #: Its last answer held nothing whole: brokers send a batch that is larger than what was asked
        #: for only of the partition that is asked for first.
        self.starved = False
        #: What the last handing out weighed: keys and values.
        self.handed_bytes = 0
        #: Which of the places this is that were read from, one after the other.
        self.turn = 0
        self.move(offset)

    def move(self, offset: int) -> None:
        """Go on at another offset; what is held is thrown away."""
        self.turn += 1
        self.position = self.next = offset
        self.failure: DeliveryError | None = None
        self._batches: deque[tuple[RawBatch, bool]] = deque()
        self._bytes = 0
        self._rest: _Rest | None = None

    def hungry(self, share: int, now: float) -> bool:
        """Tell whether more of it is to be asked for, where so many bytes are its share."""
        return (
            not self.paused
            and self.failure is None
            and self._bytes < share
            and now >= self.not_before
        )

    def take_in(self, said: FetchedPart) -> None:
        """Take what a broker said of it."""
        self.unknown_since = 0.0
        try:
            batches = list(split(said.records))
            counted = list(_committed(batches, said.aborted))
        except OldFormat as error:
            self.failure = InvalidUsage(
                _READ,
                f"{self.name} offset {error.offset}",
                "it is in the message format of before Kafka 0.11; nothing at or behind it was read: "
                'say client="confluent"',
            )
            return
        except BrokenBatch as error:
            self.failure = self._corrupt(error)
            return
        self.starved = len(said.records) > 0 and not batches
        for batch, wanted in counted:
            # Answers begin with whole batches, also where the offset asked for lies within one.
            if batch.last_offset >= self.next:
                self._batches.append((batch, wanted))
                self._bytes += len(batch.covered)
                self.next = batch.last_offset + 1

    def hand_out(self, rows: int, size: int) -> Fetched | None:
        """Return records in order, about so many and of so many bytes; None if there are none.

        At least one, if there is one.
        """
        self.handed_bytes = 0
        before, pieces = self.position, []
        while rows > 0 and self.handed_bytes < size and self._whole() is not None:
            rest = self._rest
            assert rest is not None, "records are there"
            if not rest.ended:
                batch, weight = rest.take(self.source, rows, size - self.handed_bytes)
                pieces.append(batch)
                rows -= len(batch)
                self.handed_bytes += weight
                self.position = int(batch.offsets[-1]) + 1
            if rest.ended:
                self._done(rest)
        if pieces:
            return Fetched(pieces[0] if len(pieces) == 1 else joined(pieces), self.position)
        return Fetched(empty(self.source), self.position) if self.position > before else None

    # Inside -----------------------------------------------------------------------------------

    def _whole(self) -> _Rest | None:
        """Take the next batch of which something is wanted apart, unless one is; None: no more."""
        while self._rest is None and self._batches and self.failure is None:
            batch, wanted = self._batches.popleft()
            if not wanted or batch.last_offset < self.position:
                self._bytes -= len(batch.covered)
                self.position = max(self.position, batch.last_offset + 1)
                continue
            try:
                columns = decode(batch)
            except NoCodec as error:
                self.failure = InvalidUsage(_READ, self.name, f"{error}; nothing was skipped")
            except BrokenBatch as error:
                self.failure = self._corrupt(error)
            else:
                self._rest = _Rest(batch, columns, self.position)
        return self._rest

    def _done(self, rest: _Rest) -> None:
        self._rest = None
        self._bytes -= len(rest.batch.covered)
        broken = rest.columns.unreadable
        if broken is None:
            self.position = max(self.position, rest.batch.last_offset + 1)
        elif broken >= self.position:
            self.position = broken
            self.failure = unreadable(f"{self.name} offset {broken}")

    def _corrupt(self, error: BrokenBatch) -> Corrupt:
        return Corrupt(
            _READ,
            f"{self.name} offset {error.offset}",
            f"{error}; nothing at or behind it was read: compare its replicas, and restore the log "
            "from one that is whole",
        )


class _Rest:
    """What is left of a batch that was taken apart."""

    def __init__(self, batch: RawBatch, columns: Columns, position: int) -> None:
        self.batch = batch
        self.columns = columns
        self._at = int(np.searchsorted(columns.offsets, position))

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self._at >= len(self.columns)

    def take(self, source: Source, rows: int, size: int) -> tuple[Batch, int]:
        """Return the next records, so many at most and about so many bytes, and what they weigh."""
        taken = self._cut(source, rows)
        weight = taken.nbytes
        if weight > size:
            weights = np.cumsum(_weights(taken.keys) + _weights(taken.values))
            taken = self._cut(source, int(np.searchsorted(weights, size)) + 1)
            weight = taken.nbytes
        self._at += len(taken)
        return taken, weight

    def _cut(self, source: Source, count: int) -> Batch:
        part = slice(self._at, self._at + count)
        whole = self._at == 0 and count >= len(self.columns)
        columns = self.columns
        return Batch(
            source,
            columns.offsets[part],
            columns.timestamps_ms[part],
            columns.keys if whole else columns.keys[part],
            columns.values if whole else columns.values[part],
            columns.headers if whole else columns.headers[part],
        )


def _weights(column: Sequence[Bytes]) -> npt.NDArray[np.int64]:
    lengths = (0 if one is None else len(one) for one in column)
    return np.fromiter(lengths, np.int64, len(column))


def _committed(
    batches: Sequence[RawBatch], aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[RawBatch, bool]]:
    """Yield batches, and whether their records count: those of given-up transactions do not.

    A producer's transaction is given up from the offset that the answer names up to its marker.
    """
    begun = deque(sorted(aborted, key=itemgetter(1)))
    gone: set[int] = set()
    for batch in batches:
        while begun and begun[0][1] <= batch.last_offset:
            gone.add(begun.popleft()[0])
        if batch.control:
            if aborts(batch):
                gone.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, not (batch.transactional and batch.producer_id in gone)
