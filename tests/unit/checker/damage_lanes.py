"""Damage to a lane's rows: head, acknowledgement, entries and what they say of one another."""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.store import Blob
from dedup.formats.lane import (
    decode_head,
    encode_seal,
)
from dedup.model import (
    Attempt,
    Frontier,
    Incarnation,
    Kept,
    ReadSeq,
    Source,
    TopicId,
)
from delivery.checker import Kind
from tests.unit.checker.damage import register
from tests.unit.checker.listing import list_all
from tests.unit.checker.worlds import FIRST, LEFT, RIGHT, World, flipped, learn, move_entry

DAMAGE, found = register()


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


@found(Kind.FRONTIER_OVERLAP, Kind.COUNTS, Kind.DROPPED_OUTSIDE, Kind.NOT_ACCOUNTED)
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
