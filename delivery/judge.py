"""Verdicts: what is fresh in a bundle, what is not and why, and which ids sealing it decides.

What it is: the one place that brings marks, senders' rows, pending bundles and the id index
together, a column at a time. It reads the catalog and writes nothing.
What it must not know: user code, outputs, how a bundle is stored, how ids are looked up.

Invariants:
    A record is asked for in this order: mark, index, pending bundles, its own bundle. The first in
    offset order wins.
    An index never says "decided" of an id that is not, nor the other way round.
    What is fresh by all of that is asked for its time last, where the stage trusts one.
    A sender's row is read again whenever it is older than what a record claims.
    Once a record shows that the topic is re-keyed, no timestamp on it moves lane time: they say when
    it was sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places, first_places, firsts
from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Verdict, runs_of
from dedup.formats.segment import BUCKET_MS, Part
from dedup.ids import named_many, positional_many
from dedup.model import Frontier, Head, Incarnation, LaneRow, ReadSeq, Seal, TopicId
from delivery.batch import Alike, Batch
from delivery.header import NAME, decode_headers
from delivery.lateness import Trust
from delivery.naming import Foreign, IdFrom, names_of, says_where
from delivery.ports import Log
from delivery.protocol.senders import Horizon, Mark, Standing, learned, standing
from delivery.records import Headers
from delivery.repeats import repeats_of
from delivery.verdicts import EXTERNAL, Conflict, Pick, Verdicts, payload_digests

#: Conflicts of a bundle that are kept for a message; all of them are counted.
CONFLICTS_SHOWN = 8

_FRESH = 0
_DROPS = {Standing.REMNANT: Verdict.REMNANT, Standing.ABANDONED: Verdict.ABANDONED}
#: What is in some topics just now; None: there is no knowing.
Logs = Callable[[Iterable[str]], Log | None]
_Reads = Mapping[tuple[str, Incarnation, TopicId], int]


class Index(Protocol):
    """The ids a lane has decided, exact for one head of it."""

    def catch_up(self, head: Head) -> None:
        """Make the index exact for `head`."""

    def took(self, seal: Seal, parts: Sequence[Part]) -> bool:
        """Take the ids of a seal that this process has won; False if they are to be read instead."""

    def decided(self, ids: Ids, buckets: npt.NDArray[np.int64]) -> Mask:
        """Tell of each id whether it was decided; `buckets` are internal ones, or EXTERNAL."""

    def digests_of(self, ids: Ids) -> tuple[Mask, npt.NDArray[np.uint16]]:
        """Return which of these external ids have a payload digest, and the digests."""

    def first_seen(self, ids: Ids) -> Sequence[tuple[Incarnation, int] | None]:
        """Return of each id incarnation and seq of the seal that decided it, if that is known."""


@dataclass(slots=True)
class Memory:
    """What a judge remembers of senders between bundles: all of it can be found out again."""

    #: Their rows; asked again whenever a record claims more.
    rows: dict[str, LaneRow] = field(default_factory=dict)
    #: Whether what the lane reads was re-keyed, and how far in time that has come.
    rekeyed: bool = False
    horizon: Horizon = field(default_factory=Horizon)


class Judge:
    """Gives verdicts for one lane.

    Args:
        catalog: where senders' rows are read.
        index: the ids this lane has decided.
        id_from: how a publisher names its records.
        senders: the lanes that write what this lane reads.
        memory: what an earlier judge of this lane remembered.
        logs: what is in topics just now; without it lane time stands still behind re-keying.
        payloads: whether repeats are compared with what they repeat.
        letters: whether dead letters take a record that cannot be named; it stops the lane else.
        repeats: whether records that take no effect are told, each with where it was first seen.
        trust: the time that records are trusted to say; it needs `letters`.
    """

    def __init__(
        self,
        catalog: Catalog,
        index: Index,
        id_from: IdFrom,
        senders: Callable[[], Iterable[str]],
        memory: Memory | None = None,
        *,
        logs: Logs | None = None,
        payloads: bool = False,
        letters: bool = False,
        repeats: bool = False,
        trust: Trust | None = None,
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._id_from = id_from
        self._senders = senders
        self._memory = memory if memory is not None else Memory()
        self._rows = self._memory.rows
        self._logs = logs
        self._payloads = payloads
        self._letters = letters
        self._repeats = repeats
        self._trust = trust

    def forget_senders(self) -> None:
        """Read every sender's row anew: this lane lost a race or begins again."""
        self._rows.clear()

    def took(self, seal: Seal, parts: Sequence[Part]) -> None:
        """Take over the ids of a seal that this process won, instead of reading them back."""
        self._index.took(seal, parts)

    def judge(
        self,
        batches: Sequence[Batch],
        end: Frontier,
        head: Head,
        pending: Sequence[Verdicts],
        now_ms: int = 0,
    ) -> Verdicts:
        """Return the verdicts for records in offset order.

        Args:
            batches: what was read, already cut below the lane's frontier.
            end: the end of the planned range; what sealing it proves is learned.
            head: the sealed head to judge against. Read seqs count only from here.
            pending: the verdicts of this process's own bundles that are not sealed yet.
            now_ms: the clock, for a stage that trusts a time.
        """
        self._index.catch_up(head)
        reads = {read.key: read.seq for read in head.read_seqs}
        sheets = [_Sheet(batch) for batch in batches]
        verdicts = Verdicts(read=sum(map(len, batches)))
        for sheet in sheets:
            self._mark(sheet, reads, verdicts)
        candidates = [sheet for sheet in sheets if len(sheet.rows)]
        if candidates:
            self._drop_decided(candidates, pending, verdicts)
        if self._trust is not None:
            self._trust.put_aside(candidates, head, pending, now_ms, verdicts)
        if self._repeats:
            before = [held.ids for held in pending]
            verdicts.repeats = list(repeats_of(sheets, before, head, self._index))
        for sheet in sheets:
            sheet.add_to(verdicts)
        sealed = head.frontier.merged(end)
        verdicts.learned = tuple(self._learned(sealed))
        if self._memory.rekeyed:
            verdicts.time_ms = self._memory.horizon.time_ms(sealed)
        elif self._trust is None:
            verdicts.time_ms = max((int(one.timestamps_ms.max()) for one in batches), default=0)
        return verdicts

    # Marks ------------------------------------------------------------------------------------

    def _mark(self, sheet: _Sheet, reads: _Reads, verdicts: Verdicts) -> None:
        """Judge the records of a batch by their marks, and name those that are left."""
        batch = sheet.batch
        columns = decode_headers(_owns(batch.headers))
        for number, mark in enumerate(columns.marks):
            rows = np.flatnonzero(columns.mark_of == number)
            verdict = self._standing(batch, mark, int(rows[0]), reads)
            if verdict is Standing.KEPT:
                sender = self._rows[mark.sender]
                verdicts.named_ms = max(verdicts.named_ms, sender.head.lane_time_ms)
            self._memory.rekeyed |= mark.kept and verdict in (Standing.KEPT, Standing.REMNANT)
            sheet.ids[rows] = columns.ids[rows]
            if verdict in _DROPS:
                sheet.verdicts[rows] = _DROPS[verdict]
            elif verdict is not Standing.EXTERNAL:
                sheet.named[rows] = True
                if verdict is Standing.INTERNAL:
                    sheet.buckets[rows] = mark.minted_at_ms // BUCKET_MS
                    sheet.mark_of[rows] = len(sheet.marks)
                    sheet.marks.append(mark)
        unnamed = np.flatnonzero(~sheet.named & (sheet.verdicts == _FRESH))
        if len(unnamed):
            sheet.ids[unnamed] = self._external_ids(sheet, unnamed, verdicts)
        sheet.rows = np.flatnonzero(sheet.verdicts == _FRESH)

    def _external_ids(self, sheet: _Sheet, rows: Places, verdicts: Verdicts) -> Ids:
        batch = sheet.batch
        names = names_of(self._id_from, batch, rows, sheet.letters if self._letters else None)
        known = [name for name in names if name is not None]
        if len(known) == len(names):
            return named_many(known)
        if says_where(self._id_from):
            verdicts.unnamed += len(names) - len(known) - len(sheet.letters)
        ids: Ids = positional_many(batch.source, batch.offsets[rows])
        if known:
            ids[np.array([name is not None for name in names])] = named_many(known)
        return ids

    def _standing(self, batch: Batch, mark: Mark, first: int, reads: _Reads) -> Standing:
        sender, topic = mark.sender, batch.source.topic
        known = self._rows.get(sender)
        found = standing(mark, known, topic, reads, fresh=False)
        if found is Standing.REREAD:
            row = self._read(sender)
            found = standing(mark, row, topic, reads, fresh=True)
        if found is Standing.STRANGER and isinstance(self._id_from, Foreign):
            return Standing.EXTERNAL
        if found is Standing.STRANGER:
            raise InvalidUsage(
                "read a record with a delivery header",
                f"offset {batch.offsets[first]} of partition {batch.source.partition}",
                f"its sender {sender} is not in this catalog; nothing was sealed: open the catalog "
                'that the sender uses, or say id_from="delivery" to take its id as a foreign one',
            )
        return found

    # Ids --------------------------------------------------------------------------------------

    def _drop_decided(
        self, sheets: Sequence[_Sheet], pending: Sequence[Verdicts], verdicts: Verdicts
    ) -> None:
        """Mark as duplicates what was decided, is about to be, or stands further up."""
        # `take` gathers rows of two words in a tenth of the time that indexing does.
        ids = np.concatenate([sheet.ids.take(sheet.rows, axis=0) for sheet in sheets])
        buckets = np.concatenate([sheet.buckets[sheet.rows] for sheet in sheets])
        decided = self._index.decided(ids, buckets)
        # Pending bundles and this one are one list: whoever comes first in it wins.
        before = [held.ids for held in pending]
        listed = np.concatenate([*before, ids])
        repeated = ~firsts(listed)[len(listed) - len(ids) :]
        digests = np.zeros(0, dtype=np.uint16)
        if self._payloads:
            digests = np.concatenate([payload_digests(sheet.batch, sheet.rows) for sheet in sheets])
            differ = np.zeros(len(ids), dtype=np.bool_)
            external = buckets == EXTERNAL
            asked = np.flatnonzero(decided & external)
            if len(asked):
                known, stored = self._index.digests_of(ids[asked])
                differ[asked] = known & (stored != digests[asked])
            if (repeated & external).any():
                every = np.concatenate([*(held.digests for held in pending), digests])
                first = first_places(listed)[len(listed) - len(ids) :]
                differ |= repeated & ~decided & external & (every[first] != digests)
            for row in np.flatnonzero(differ).tolist():
                verdicts.conflict += 1
                if len(verdicts.conflicts) < CONFLICTS_SHOWN:
                    verdicts.conflicts.append(_conflict(sheets, row, ids))
        place = 0
        for sheet in sheets:
            part = slice(place, place + len(sheet.rows))
            drop = decided[part] | repeated[part]
            sheet.verdicts[sheet.rows[drop]] = Verdict.DUPLICATE
            sheet.digests = digests[part][~drop] if self._payloads else digests
            sheet.rows = sheet.rows[~drop]
            place = part.stop

    # Senders ----------------------------------------------------------------------------------

    def _read(self, sender: str) -> LaneRow | None:
        row = self._catalog.load(sender)
        if row is None:
            self._rows.pop(sender, None)
        else:
            self._rows[sender] = row
        return row

    def _learned(self, frontier: Frontier) -> Iterable[ReadSeq]:
        rows = {sender: row for sender in self._senders() if (row := self._read(sender))}
        if rows and self._memory.rekeyed and self._logs is not None:
            self._look(rows, self._logs, frontier)
        for sender, row in rows.items():
            yield from learned(sender, row, frontier)

    def _look(self, rows: Mapping[str, LaneRow], logs: Logs, frontier: Frontier) -> None:
        """Find out how far in time what is re-keyed has come."""
        horizon = self._memory.horizon
        times = {}
        for sender, row in rows.items():
            head, seq = row.head, row.ack.seq
            if seq == head.ref.seq:
                times[sender] = head.lane_time_ms
            elif not horizon.awaits(sender, frontier):
                seal = self._catalog.seal(sender, head.incarnation_of(seq), seq)
                if seal is not None:
                    times[sender] = seal.lane_time_ms
        log = logs(sorted({name for row in rows.values() for name, _ in row.head.topics}))
        if log is not None:
            self._memory.horizon = horizon.looked(rows, times, log.low, log.high, frontier)


