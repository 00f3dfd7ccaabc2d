"""The checker finds nothing in clean runs, and every class of planted damage by its kind."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import delivery.checker
from connectors.memory import MemoryReader
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob, RawAck
from dedup.formats.lane import (
    decode_ack,
    decode_head,
    decode_seal,
    encode_ack,
    encode_head,
    encode_seal,
    encode_segment_list,
)
from dedup.formats.segment import Bucket, Origin, Part, decode_segment, encode_segment
from dedup.ids import named
from dedup.index import ExactIndex
from dedup.model import (
    Attempt,
    Frontier,
    HeadRef,
    Incarnation,
    Kept,
    ReadSeq,
    Seal,
    SegmentList,
    Slot,
    Source,
    TopicId,
)
from delivery.broker import MemoryBroker
from delivery.checker import Evidence, Kind, LaneInput, Log, check
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.judge import Judge
from delivery.outputs import Origin as Bundle
from delivery.outputs import Row, encode_outputs
from delivery.protocol import messages as m
from delivery.records import Output, Record
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

    def runner(self, lane: str, reads: Source, writes: str, senders=(), *, keep=False):
        catalog = Catalog(self.store)
        topic = next(n for n, i in self.broker.names.items() if i == reads.topic)
        judge = Judge(catalog, ExactIndex(catalog, lane, WINDOW_MS), id_from, lambda: senders)
        return LaneRunner(
            lane,
            catalog=catalog,
            judge=judge,
            reader=MemoryReader(self.broker, topic, [reads]),
            stage=Function(self.price),
            emitter=MemoryEmitter(self.broker, [writes]),
            clock=self,
            policy=Policy(keep_ids=keep),
        )

    def price(self, record: Record) -> Output:
        """Answer differently every time, and for every fourth record at length."""
        nonce = self.random.randbytes(6000 if record.offset % 4 == 0 else 8).hex()
        headers = {"trace": record.offset.to_bytes(4, "big")}
        return record.replace(value={"nonce": nonce}, headers=headers)

    def run(self, lane: str, reads: Source, writes: str, cuts, senders=(), *, keep=False) -> None:
        runner = self.runner(lane, reads, writes, senders, keep=keep)
        runner.tell(m.Opened(Frontier.of([(reads, 0)])))
        runner.drain()
        for start, end in cuts:
            begin, until = Frontier.of([(reads, start)]), Frontier.of([(reads, end)])
            runner.offer(m.Polled(begin, until), self.broker.read(reads, start, end))
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
        """Store other ids, and counts that agree with them."""
        blob, seal = encode_segment(parts), self.seal(lane, seq)
        counts = replace(seal.counts, fresh=fresh, duplicate=seal.counts.read - fresh)
        ref = blob_ref([blob], fresh)
        self.put_seal(lane, seq, inline_segment=blob, segment=ref, counts=counts)

    def put_rows(self, lane: str, seq: int, change: Callable[[list[Row]], list[Row]]) -> None:
        """Store other outputs, and a seal that promises them."""
        seal = self.seal(lane, seq)
        rows = change(self.rows(lane, seq))
        chunks = encode_outputs(
            Bundle(lane=lane, ref=seal.ref, minted_at_ms=seal.minted_at_ms), rows
        )
        self.store.put(Blob.OUTPUTS, self.slot(lane, seq), chunks)
        self.put_seal(lane, seq, outputs=blob_ref(chunks, len(rows)), inline_outputs=b"")

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
        self.broker.append(source, replace(record, headers=(*theirs, (NAME, forged))))


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


@pytest.fixture(scope="module")
def clean() -> World:
    return chained()


def kinds(world: World, **given: Any) -> set[Kind]:
    return {finding.kind for finding in check(world.evidence(**given))}


def test_a_clean_chain_is_proved(clean):
    assert check(clean.evidence()) == []
    rows = {name: Catalog(clean.store).load(name) for name in (FIRST, LEFT, RIGHT)}
    assert all(row.head.ref.seq == row.ack.seq == 3 for row in rows.values())
    counts = [clean.seal(LEFT, seq).counts for seq in (2, 3)]
    assert [(c.duplicate, c.remnant) for c in counts] == [(1, 0), (0, 1)]


# How damage is done -------------------------------------------------------------------------------


def flipped(blob: bytes) -> bytes:
    """Flip one bit in the middle."""
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 4]) + blob[middle + 1 :]


def keep_segment(world: World, lane: str, seq: int) -> Slot:
    """Store a seal's ids beside it, as a collector does before the entry goes."""
    world.store.put(Blob.SEGMENT, world.slot(lane, seq), [world.seal(lane, seq).inline_segment])
    return world.slot(lane, seq)


