"""Clean runs of the real runner in memory, and the ways to damage what they left.

What it is: `World`, `chained`, and helpers that change raw rows, stored chunks and logs.
What it must not know: what the checker calls any of it.

Invariants:
    A copy of a world shares nothing with it that changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from connectors.memory import MemoryReader
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob, RawAck
from dedup.formats.dropped import Run, Verdict, decode_dropped, dropped_chunks
from dedup.formats.lane import (
    decode_ack,
    decode_head,
    decode_seal,
    encode_ack,
    encode_head,
    encode_seal,
)
from dedup.formats.segment import Part, decode_segment, encode_segment
from dedup.ids import named, positional
from dedup.index import ExactIndex
from dedup.model import (
    Attempt,
    Frontier,
    HeadRef,
    Incarnation,
    Kept,
    ReadSeq,
    RecordId,
    Seal,
    Slot,
    Source,
)
from delivery.batch import Row, Rows, batches_of
from delivery.broker import MemoryBroker
from delivery.checker import Evidence, LaneInput, Log
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.judge import Judge
from delivery.outputs import Origin as Bundle
from delivery.outputs import content_digest, encode_outputs
from delivery.protocol import messages as m
from delivery.recipe import Recipe, encode_recipe
from delivery.records import Headers, Output, Record
from delivery.runner import LaneRunner
from delivery.stage import Function, Policy
from sinks.memory import MemoryEmitter

WINDOW_MS = 86_400_000
FIRST, LEFT, RIGHT = "p/a/in-0", "p/b/mid-0", "p/b/mid-1"


def id_from(record: Record) -> bytes | None:
    return record.header("id")


@dataclass
class World:
    """A broker and a catalog, and the real runner between them; time and chance are seeded."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    store: MemoryStore = field(default_factory=MemoryStore)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    now: int = 1_700_000_000_000

    def now_ms(self) -> int:
        self.now += 7
        return self.now

    def fresh(self) -> bytes:
        return self.random.randbytes(16)

    def back_off(self, losses: int) -> None:
        raise AssertionError(f"nobody races here, and yet {losses} were lost")

    def copy(self) -> World:
        return World(self.broker.copy(), MemoryStore(self.store.tables.copy()))

    def runner(self, lane: str, reads: Sequence[Source], writes: str, senders=(), *, keep=False):
        catalog = Catalog(self.store)
        topic = next(n for n, i in self.broker.names.items() if i == reads[0].topic)
        judge = Judge(catalog, ExactIndex(catalog, lane, WINDOW_MS), id_from, lambda: senders)
        return LaneRunner(
            lane,
            catalog=catalog,
            judge=judge,
            reader=MemoryReader(self.broker, topic, reads),
            stage=Function(self.price),
            emitter=MemoryEmitter(self.broker, [writes]),
            clock=self,
            policy=Policy(keep_ids=keep, window_ms=WINDOW_MS),
        )

    def price(self, record: Record) -> Output:
        """Answer differently every time, and for every fourth record at length."""
        nonce = self.random.randbytes(6000 if record.offset % 4 == 0 else 8).hex()
        headers = {"trace": record.offset.to_bytes(4, "big")}
        return record.replace(value={"nonce": nonce}, headers=headers)

    def run(self, lane: str, reads: Source, writes: str, cuts, senders=(), *, keep=False) -> None:
        runner = self.runner(lane, [reads], writes, senders, keep=keep)
        runner.tell(m.Opened(Frontier.of([(reads, 0)])))
        runner.drain()
        for start, end in cuts:
            begin, until = Frontier.of([(reads, start)]), Frontier.of([(reads, end)])
            runner.offer(m.Polled(begin, until), batches_of(self.broker.read(reads, start, end)))
            runner.drain()
        runner.tell(m.Ending(self.broker.high([reads])))
        runner.drain()
        assert runner.state.stopped == m.Stop(m.End.DONE, "everything is sealed and acknowledged")

    def topic(self, name: str, partition: int = 0) -> Source:
        return self.broker.sources(name)[partition]

    def evidence(self, **given: Any) -> Evidence:
        whole = {
            "store": self.store,
            "logs": {s: Log(held, len(held)) for s, held in self.broker.partitions.items()},
            "lanes": {name: LaneInput(id_from=id_from) for name in (FIRST, LEFT, RIGHT)},
            "finished": True,
        }
        return Evidence(**{**whole, **given})

    # Damage -----------------------------------------------------------------------------------

    def seal(self, lane: str, seq: int) -> Seal:
        ref = self.store.tables.lanes[lane].ref
        return decode_seal(self.store.tables.entries[lane, ref.incarnation, seq], "test")

    def put_seal(self, lane: str, seq: int, **changes: Any) -> Seal:
        seal = replace(self.seal(lane, seq), **changes)
        incarnation = self.store.tables.lanes[lane].ref.incarnation
        self.store.tables.entries[lane, incarnation, seq] = encode_seal(seal)
        return seal

    def drop_seal(self, lane: str, seq: int) -> None:
        del self.store.tables.entries[lane, self.store.tables.lanes[lane].ref.incarnation, seq]

    def put_head(self, lane: str, **changes: Any) -> None:
        row = self.store.tables.lanes[lane]
        head = replace(decode_head(row.head, "test"), **changes)
        self.store.tables.lanes[lane] = replace(row, head=encode_head(head), ref=head.ref)

    def put_ack(self, lane: str, **changes: Any) -> None:
        row = self.store.tables.lanes[lane]
        ack = replace(decode_ack(row.ack.blob, "test"), **changes)
        raw = RawAck(ack.incarnation, ack.seq, encode_ack(ack))
        self.store.tables.lanes[lane] = replace(row, ack=raw)

    def collected(self, lane: str, collected: int) -> None:
        row = self.store.tables.lanes[lane]
        self.store.tables.lanes[lane] = replace(row, collected=collected)

    def slot(self, lane: str, seq: int) -> Slot:
        ref = self.seal(lane, seq).ref
        return Slot(lane, ref.incarnation, ref.seq, ref.attempt)

    def parts(self, lane: str, seq: int) -> tuple[Part, ...]:
        return decode_segment(self.seal(lane, seq).inline_segment, "test")

    def put_parts(self, lane: str, seq: int, parts: tuple[Part, ...], fresh: int) -> None:
        """Store other ids, and dropped offsets and counts that agree with them."""
        blob, ids = encode_segment(parts), {one for part in parts for one in part}
        before = self.verdicts(lane, seq)
        after: dict[tuple[Source, int], Verdict] = {}
        for source, start in self.seal(lane, seq).start:
            for record in self.broker.read(source, start, self.seal(lane, seq).end.at(source)):
                one, place = identity(source, record), (source, record.offset)
                if one not in ids:
                    after[place] = before.get(place, Verdict.DUPLICATE)
                ids.discard(one)
        self.put_seal(lane, seq, inline_segment=blob, segment=blob_ref([blob], fresh))
        self.put_verdicts(lane, seq, after)

    def verdicts(self, lane: str, seq: int) -> dict[tuple[Source, int], Verdict]:
        """Return the verdict of every place that a seal dropped."""
        blob = self.seal(lane, seq).inline_dropped
        return {
            (run.source, offset): run.verdict
            for run in (decode_dropped(blob, "test") if blob else ())
            for offset in range(run.offset, run.offset + run.count)
        }

    def put_verdicts(
        self, lane: str, seq: int, verdicts: dict[tuple[Source, int], Verdict], **counts: int
    ) -> None:
        """Store other dropped offsets, and counts that agree with them unless told otherwise."""
        runs = [Run(*place, 1, verdict) for place, verdict in sorted(verdicts.items())]
        chunks, seal = dropped_chunks(runs), self.seal(lane, seq)
        found = [list(verdicts.values()).count(verdict) for verdict in Verdict]
        told = dict(zip(("duplicate", "remnant", "abandoned"), found, strict=True)) | counts
        fresh = seal.segment.rows
        agreed = replace(seal.counts, read=fresh + sum(told.values()), fresh=fresh, **told)
        self.put_seal(
            lane,
            seq,
            dropped=blob_ref(chunks, len(runs)),
            inline_dropped=b"".join(chunks),
            counts=agreed,
        )

    def put_rows(self, lane: str, seq: int, change: Callable[[list[Row]], list[Row]]) -> None:
        """Store other outputs, and a seal that promises them."""
        seal = self.seal(lane, seq)
        rows = change(self.rows(lane, seq))
        chunks = encode_outputs(
            Bundle(lane=lane, ref=seal.ref, minted_at_ms=seal.minted_at_ms), Rows.of(rows)
        )
        self.store.put(Blob.OUTPUTS, self.slot(lane, seq), chunks)
        self.put_seal(lane, seq, outputs=blob_ref(chunks, len(rows)), inline_outputs=b"")

    def forget_rows(self, lane: str, seq: int) -> None:
        """Store a recipe in place of the outputs of a seal, as a deterministic stage does."""
        rows = Rows.of(self.rows(lane, seq))
        # The order in which they were made: by their parents, each has one output.
        blob = encode_recipe(Recipe(counts=(2,), digest=content_digest(rows)))
        self.store.delete(Blob.OUTPUTS, [self.slot(lane, seq)])
        self.put_seal(lane, seq, outputs=blob_ref([blob], len(rows)), inline_outputs=blob)

    def rows(self, lane: str, seq: int) -> list[Row]:
        """Make the rows of a bundle anew from the records in the sink."""
        held: dict[tuple[int, int], Row] = {}
        topic = decode_head(self.store.tables.lanes[lane].head, "test").writes[0]
        for source, log in sorted(self.broker.partitions.items()):
            for record in log if source.topic == topic else ():
                header = our(record)
                if header and (header.mark.sender, header.mark.seq) == (lane, seq):
                    theirs = tuple(pair for pair in record.headers if pair[0] != NAME)
                    output = Output(value=record.value, key=record.key, headers=theirs)
                    held.setdefault(
                        header.parent,
                        Row(output=output, partition=source.partition, parent=header.parent),
                    )
        return [held[parent] for parent in sorted(held)]

    def sent(self, lane: str, seq: int) -> tuple[Source, int]:
        """Return where a record of a seal is that is in the sink once."""
        return next(
            (source, record.offset)
            for source, log in sorted(self.broker.partitions.items())
            for record in log
            if record is not None
            and (header := our(record)) is not None
            and (header.mark.sender, header.mark.seq) == (lane, seq)
            and sum(our(other) == header for other in log if other) == 1
        )

    def put_record(self, source: Source, offset: int, record: Record | None) -> None:
        log = self.broker.partitions[source]
        self.broker.partitions[source] = (*log[:offset], record, *log[offset + 1 :])

    def again(self, at: tuple[Source, int], **mark: Any) -> None:
        """Append a record of the sink once more, with another header."""
        source, offset = at
        record = self.broker.partitions[source][offset]
        header = our(record)
        identity = mark.pop("id", header.id)
        parent = mark.pop("parent", header.parent)
        forged = encode_header(Header(identity, replace(header.mark, **mark), parent))
        theirs = tuple(pair for pair in record.headers if pair[0] != NAME)
        self.broker.append(source, record._replace(headers=(*theirs, (NAME, forged))))


