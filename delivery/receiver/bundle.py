"""A bundle in the hands of a user: fresh records of one partition, to be sealed with their effect.

What it is: `Bundle`, the value that a receiver's loop yields.
What it must not know: Kafka, which lanes there are besides.

Invariants:
    It holds fresh records only: no repeat, no remnant.
    It is sealed once, with its effect (`once`) or after it (`done`), or not at all; what was not
    sealed comes again.
    A lost race is no error: the effect is rolled back, and the loop goes on behind the winner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dedup.errors import InvalidUsage
from delivery.arrow import SCHEMA, record_batch
from delivery.host.adapters import file_of
from delivery.points import At, nowhere
from delivery.receiver.keeping import Keeping, Place
from delivery.receiver.lane import ReceiverLane
from delivery.receiver.points import BUNDLE_READY, COMMITTED, EFFECT_WRITTEN
from delivery.records import Record
from delivery.sinks import Transaction

__all__ = ["Bundle"]


class Bundle:
    """Fresh records of one partition.

    Attributes:
        topic: which they are of.
        partition: which of its partitions.
    """

    def __init__(self, lane: ReceiverLane, keeping: Keeping, at: At = nowhere) -> None:
        self.topic = lane.spec.reads
        self.partition = lane.source.partition
        self._picks = lane.fresh
        self._lane = lane
        #: The append it waits for.
        self.offered = lane.waiting
        self._keeping = keeping
        self._at = at
        #: Whether it was sealed, or its race was lost: then it is over.
        self.settled = False
        #: Whether the seal is this process's.
        self.won = False

    def __repr__(self) -> str:
        return f"Bundle({self.topic}[{self.partition}], {len(self)} records)"

    def __len__(self) -> int:
        return sum(len(pick.rows) for pick in self._picks)

    # Looking ----------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """Yield the records, in the order of their offsets. May be called again."""
        for pick in self._picks:
            yield from pick.batch.records(pick.rows)

    def table(self) -> pa.Table:
        """Return the records as an Arrow table: key, value, headers, timestamp, partition, offset."""
        batches = [record_batch(pick.batch, pick.rows) for pick in self._picks]
        return pa.Table.from_batches(batches, schema=SCHEMA)

    # Sealing ----------------------------------------------------------------------------------

    @contextmanager
    def once(self, connection: Any) -> Iterator[Transaction]:
        """Let the effect and the seal be one transaction of the user's SQLite database.

        Yields what to write with: `execute`, `executemany`, `cursor`. Its rows and the seal are
        committed together when the block ends. An exception in the block rolls back, and the
        bundle comes again if the loop goes on. If another process was quicker, all is rolled back
        too, and the loop goes on behind what that one sealed: the body of the loop may run more
        than once for a record, and has an effect once.

        Args:
            connection: of `sqlite3`, in no transaction, to the same file each time. An authorizer
                set on it is replaced.

        Raises:
            InvalidUsage: it cannot be used, or this group seals without a database.
            Unavailable: somebody else writes the database all the time; nothing was written.
        """
        self._check()
        keeping = self._keeping
        if keeping.place is Place.CATALOG:
            raise self._refusal(
                "bundle.once()", "this group was consumed with bundle.done(), and seals there"
            )
        if keeping.place is Place.UNDECIDED:
            keeping.decide_database(file_of(connection))
        assert keeping.ledger is not None, "a group in a database has a ledger"
        with keeping.ledger.within(connection) as transaction:
            self._at(BUNDLE_READY)
            yield transaction
            self._at(EFFECT_WRITTEN)
            self._seal()
        self._at(COMMITTED)

    def done(self) -> None:
        """Seal the bundle AFTER the user's own effect, which may then have happened twice.

        Between the effect and the seal a process may die: then the records come again, to whoever
        takes over. So the effect is at least once, and must be idempotent (an upsert by the
        record's id) to count once.

        Raises:
            InvalidUsage: this group seals in a database.
            DeliveryError: the lane cannot go on.
        """
        self._check()
        if self._keeping.place is Place.DATABASE:
            raise self._refusal(
                "bundle.done()", "this group was consumed with bundle.once(), and seals there"
            )
        if self._keeping.place is Place.UNDECIDED:
            self._keeping.decide_catalog()
        self._at(EFFECT_WRITTEN)
        self._seal()

    # Inside -----------------------------------------------------------------------------------

    def _seal(self) -> None:
        self.won = self._lane.seal()
        self.settled = True

    def _check(self) -> None:
        if self.settled or self._lane.waiting is not self.offered:
            raise self._refusal("seal a bundle", "it was sealed already, or its loop has gone on")

    def _refusal(self, op: str, why: str) -> InvalidUsage:
        return InvalidUsage(
            op,
            f"{self.topic}[{self.partition}]",
            f"{why}; nothing was sealed: seal each bundle once, in the loop that yields it, and "
            "consume a group always in the same way",
        )