def put_list(world: World, lane: str, listed: SegmentList) -> None:
    world.store.tables.lists[lane] = (listed.version, encode_segment_list(listed))


def list_all(world: World, lane: str) -> None:
    """Put the ids of every seal into the segment list."""
    head = world.store.tables.lanes[lane].ref.seq
    with_ids = [seq for seq in range(head + 1) if world.seal(lane, seq).segment.chunks]
    slots = tuple(keep_segment(world, lane, seq) for seq in with_ids)
    put_list(world, lane, SegmentList(version=1, upto=head, slots=slots))


def collect(world: World, lane: str, last: int) -> None:
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


def orphan(world: World, lane: str, seq: int, parent: tuple[int, int]) -> None:
    """Let an output of a seal, stored and sent, come from another input than it did."""
    source, offset = world.sent(lane, seq)
    record = world.broker.partitions[source][offset]
    header = our(record)
    headers = (*record.headers[:-1], (NAME, encode_header(replace(header, parent=parent))))
    rows = [
        replace(row, parent=parent) if row.parent == header.parent else row
        for row in world.rows(lane, seq)
    ]
    world.put_record(source, offset, replace(record, headers=headers))
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


# Damage -------------------------------------------------------------------------------------------

#: Every planted damage: what it does, and the kinds that must be found, no fewer and no more.
DAMAGE: list[Any] = []