def identity(source: Source, record: Record) -> RecordId:
    """Return the id that a record counts by."""
    header, name = our(record), id_from(record)
    if header is not None:
        return header.id
    return positional(source, record.offset) if name is None else named(name)


def our(record: Record | None) -> Header | None:
    value = record.header(NAME) if record else None
    return decode_header(value) if value else None


def chained() -> World:
    """Two stages: one lane into two partitions, two lanes behind it, repeats on every edge."""
    world = World()
    world.broker.create("in")
    world.broker.create("mid", 2)
    world.broker.create("out", 2)
    (source,) = world.broker.sources("in")
    for i in range(16):
        name = () if i == 3 else (("id", b"order-%d" % (i % 11)),)
        timestamp = 1_600_000_000_000 + i
        record = Record(
            key=b"k%d" % (i % 11), value=b"%d" % i, headers=name, timestamp_ms=timestamp
        )
        world.broker.append(source, record)
    world.broker.skip(source)
    world.run(FIRST, source, "mid", ((0, 6), (6, 13), (13, 17)))
    for mid in world.broker.sources("mid"):
        # What a zombie of the first lane sends again before and after it is read.
        world.broker.append(mid, world.broker.partitions[mid][0])
    for lane, mid in zip((LEFT, RIGHT), world.broker.sources("mid"), strict=True):
        end = len(world.broker.partitions[mid])
        world.run(lane, mid, "out", ((0, 2), (2, end)), (FIRST,))
        world.broker.append(mid, world.broker.partitions[mid][1])
        again = end + 1
        world.run(lane, mid, "out", ((end, again),), (FIRST,))
    return world