class _Sheet:
    """What is being found out about the records of one batch."""

    __slots__ = (
        "batch",
        "buckets",
        "digests",
        "ids",
        "letters",
        "mark_of",
        "marks",
        "named",
        "rows",
        "verdicts",
    )

    def __init__(self, batch: Batch) -> None:
        count = len(batch)
        self.batch = batch
        self.ids: Ids = np.empty((count, 2), dtype=np.uint64)
        self.named = np.zeros(count, dtype=np.bool_)
        self.buckets = np.full(count, EXTERNAL, dtype=np.int64)
        self.verdicts = np.zeros(count, dtype=np.uint8)
        self.marks: list[Mark] = []
        self.mark_of = np.full(count, -1, dtype=np.intp)
        #: Rows that are fresh as far as is known.
        self.rows: Places = np.empty(0, dtype=np.intp)
        self.digests = np.zeros(0, dtype=np.uint16)
        #: By row, why it is a dead letter if it is fresh.
        self.letters: dict[int, InvalidUsage] = {}

    @property
    def dropped(self) -> Places:
        """Rows that take no effect."""
        return np.flatnonzero(self.verdicts)

    def verdict(self, row: int) -> Verdict:
        """Return why a row was dropped."""
        return Verdict(int(self.verdicts[row]))

    def add_to(self, verdicts: Verdicts) -> None:
        """Add what was found to the bundle's verdicts."""
        dropped = self.dropped
        if len(dropped):
            offsets, reasons = self.batch.offsets[dropped], self.verdicts[dropped]
            verdicts.duplicate += int((reasons == Verdict.DUPLICATE).sum())
            verdicts.remnant += int((reasons == Verdict.REMNANT).sum())
            verdicts.abandoned += int((reasons == Verdict.ABANDONED).sum())
            verdicts.dropped += runs_of(self.batch.source, offsets, reasons)
        verdicts.add(
            Pick(self.batch, self.rows, self.letters),
            ids=self.ids.take(self.rows, axis=0),
            buckets=self.buckets[self.rows],
            marks=self.marks,
            mark_of=self.mark_of[self.rows],
            digests=self.digests,
        )


def _owns(column: Sequence[Headers | None]) -> list[bytes | None]:
    """Return of each record the header of our name; nearly all topics have none, or all ours."""
    if isinstance(column, Alike):
        return list(column.values) if column.name == NAME else []
    if NAME not in map(itemgetter(0), chain.from_iterable(filter(None, column))):
        return []
    return [_own(headers) for headers in column]


def _own(headers: Sequence[tuple[str, bytes]] | None) -> bytes | None:
    """Return the last header of our name; ours is the last of all where nobody added any."""
    if not headers:
        return None
    if headers[-1][0] == NAME:
        return headers[-1][1]
    return next((value for name, value in reversed(headers) if name == NAME), None)


def _conflict(sheets: Sequence[_Sheet], row: int, ids: Ids) -> Conflict:
    place = row
    for sheet in sheets:
        if place < len(sheet.rows):
            offset = int(sheet.batch.offsets[sheet.rows[place]])
            return Conflict(sheet.batch.source, offset, ids[row].astype(">u8").tobytes())
        place -= len(sheet.rows)
    raise AssertionError("a row belongs to a sheet")
