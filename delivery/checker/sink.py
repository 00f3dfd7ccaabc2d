"""What left the pipeline, held against what the seals promise.

What it is: for one lane, its stored outputs, its acknowledgement and the records in its topics.
What it must not know: who emitted what, or how often.

Invariants:
    Nothing is in the sink that no seal promises, but records of abandoned histories.
    What is acknowledged is there, below the delivered offset of its partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dedup.model import RecordId, Seal, Source, TopicId
from delivery.checker.chunks import Promise, content_digest, mint, read_outputs
from delivery.checker.evidence import Kind, Span
from delivery.checker.inputs import Ledger
from delivery.checker.rows import Book, kept_until, owner
from delivery.checker.told import Told, tells
from delivery.checker.world import Seen, World
from delivery.header import NO_PARENT, Header

#: A record in one topic; a kept id may go to several.
_Key = tuple[TopicId, RecordId]


class Sink:
    """One lane's outputs."""

    def __init__(self, world: World, book: Book, ledger: Ledger, span: Span | None = None) -> None:
        self._world, self._book, self._ledger, self._span = world, book, ledger, span
        #: Per seal what it promises, where that is still stored.
        self._promises: dict[int, dict[_Key, Promise]] = {}
        self._copies: dict[_Key, list[Seen]] = defaultdict(list)
        #: Per seal whose rows are not stored the ids that its attempt can have minted, each with its
        #: edge and ordinal.
        self._minted: dict[int, dict[RecordId, tuple[int, int]]] = {}
        #: Per seal whose rows are not stored, because they are made again, their digest.
        self._recipes: dict[int, bytes] = {}
        #: Per input record the executions that records in the sink come from.
        self._versions: dict[tuple[int, ...], set[tuple[int, int, bool]]] = defaultdict(set)
        #: Per seal the records in the sink that claim it and that it may have promised.
        self._of_seal: dict[int, set[_Key]] = defaultdict(set)

    def check(self) -> None:
        """Say what is in the sink that should not be, and what is not there."""
        for seal in self._book.seals.values():
            rows = read_outputs(self._world.evidence.store, self._book, seal, self._world.findings)
            if isinstance(rows, bytes):
                self._recipes[seal.ref.seq] = rows
            elif rows is not None:
                self._check_rows(seal, rows)
        for seen, header in self._sent():
            self._check_sent(seen, header)
        for parent, versions in self._versions.items():
            if len(versions) > 1:
                text = f"seals {sorted({seq for seq, _, _ in versions})}"
                self._say(Kind.TWO_VERSIONS, f"input {parent[:2]}", text)
        for seq in self._recipes:
            self._check_remade(self._book.seals[seq])
        self._check_delivered()
        for seal in self._book.seals.values():
            if seal.ref.seq <= self._book.ack.seq:
                self._check_acknowledged(seal)

    # Stored -----------------------------------------------------------------------------------

    def _check_rows(self, seal: Seal, rows: Iterable[Promise]) -> None:
        writes, seq = self._book.head.writes, seal.ref.seq
        parents = self._ledger.parents.get(seq)
        places = {place for place, _ in parents or ()}
        promised = self._promises[seq] = {}
        told = Told(self._ledger, self._book.name, seq)
        for row in rows:
            subject = f"output {row.id.hex()} of seal {seq}"
            fits = row.edge < len(writes)
            if not fits or Source(writes[row.edge], row.partition) not in self._world.evidence.logs:
                text = f"edge {row.edge}, partition {row.partition}"
                self._say(Kind.TARGET, subject, text)
                continue
            promised[writes[row.edge], row.id] = row
            if parents is None or (row.parent == NO_PARENT and not row.kept):
                continue
            if row.parent not in places and told.tells(row):
                if why := told.wrong(row):
                    self._say(Kind.REPEAT, subject, why)
                continue
            # A kept id is that of its parent.
            if row.parent not in places or (row.kept and (row.parent, row.id) not in parents):
                self._say(Kind.PARENT, subject, f"partition and offset {row.parent}")
        if why := told.missing():
            self._say(Kind.REPEAT, f"outputs of seal {seq}", why)

    def _check_remade(self, seal: Seal) -> None:
        """Hold what is in the sink of a seal against the digest in its recipe, once all of it is."""
        seq, places = seal.ref.seq, self._minted.get(seal.ref.seq, {})
        rows = {}
        for key in self._of_seal[seq]:
            seen = self._copies[key][0]
            edge, ordinal = places[key[1]]
            header = seen.header
            assert header is not None, "it was sent by this lane"
            rows[ordinal] = Promise(
                edge=edge,
                partition=seen.source.partition,
                id=key[1],
                key=seen.record.key,
                value=seen.record.value,
                headers=seen.record.headers,
                parent=header.parent,
                kept=header.mark.kept,
            )
        if len(rows) < seal.outputs.rows:
            return  # what is acknowledged and not there is said elsewhere
        if content_digest([rows[ordinal] for ordinal in sorted(rows)]) != self._recipes[seq]:
            self._say(Kind.REMADE, f"outputs of seal {seq}", f"{len(rows)} records")
        parents = self._ledger.parents.get(seq)
        read = {place for place, _ in parents or ()}
        for row in rows.values():
            if parents is not None and row.parent not in read:
                self._say(Kind.PARENT, f"output {row.id.hex()} of seal {seq}", f"{row.parent}")

    # Sent -------------------------------------------------------------------------------------

    def _sent(self) -> list[tuple[Seen, Header]]:
        """Return the records in this lane's topics that name it as their sender."""
        return [
            (seen, seen.header)
            for topic in dict.fromkeys(self._book.head.writes)
            for source in self._world.partitions(topic)
            for seen in self._world.seen(source)
            if seen.header is not None
            and seen.header.mark.sender == self._book.name
            and seen.record.offset not in self._world.log(source).foreign
        ]

    def _check_sent(self, seen: Seen, header: Header) -> None:
        mark, head = header.mark, self._book.latest
        subject = f"record {header.id.hex()} at {seen.place}"
        last = kept_until(head, mark.incarnation)
        current = mark.incarnation == head.ref.incarnation
        if last is None and not self._world.evidence.restored:
            text = (
                "emitted by a lane of this name in another catalog, or in one that was lost: see "
                "whether the pipeline is also started elsewhere"
            )
            self._say(Kind.UNSEALED, subject, text)
            return
        if last is None or (mark.seq > last and not current):
            return  # abandoned: receivers drop it
        if mark.seq > last or owner(head, mark.seq) != mark.incarnation:
            self._say(Kind.UNSEALED, subject, f"seq {mark.seq}, sealed up to {last}")
            return
        if not self._is_asked(header, subject):
            return
        key = (seen.source.topic, header.id)
        promised = self._promised(mark.seq, key, header)
        if not promised:
            self._say(Kind.NOT_OF_SEAL, subject, f"seal {mark.seq}")
        if not tells(seen.record.headers, self._book.name):
            self._versions_of(header, promised=promised)
        if promised:
            self._of_seal[mark.seq].add(key)
            self._check_copy(seen, mark.seq, key, subject)
            self._copies[key].append(seen)

    def _is_asked(self, header: Header, subject: str) -> bool:
        """Tell whether a record is of a seal in question; one made of an input of those must be."""
        span, seq = self._span, header.mark.seq
        if span is None or span.first <= seq <= span.last:
            return True
        if len({source.topic for source, _ in self._book.latest.frontier}) == 1 and any(
            source.partition == header.parent[0]
            and (span.start.at(source) or 0) <= header.parent[1] < end
            for source, end in span.end
        ):
            text = f"of seal {seq}; what was read there is of {span.first} to {span.last}"
            self._say(Kind.TWO_VERSIONS, f"{subject}, input {header.parent}", text)
        return False

    def _promised(self, seq: int, key: _Key, header: Header) -> bool:
        """Tell whether a seal promises a record, as far as what is left of it can tell."""
        rows, seal = self._promises.get(seq), self._book.seals.get(seq)
        if rows is not None:
            return key in rows
        frontier = dict(self._book.head.frontier)
        if seal is None:
            return header.parent == NO_PARENT or any(
                source.partition == header.parent[0] and header.parent[1] < offset
                for source, offset in frontier.items()
            )
        if header.parent != NO_PARENT and not _within(seal, header.parent):
            return False
        if header.mark.minted_at_ms != seal.minted_at_ms:
            return False
        if header.mark.kept:
            parents = self._ledger.parents.get(seq)
            right = parents is None or (header.parent, header.id) in parents
            return right and seq not in self._recipes
        if seq not in self._minted:
            self._minted[seq] = {
                mint(seal.ref.attempt, edge, ordinal): (edge, ordinal)
                for edge in range(len(self._book.head.writes))
                for ordinal in range(seal.outputs.rows)
            }
        edge, _ = self._minted[seq].get(header.id, (None, 0))
        return edge is not None and self._book.head.writes[edge] == key[0]

    def _versions_of(self, header: Header, *, promised: bool) -> None:
        if header.parent == NO_PARENT:
            return
        # A parent is a place in the lane's one topic; where it reads several, the seal belongs to it.
        several = len({source.topic for source, _ in self._book.head.frontier}) > 1
        parent = (*header.parent, header.mark.seq) if several else header.parent
        self._versions[parent].add((header.mark.seq, header.mark.minted_at_ms, promised))

    def _check_copy(self, seen: Seen, seq: int, key: _Key, subject: str) -> None:
        rows, record = self._promises.get(seq), seen.record
        if rows is not None:
            row = rows[key]
            right = (row.partition, row.key, row.value, row.headers)
        elif self._copies[key]:
            first = self._copies[key][0]
            right = (
                first.source.partition,
                first.record.key,
                first.record.value,
                first.record.headers,
            )
        else:
            return
        if (seen.source.partition, record.key, record.value, record.headers) != right:
            self._say(Kind.PAYLOAD, subject, f"seal {seq}")

    # Acknowledged -----------------------------------------------------------------------------

    def _check_delivered(self) -> None:
        for source, offset in self._book.ack.delivered:
            end = self._world.log(source).end
            if offset > end or source.topic not in self._book.head.writes:
                text = f"delivered {offset}, the log ends at {end}"
                self._say(Kind.DELIVERED_BEYOND, f"partition {source.partition}", text)

    def _check_acknowledged(self, seal: Seal) -> None:
        seq, delivered = seal.ref.seq, dict(self._book.ack.delivered)
        rows = self._promises.get(seq)
        if rows is None:
            found = len(self._of_seal[seq])
            gone = seq <= self._book.collected or seq in self._recipes
            if found < seal.outputs.rows and gone:
                text = f"{found} of {seal.outputs.rows}"
                self._say(Kind.LOST, f"outputs of seal {seq}", text)
            for key in self._of_seal[seq] if seq in self._recipes else ():
                self._check_below(seal, key, delivered)
            return
        for key, row in rows.items():
            if self._copies[key]:
                self._check_below(seal, key, delivered)
            else:
                subject = f"output {row.id.hex()} of seal {seq}"
                self._say(Kind.LOST, subject, f"acknowledged up to {self._book.ack.seq}")

    def _check_below(self, seal: Seal, key: _Key, delivered: Mapping[Source, int]) -> None:
        """Demand that a record that is acknowledged lies below what was delivered."""
        copies = self._copies[key]
        first, behind = (
            min(seen.record.offset for seen in copies),
            delivered.get(copies[0].source, 0),
        )
        if first >= behind:
            subject = f"output {key[1].hex()} of seal {seal.ref.seq}"
            self._say(Kind.DELIVERED_LOW, subject, f"first at {first}, delivered {behind}")

    def _say(self, kind: Kind, subject: str, text: str) -> None:
        self._world.findings.add(kind, self._book.name, subject, text)


def _within(seal: Seal, parent: tuple[int, int]) -> bool:
    ends = dict(seal.end)
    return any(
        source.partition == parent[0] and start <= parent[1] < ends.get(source, 0)
        for source, start in seal.start
    )