def flipped(blob: bytes) -> bytes:
    """Flip one bit in the middle."""
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 4]) + blob[middle + 1 :]


def drop_outputs(world: World, lane: str, last: int) -> None:
    """Delete the stored outputs of the seals up to `last`; make all outputs stored ones first."""
    world.collected(lane, last)
    for seq in range(last + 1):
        world.put_seal(lane, seq, inline_outputs=b"")
        world.store.delete(Blob.OUTPUTS, [world.slot(lane, seq)])


def move_entry(world: World, lane: str, seq: int, incarnation: Incarnation) -> None:
    """Let an entry be of another incarnation, key and all."""
    seal = world.seal(lane, seq)
    world.drop_seal(lane, seq)
    moved = replace(seal, ref=replace(seal.ref, incarnation=incarnation))
    world.store.tables.entries[lane, incarnation, seq] = encode_seal(moved)


def learn(world: World, lane: str, seq: int, read: int) -> None:
    """Let a seal, and all after it, have learned that the first lane is read up to `read`."""
    incarnation = world.store.tables.lanes[FIRST].ref.incarnation
    learned = (ReadSeq(FIRST, incarnation, world.topic("mid").topic, read),)
    for after in range(seq, world.store.tables.lanes[lane].ref.seq + 1):
        world.put_seal(lane, after, learned=learned)
    world.put_head(lane, read_seqs=learned)