def found(*expected: Kind) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Say what a damage must be found as."""

    def register(damage: Callable[[World], None]) -> Callable[[World], None]:
        DAMAGE.append(pytest.param(damage, set(expected), id=damage.__name__))
        return damage

    return register


@found(Kind.UNREADABLE)
def head_flipped(world: World) -> None:
    row = world.store.tables.lanes[RIGHT]
    world.store.tables.lanes[RIGHT] = replace(row, head=flipped(row.head))


@found(Kind.UNREADABLE)
def entry_torn(world: World) -> None:
    ref = world.store.tables.lanes[RIGHT].ref
    key = (RIGHT, ref.incarnation, 2)
    world.store.tables.entries[key] = world.store.tables.entries[key][:-1]


@found(Kind.UNREADABLE)
def chunk_flipped(world: World) -> None:
    slot = world.slot(LEFT, 1)
    (chunk,) = world.store.get(Blob.OUTPUTS, slot)
    world.store.put(Blob.OUTPUTS, slot, [flipped(chunk)])


@found(Kind.UNREADABLE)
def chunk_torn(world: World) -> None:
    slot = world.slot(LEFT, 1)
    (chunk,) = world.store.get(Blob.OUTPUTS, slot)
    world.store.put(Blob.OUTPUTS, slot, [chunk[:-9]])


@found(Kind.UNREADABLE)
def segment_list_flipped(world: World) -> None:
    list_all(world, LEFT)
    version, blob = world.store.tables.lists[LEFT]
    world.store.tables.lists[LEFT] = (version, flipped(blob))


@found(Kind.COLUMNS)
def head_names_another_attempt(world: World) -> None:
    row = world.store.tables.lanes[RIGHT]
    ref = replace(row.ref, attempt=Attempt(b"x" * 16))
    world.store.tables.lanes[RIGHT] = replace(row, ref=ref)


@found(Kind.COLUMNS)
def segment_list_names_another_version(world: World) -> None:
    list_all(world, LEFT)
    _, blob = world.store.tables.lists[LEFT]
    world.store.tables.lists[LEFT] = (7, blob)


@found(Kind.COLUMNS)
def acknowledgement_column_differs(world: World) -> None:
    row = world.store.tables.lanes[RIGHT]
    ack = replace(row.ack, seq=row.ack.seq - 1)
    world.store.tables.lanes[RIGHT] = replace(row, ack=ack)


@found(Kind.HISTORY)
def incarnation_twice(world: World) -> None:
    ref = world.store.tables.lanes[RIGHT].ref
    world.put_head(RIGHT, past=(Kept(Incarnation(b"a" * 16), -0), Kept(Incarnation(b"a" * 16), 0)))
    assert world.store.tables.lanes[RIGHT].ref == ref
    move_entry(world, RIGHT, 0, Incarnation(b"a" * 16))


@found(Kind.ACK)
def acknowledged_above_the_head(world: World) -> None:
    world.put_ack(RIGHT, seq=world.store.tables.lanes[RIGHT].ref.seq + 1)


@found(Kind.ACK)
def acknowledged_in_another_incarnation(world: World) -> None:
    world.put_ack(RIGHT, incarnation=Incarnation(b"x" * 16))


@found(Kind.COLLECTED, Kind.UNFINISHED)
def collected_above_the_acknowledgement(world: World) -> None:
    world.put_ack(RIGHT, seq=2)
    world.collected(RIGHT, 3)


@found(Kind.ENTRY_GAP)
def entry_removed(world: World) -> None:
    world.drop_seal(RIGHT, 2)


@found(Kind.ENTRY_GAP)
def last_entry_removed(world: World) -> None:
    world.drop_seal(RIGHT, world.store.tables.lanes[RIGHT].ref.seq)


@found(Kind.ENTRY_FOREIGN, Kind.NOT_OF_SEAL)
def entry_of_another_attempt(world: World) -> None:
    ref = world.seal(LEFT, 2).ref
    world.put_seal(LEFT, 2, ref=replace(ref, attempt=Attempt(b"x" * 16)))


@found(Kind.OUTPUTS_GONE, Kind.NOT_OF_SEAL)
def entry_of_another_attempt_that_left_nothing(world: World) -> None:
    ref = world.seal(LEFT, 1).ref
    world.put_seal(LEFT, 1, ref=replace(ref, attempt=Attempt(b"x" * 16)))


@found(Kind.ENTRY_FOREIGN)
def last_entry_of_another_attempt(world: World) -> None:
    # It read nothing fresh, so nothing but the head knows its attempt.
    ref = world.store.tables.lanes[RIGHT].ref
    world.put_seal(RIGHT, ref.seq, ref=replace(ref, attempt=Attempt(b"x" * 16)))


@found(Kind.ENTRY_FOREIGN)
def entry_above_the_head(world: World) -> None:
    ref = world.store.tables.lanes[RIGHT].ref
    beyond = replace(world.seal(RIGHT, ref.seq), ref=replace(ref, seq=ref.seq + 1))
    world.store.tables.entries[RIGHT, ref.incarnation, ref.seq + 1] = encode_seal(beyond)


@found(Kind.FRONTIER_GAP, Kind.COUNTS, Kind.DECIDED_ELSEWHERE, Kind.PARENT)
def frontier_gap(world: World) -> None:
    seal = world.seal(FIRST, 2)
    (start,) = [(source, offset + 1) for source, offset in seal.start]
    world.put_seal(FIRST, 2, start=Frontier((start,)))


@found(Kind.FRONTIER_GAP)
def frontier_begins_nowhere(world: World) -> None:
    seal = world.seal(FIRST, 2)
    world.put_seal(FIRST, 2, end=seal.end.merged(Frontier.of([(Source(TopicId(b"n" * 16), 0), 1)])))
    head = decode_head(world.store.tables.lanes[FIRST].head, "test")
    stray = Frontier.of([(Source(TopicId(b"n" * 16), 0), 1)])
    world.put_head(FIRST, frontier=head.frontier.merged(stray))


@found(Kind.FRONTIER_OVERLAP, Kind.COUNTS)
def frontier_overlap(world: World) -> None:
    seal = world.seal(FIRST, 3)
    (start,) = [(source, offset - 1) for source, offset in seal.start]
    world.put_seal(FIRST, 3, start=Frontier((start,)))


@found(Kind.FRONTIER_HEAD, Kind.UNFINISHED)
def head_frontier_too_low(world: World) -> None:
    world.put_head(FIRST, frontier=Frontier.of([(world.topic("in"), 16)]))


@found(Kind.MINTED_AT)
def minted_at_stands_still(world: World) -> None:
    # The last seal has no outputs, which would repeat its minted-at.
    last = world.store.tables.lanes[RIGHT].ref.seq
    before = world.seal(RIGHT, last - 1).minted_at_ms
    world.put_seal(RIGHT, last, minted_at_ms=before)
    world.put_head(RIGHT, minted_at_ms=before)


@found(Kind.LANE_TIME)
def lane_time_falls(world: World) -> None:
    last = world.store.tables.lanes[LEFT].ref.seq
    world.put_seal(LEFT, last - 1, lane_time_ms=9)


@found(Kind.LANE_TIME)
def head_lane_time_differs(world: World) -> None:
    world.put_head(LEFT, lane_time_ms=9)


@found(Kind.READ_SEQS)
def read_seqs_of_the_head_differ(world: World) -> None:
    world.put_head(LEFT, read_seqs=())


@found(Kind.READ_TOO_FAR)
def read_beyond_the_acknowledgement(world: World) -> None:
    learn(world, LEFT, 3, 9)


@found(Kind.READ_TOO_FAR)
def read_seq_of_a_range_not_sealed_yet(world: World) -> None:
    learn(world, LEFT, 1, 3)


@found(Kind.READ_TOO_FAR)
def read_seq_of_another_receiver(world: World) -> None:
    seal = world.seal(FIRST, 3)
    sender = ReadSeq(RIGHT, seal.ref.incarnation, world.topic("mid").topic, 1)
    world.put_seal(FIRST, 3, learned=(sender,))
    world.put_head(FIRST, read_seqs=(sender,))


@found(Kind.SEGMENT_GONE)
def segment_gone(world: World) -> None:
    world.put_seal(FIRST, 2, inline_segment=b"")


@found(Kind.SEGMENT_GONE, Kind.NOT_DECIDED)
def listed_segment_gone(world: World) -> None:
    list_all(world, FIRST)
    world.store.delete(Blob.SEGMENT, [world.slot(FIRST, 2)])


@found(Kind.OUTPUTS_GONE)
def outputs_gone(world: World) -> None:
    world.store.delete(Blob.OUTPUTS, [world.slot(LEFT, 1)])


@found(Kind.DIGEST)
def outputs_are_others(world: World) -> None:
    other = world.store.get(Blob.OUTPUTS, world.slot(FIRST, 1))
    world.store.put(Blob.OUTPUTS, world.slot(LEFT, 1), other)


@found(Kind.DIGEST)
def segment_digest_differs(world: World) -> None:
    segment = replace(world.seal(FIRST, 2).segment, digest=b"d" * 16)
    world.put_seal(FIRST, 2, segment=segment)


@found(Kind.COUNTS)
def read_count_too_high(world: World) -> None:
    counts = world.seal(FIRST, 2).counts
    wrong = replace(counts, read=counts.read + 1, duplicate=counts.duplicate + 1)
    world.put_seal(FIRST, 2, counts=wrong)


@found(Kind.COUNTS)
def fresh_counted_as_duplicate(world: World) -> None:
    counts = world.seal(FIRST, 2).counts
    wrong = replace(counts, fresh=counts.fresh - 1, duplicate=counts.duplicate + 1)
    world.put_seal(FIRST, 2, counts=wrong)


@found(Kind.COUNTS)
def abandoned_counted_where_none_was(world: World) -> None:
    counts = world.seal(LEFT, 3).counts
    dropped = counts.duplicate + counts.remnant
    world.put_seal(LEFT, 3, counts=replace(counts, duplicate=0, remnant=0, abandoned=dropped))


@found(Kind.COUNTS)
def row_count_differs(world: World) -> None:
    outputs = world.seal(LEFT, 1).outputs
    world.put_seal(LEFT, 1, outputs=replace(outputs, rows=outputs.rows + 1))


@found(Kind.NEVER_INPUT)
def id_that_was_never_input(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    ids = tuple(sorted((*part.ids, named(b"nobody's"))))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), len(ids))


@found(Kind.NOT_DECIDED, Kind.PARENT)
def input_never_decided(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    world.put_parts(FIRST, 2, (replace(part, ids=part.ids[1:]),), len(part.ids) - 1)


@found(Kind.DECIDED_TWICE)
def id_decided_twice(world: World) -> None:
    (part,), (before,) = world.parts(FIRST, 2), world.parts(FIRST, 1)
    ids = tuple(sorted((*part.ids, before.ids[0])))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), len(ids))


@found(Kind.DECIDED_TWICE)
def id_in_the_list_and_decided_behind_it(world: World) -> None:
    slots = [keep_segment(world, FIRST, seq) for seq in (1, 2)]
    put_list(world, FIRST, SegmentList(version=1, upto=1, slots=tuple(slots)))


@found(Kind.DECIDED_ELSEWHERE, Kind.PARENT)
def decided_by_a_later_repeat(world: World) -> None:
    # order-0 is repeated at offset 11, within the range of seal 2.
    (part,), (before,) = world.parts(FIRST, 2), world.parts(FIRST, 1)
    identity = named(b"order-0")
    without = tuple(i for i in before.ids if i != identity)
    world.put_parts(FIRST, 1, (replace(before, ids=without),), len(without))
    ids = tuple(sorted((*part.ids, identity)))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), len(ids))


@found(Kind.BUCKET)
def internal_id_kept_as_external(world: World) -> None:
    (part,) = world.parts(LEFT, 2)
    lane_time = Bucket.at(Origin.EXTERNAL, world.seal(LEFT, 2).lane_time_ms)
    world.put_parts(LEFT, 2, (Part(lane_time, part.ids),), len(part.ids))


@found(Kind.BUCKET)
def external_id_in_the_bucket_of_another_time(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    later = Bucket(Origin.EXTERNAL, part.bucket.number + 1)
    world.put_parts(FIRST, 2, (replace(part, bucket=later),), len(part.ids))


@found(Kind.BUCKET)
def bucket_covers_a_lower_seq_than_it_holds(world: World) -> None:
    (part,) = world.parts(LEFT, 2)
    (seen,) = part.seen
    lower = replace(part, seen=(replace(seen, seq=seen.seq - 1),))
    world.put_parts(LEFT, 2, (lower,), len(part.ids))


@found(Kind.PARENT, Kind.TWO_VERSIONS)
def output_of_an_input_outside_its_seal(world: World) -> None:
    orphan(world, FIRST, 3, (0, 0))


@found(Kind.PARENT)
def output_of_a_duplicate(world: World) -> None:
    # The record at offset 15 repeats the id of the one at 4.
    orphan(world, FIRST, 3, (0, 15))


@found(Kind.TARGET)
def output_to_a_partition_that_is_not(world: World) -> None:
    world.put_rows(FIRST, 3, lambda rows: [*rows, replace(rows[0], partition=9)])


@found(Kind.STRANGER)
def sink_record_without_header(world: World) -> None:
    world.broker.append(world.topic("out"), Record(value=b"hello"))


@found(Kind.STRANGER)
def sink_record_of_an_unknown_lane(world: World) -> None:
    world.again(world.sent(LEFT, 1), sender="p/z/in-0")


@found(Kind.STRANGER)
def sink_record_of_a_lane_that_writes_elsewhere(world: World) -> None:
    world.again(world.sent(LEFT, 1), sender=FIRST)


@found(Kind.UNSEALED)
def emitted_before_the_seal(world: World) -> None:
    seq = world.store.tables.lanes[LEFT].ref.seq + 1
    world.again(world.sent(LEFT, 1), seq=seq, id=b"i" * 16)


@found(Kind.UNSEALED)
def emitted_in_an_unknown_incarnation(world: World) -> None:
    world.again(world.sent(LEFT, 1), incarnation=Incarnation(b"x" * 16))


@found(Kind.NOT_OF_SEAL, Kind.TWO_VERSIONS)
def attempt_that_lost_emitted_too(world: World) -> None:
    world.again(world.sent(LEFT, 1), id=b"i" * 16)


@found(Kind.NOT_OF_SEAL, Kind.LOST)
def attempt_that_lost_emitted_instead(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    world.again((source, offset), id=b"i" * 16)
    world.put_record(source, offset, None)


@found(Kind.NOT_OF_SEAL)
def output_that_its_seal_does_not_promise(world: World) -> None:
    world.again(world.sent(LEFT, 1), id=b"i" * 16, parent=(0, 99))


@found(Kind.PAYLOAD)
def copy_with_another_value(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    world.broker.append(source, replace(world.broker.partitions[source][offset], value=b"other"))


@found(Kind.PAYLOAD)
def copy_with_another_header(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    record = world.broker.partitions[source][offset]
    headers = (("trace", b"other"), *record.headers[1:])
    world.broker.append(source, replace(record, headers=headers))


@found(Kind.PAYLOAD)
def copy_in_another_partition(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    other = next(s for s in world.broker.sources("out") if s != source)
    world.broker.append(other, world.broker.partitions[source][offset])


@found(Kind.PAYLOAD)
def copy_differs_where_outputs_were_collected(world: World) -> None:
    collect(world, LEFT, 1)
    copy_with_another_value(world)


@found(Kind.NOT_OF_SEAL, Kind.TWO_VERSIONS)
def attempt_that_lost_where_outputs_were_collected(world: World) -> None:
    at = world.sent(LEFT, 1)
    collect(world, LEFT, 1)
    world.again(at, id=b"i" * 16)


@found(Kind.TWO_VERSIONS)
def two_seals_made_outputs_of_one_input(world: World) -> None:
    """The entries are gone, so only the sink can tell."""
    at = world.sent(LEFT, 1)
    list_all(world, LEFT)
    collect(world, LEFT, 2)
    for seq in (0, 1, 2):
        world.drop_seal(LEFT, seq)
    world.again(at, seq=2, id=b"i" * 16)


@found(Kind.TWO_VERSIONS)
def two_attempts_emitted_one_seal(world: World) -> None:
    at = world.sent(LEFT, 1)
    list_all(world, LEFT)
    collect(world, LEFT, 1)
    for seq in (0, 1):
        world.drop_seal(LEFT, seq)
    world.again(at, minted_at_ms=5, id=b"i" * 16)


@found(Kind.LOST)
def acknowledged_output_missing(world: World) -> None:
    world.put_record(*world.sent(LEFT, 1), None)


@found(Kind.LOST)
def acknowledged_output_missing_after_collection(world: World) -> None:
    collect(world, LEFT, 1)
    world.put_record(*world.sent(LEFT, 1), None)


@found(Kind.DELIVERED_LOW)
def delivered_offset_too_low(world: World) -> None:
    delivered = decode_ack(world.store.tables.lanes[LEFT].ack.blob, "test").delivered
    lower = Frontier.of((source, offset - 1) for source, offset in delivered)
    world.put_ack(LEFT, delivered=lower)


@found(Kind.DELIVERED_BEYOND)
def delivered_offset_beyond_the_end(world: World) -> None:
    delivered = decode_ack(world.store.tables.lanes[LEFT].ack.blob, "test").delivered
    higher = Frontier.of((source, offset + 99) for source, offset in delivered)
    world.put_ack(LEFT, delivered=higher)


@found(Kind.DELIVERED_BEYOND)
def delivered_to_a_topic_of_others(world: World) -> None:
    delivered = decode_ack(world.store.tables.lanes[LEFT].ack.blob, "test").delivered
    other = Frontier.of([(world.topic("in"), 1)])
    world.put_ack(LEFT, delivered=delivered.merged(other))


@found(Kind.UNFINISHED)
def sealed_and_not_acknowledged(world: World) -> None:
    world.put_ack(LEFT, seq=world.store.tables.lanes[LEFT].ref.seq - 1)


@found(Kind.UNFINISHED)
def input_left_over(world: World) -> None:
    world.broker.append(world.topic("in"), Record(value=b"late"))


@found(Kind.ABANDONED, Kind.COUNTS, Kind.PARENT, Kind.READ_TOO_FAR, Kind.UNFINISHED)
def record_of_an_abandoned_history_took_effect(world: World) -> None:
    """The first lane was restored to before its last seal; its receivers were not."""
    abandon(world, FIRST, 2)


@pytest.mark.parametrize(("damage", "expected"), DAMAGE)
def test_planted_damage_is_found_as_what_it_is(clean, damage, expected):
    world = clean.copy()
    damage(world)
    assert kinds(world) == expected


def test_every_kind_of_finding_is_planted():
    assert set().union(*(case.values[1] for case in DAMAGE)) == set(Kind)


def test_a_restored_chain_is_proved():
    """What was abandoned is in the topics, and took no effect."""
    world = World()
    world.broker.create("in")
    world.broker.create("mid", 2)
    world.broker.create("out", 2)
    source = world.topic("in")
    for i in range(8):
        record = Record(key=b"k%d" % i, value=b"%d" % i, headers=(("id", b"order-%d" % i),))
        world.broker.append(source, record)
    world.run(FIRST, source, "mid", ((0, 4), (4, 8)))
    abandon(world, FIRST, 1)
    world.run(FIRST, source, "mid", ((4, 8),))
    for lane, mid in zip((LEFT, RIGHT), world.broker.sources("mid"), strict=True):
        end = len(world.broker.partitions[mid])
        world.run(lane, mid, "out", ((0, end),), (FIRST,))
    assert check(world.evidence()) == []
    dropped = sum(world.seal(lane, 1).counts.abandoned for lane in (LEFT, RIGHT))
    assert dropped == 4


def test_an_incarnation_that_no_row_knows_is_abandoned_after_a_restore(clean):
    world = clean.copy()
    world.again(world.sent(LEFT, 1), incarnation=Incarnation(b"x" * 16))
    assert kinds(world, restored=True) == set()


def test_kept_ids_are_external_behind_re_keying():
    """The publisher sends twice, into two partitions; re-keying brings both into one."""
    world = World()
    world.broker.create("in", 2)
    world.broker.create("mid")
    world.broker.create("out")
    for partition in world.broker.sources("in"):
        for i in range(3):
            record = Record(value=b"%d" % i, headers=(("id", b"order-%d" % i),))
            world.broker.append(partition, record)
    lanes = ("p/r/in-0", "p/r/in-1")
    for lane, partition in zip(lanes, world.broker.sources("in"), strict=True):
        world.run(lane, partition, "mid", ((0, 3),), keep=True)
    world.run("p/b/mid-0", world.topic("mid"), "out", ((0, 4), (4, 6)), lanes)
    names = (*lanes, "p/b/mid-0")
    asked = {name: LaneInput(id_from=id_from) for name in names}
    assert check(world.evidence(lanes=asked)) == []
    counts = [world.seal("p/b/mid-0", seq).counts for seq in (1, 2)]
    assert [c.fresh for c in counts] == [3, 0]


def test_a_run_that_is_not_finished_may_lag_behind(clean):
    world = clean.copy()
    sealed_and_not_acknowledged(world)
    input_left_over(world)
    assert kinds(world, finished=False) == set()


def test_what_is_due_can_be_less_than_the_log(clean):
    world = clean.copy()
    input_left_over(world)
    due = {name: LaneInput(id_from=id_from) for name in (LEFT, RIGHT)}
    due[FIRST] = LaneInput(id_from=id_from, due=Frontier.of([(world.topic("in"), 17)]))
    assert kinds(world, lanes=due) == set()


def test_a_lane_that_never_was_is_unfinished(clean):
    lanes = {"p/c/out-0": LaneInput()}
    assert kinds(clean, lanes=lanes) == {Kind.UNFINISHED}
    assert kinds(clean, lanes=lanes, finished=False) == set()


def test_a_catalog_whose_entries_were_collected_is_proved(clean):
    world = clean.copy()
    for lane in (FIRST, LEFT, RIGHT):
        list_all(world, lane)
        collect(world, lane, 2)
        for seq in range(3):
            world.drop_seal(lane, seq)
    assert check(world.evidence()) == []


def test_records_of_outsiders_are_no_business_of_the_sink(clean):
    world = clean.copy()
    source = world.topic("out")
    offset = world.broker.append(source, Record(value=b"hello"))
    evidence = world.evidence()
    logs = {
        s: replace(log, foreign=frozenset({offset})) if s == source else log
        for s, log in evidence.logs.items()
    }
    assert check(replace(evidence, logs=logs)) == []


def test_a_finding_names_lane_place_and_meaning(clean):
    world = clean.copy()
    entry_removed(world)
    (finding,) = check(world.evidence())
    assert str(finding).startswith("p/b/mid-1: entry 2: ENTRY_GAP: an entry that must be there")


ALLOWED = {
    *("delivery.checker", "dedup.formats", "dedup.model", "dedup.catalog.store", "dedup.errors"),
    *("delivery.header", "delivery.protocol.senders", "pyarrow", "xxhash"),
    *(
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "struct",
        "typing",
    ),
}


def test_the_checker_shares_no_code_with_what_it_checks():
    """Of the header only the format, and of the senders only the type `Mark`."""
    for path in Path(delivery.checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if node.module == "delivery.protocol.senders":
                    assert [alias.name for alias in node.names] == ["Mark"]
            else:
                continue
            for name in names:
                assert any(name == a or name.startswith(f"{a}.") for a in ALLOWED), (path, name)
