"""Verdicts: what is fresh in a bundle, what is not and why, and which ids sealing it decides.

What it is: the one place that brings marks, senders' rows, pending bundles and the id index
together. It reads the catalog and writes nothing.
What it must not know: user code, outputs, how a bundle is stored.

Invariants:
    A record is asked for in this order: mark, index, pending bundles, its own bundle. The first in
    offset order wins.
    An index hit is a duplicate because the index is exact; an engine that may be wrong asks the
    segments first.
    A sender's row is read again whenever it is older than what a record claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.formats.segment import Bucket, Origin, Part, raw_ids
from dedup.ids import named, positional
from dedup.index import ExactIndex
from dedup.model import Counts, Frontier, Head, Incarnation, LaneRow, ReadSeq, RecordId, TopicId
from delivery.header import NAME, Header, decode_header
from delivery.protocol.senders import Mark, Standing, learned, standing
from delivery.records import Record

#: Returns the bytes by which a record's publisher names it, or None where only its place does.
IdFrom = Callable[[Record], bytes | None]


@dataclass(slots=True, kw_only=True)
class Verdicts:
    """What became of the records of a bundle."""

    fresh: list[tuple[Record, RecordId]] = field(default_factory=list)
    #: Every id this bundle decides, whether or not its index has a bucket yet.
    ids: set[RecordId] = field(default_factory=set)
    marks: dict[RecordId, Mark] = field(default_factory=dict)
    learned: tuple[ReadSeq, ...] = ()
    read: int = 0
    duplicate: int = 0
    remnant: int = 0
    abandoned: int = 0

    @property
    def counts(self) -> Counts:
        """The verdicts, added up."""
        return Counts(
            read=self.read,
            fresh=len(self.fresh),
            duplicate=self.duplicate,
            remnant=self.remnant,
            abandoned=self.abandoned,
        )

    def parts(self, lane_time_ms: int) -> tuple[Part, ...]:
        """Return the ids by bucket, once the lane time of the seal is known.

        An external id goes into the bucket of the lane time at its seal, never of its own
        timestamp: that is the publisher's, and may be anything.
        """
        ids: dict[Bucket, list[RecordId]] = {}
        seen: dict[Bucket, dict[tuple[str, Incarnation, TopicId], int]] = {}
        for record, record_id in self.fresh:
            mark = self.marks.get(record_id)
            if mark is None:
                bucket = Bucket.at(Origin.EXTERNAL, lane_time_ms)
            else:
                bucket = Bucket.at(Origin.INTERNAL, mark.minted_at_ms)
                key = (mark.sender, mark.incarnation, record.source.topic)
                highest = seen.setdefault(bucket, {})
                highest[key] = max(mark.seq, highest.get(key, -1))
            ids.setdefault(bucket, []).append(record_id)
        return tuple(
            Part(
                bucket,
                raw_ids(ids[bucket]),
                tuple(sorted(ReadSeq(*key, seq) for key, seq in seen.get(bucket, {}).items())),
            )
            for bucket in sorted(ids)
        )


class Judge:
    """Gives verdicts for one lane.

    Args:
        catalog: where senders' rows are read.
        index: the ids this lane has decided.
        id_from: how a publisher names its records.
        senders: the lanes that write what this lane reads.
        rows: senders' rows read before; a cache, asked again whenever a record claims more.
    """

    def __init__(
        self,
        catalog: Catalog,
        index: ExactIndex,
        id_from: IdFrom,
        senders: Callable[[], Iterable[str]],
        rows: dict[str, LaneRow] | None = None,
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._id_from = id_from
        self._senders = senders
        self._rows = rows if rows is not None else {}

    def forget_senders(self) -> None:
        """Read every sender's row anew: this lane lost a race or begins again."""
        self._rows.clear()

    def judge(
        self,
        records: Sequence[Record],
        end: Frontier,
        head: Head,
        pending: Sequence[set[RecordId]],
    ) -> Verdicts:
        """Return the verdicts for records in offset order.

        Args:
            records: what was read, already cut below the lane's frontier.
            end: the end of the planned range; what sealing it proves is learned.
            head: the sealed head to judge against. Read seqs count only from here.
            pending: the ids of this process's own bundles that are not sealed yet.
        """
        self._index.catch_up(head)
        verdicts = Verdicts(read=len(records))
        reads = {read.key: read.seq for read in head.read_seqs}
        for record in records:
            header = self._header(record)
            if header is None:
                record_id, mark = self._external_id(record), None
            else:
                found = self._standing(record, header, reads)
                if found is Standing.REMNANT:
                    verdicts.remnant += 1
                    continue
                if found is Standing.ABANDONED:
                    verdicts.abandoned += 1
                    continue
                genuine = found is not Standing.EXTERNAL
                record_id = header.id if genuine else self._external_id(record)
                mark = header.mark if found is Standing.INTERNAL else None
            if self._decided(record_id, verdicts.ids, pending):
                verdicts.duplicate += 1
                continue
            verdicts.fresh.append((record, record_id))
            verdicts.ids.add(record_id)
            if mark is not None:
                verdicts.marks[record_id] = mark
        verdicts.learned = tuple(self._learned(head.frontier.merged(end)))
        return verdicts

    def _decided(
        self, record_id: RecordId, own: set[RecordId], pending: Sequence[set[RecordId]]
    ) -> bool:
        if record_id in own or any(record_id in ids for ids in pending):
            return True
        return self._index.holds(record_id)

    def _header(self, record: Record) -> Header | None:
        value = record.header(NAME)
        return None if value is None else decode_header(value)

    def _external_id(self, record: Record) -> RecordId:
        try:
            name = self._id_from(record)
            return positional(record.source, record.offset) if name is None else named(name)
        except Exception as error:
            raise InvalidUsage(
                "take the id out of a record",
                f"offset {record.offset} of partition {record.source.partition}",
                f"id_from failed ({type(error).__name__}: {error}); nothing was sealed: let it "
                "return None for a record that nothing but its place names",
            ) from error

    def _standing(
        self,
        record: Record,
        header: Header,
        reads: dict[tuple[str, Incarnation, TopicId], int],
    ) -> Standing:
        sender, topic = header.mark.sender, record.source.topic
        known = self._rows.get(sender)
        found = standing(header.mark, known, topic, reads, fresh=False)
        if found is Standing.REREAD:
            row = self._read(sender)
            found = standing(header.mark, row, topic, reads, fresh=True)
        if found is Standing.STRANGER:
            raise InvalidUsage(
                "read a record with a delivery header",
                f"offset {record.offset} of partition {record.source.partition}",
                f"its sender {sender} is not in this catalog; nothing was sealed: open the catalog "
                'that the sender uses, or say id_from="delivery" to take its id as a foreign one',
            )
        return found

    def _read(self, sender: str) -> LaneRow | None:
        row = self._catalog.load(sender)
        if row is None:
            self._rows.pop(sender, None)
        else:
            self._rows[sender] = row
        return row

    def _learned(self, frontier: Frontier) -> Iterable[ReadSeq]:
        for sender in self._senders():
            row = self._read(sender)
            if row is not None:
                yield from learned(sender, row, frontier)