def orphan(world: World, lane: str, seq: int, parent: tuple[int, int], said: Headers = ()) -> None:
    """Let an output of a seal, stored and sent, come from another input than it did."""
    source, offset = world.sent(lane, seq)
    record = world.broker.partitions[source][offset]
    header = our(record)
    ours = (NAME, encode_header(replace(header, parent=parent)))
    headers = (*record.headers[:-1], *said, ours)
    output = Output(record.value, record.key, headers[:-1])
    rows = [
        row._replace(parent=parent, output=output) if row.parent == header.parent else row
        for row in world.rows(lane, seq)
    ]
    world.put_record(source, offset, record._replace(headers=headers))
    world.put_rows(lane, seq, lambda _: rows)


def abandon(world: World, lane: str, last: int) -> None:
    """Restore a lane to `last`, as from a backup: a new incarnation, the rest given up."""
    row = world.store.tables.lanes[lane]
    ref = HeadRef(Incarnation(b"r" * 16), last, Attempt(b"r" * 16))
    past = (Kept(row.ref.incarnation, last),)
    frontier = world.seal(lane, last).end
    seal = world.seal(lane, last)
    world.put_head(lane, ref=ref, past=past, frontier=frontier, lane_time_ms=seal.lane_time_ms)
    world.put_ack(lane, incarnation=ref.incarnation, seq=last)
