"""Damage to stored ids and outputs: what took effect, and what was made of it."""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.store import Blob
from dedup.expiry import WINDOW_MS_MAX
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, encode_segment, raw_ids
from dedup.ids import named
from dedup.model import Incarnation, SegmentList
from delivery.checker import Kind
from tests.unit.checker.damage import register
from tests.unit.checker.listing import keep_segment, list_all, merge_all, put_list
from tests.unit.checker.worlds import FIRST, LEFT, World, orphan

DAMAGE, found = register()


@found(Kind.SEGMENT_GONE)
def segment_gone(world: World) -> None:
    world.put_seal(FIRST, 2, inline_segment=b"")


@found(Kind.SEGMENT_GONE, Kind.NOT_DECIDED)
def listed_segment_gone(world: World) -> None:
    list_all(world, FIRST)
    world.store.delete(Blob.SEGMENT, [world.slot(FIRST, 2)])


@found(Kind.SEGMENT_GONE, Kind.NOT_DECIDED)
def listed_segment_with_a_chunk_gone(world: World) -> None:
    list_all(world, FIRST)
    chunk = encode_segment(world.parts(FIRST, 2), chunks=2)
    world.store.put(Blob.SEGMENT, world.slot(FIRST, 2), [chunk])


@found(Kind.DECIDED_ELSEWHERE)
def merged_id_of_another_seal(world: World) -> None:
    merge_all(world, FIRST, shift=1)


@found(Kind.NOT_DECIDED)
def merged_ids_of_an_abandoned_history(world: World) -> None:
    merge_all(world, FIRST, incarnation=Incarnation(b"x" * 16))


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


@found(Kind.UNREADABLE)
def counts_that_do_not_add_up(world: World) -> None:
    counts = replace(world.seal(FIRST, 2).counts)
    object.__setattr__(counts, "read", counts.read + 1)
    world.put_seal(FIRST, 2, counts=counts)


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


@found(Kind.NEVER_INPUT, Kind.COUNTS)
def id_that_was_never_input(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    ids = raw_ids((*part, named(b"nobody's")))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), part.count + 1)


@found(Kind.NOT_DECIDED, Kind.PARENT)
def input_never_decided(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    world.put_parts(FIRST, 2, (part.rows(1, part.count),), part.count - 1)


@found(Kind.DECIDED_TWICE)
def id_decided_twice(world: World) -> None:
    (part,), (before,) = world.parts(FIRST, 2), world.parts(FIRST, 1)
    ids = raw_ids((*part, next(iter(before))))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), part.count + 1)


@found(Kind.DECIDED_TWICE)
def id_in_the_list_and_decided_behind_it(world: World) -> None:
    slots = [keep_segment(world, FIRST, seq) for seq in (1, 2)]
    put_list(world, FIRST, SegmentList(version=1, upto=1, slots=tuple(slots)))


@found(Kind.DECIDED_ELSEWHERE, Kind.PARENT)
def decided_by_a_later_repeat(world: World) -> None:
    # order-0 is repeated at offset 11, within the range of seal 2.
    (part,), (before,) = world.parts(FIRST, 2), world.parts(FIRST, 1)
    identity = named(b"order-0")
    without = raw_ids([i for i in before if i != identity])
    world.put_parts(FIRST, 1, (replace(before, ids=without),), before.count - 1)
    ids = raw_ids((*part, identity))
    world.put_parts(FIRST, 2, (replace(part, ids=ids),), part.count + 1)


@found(Kind.BUCKET)
def internal_id_kept_as_external(world: World) -> None:
    (part,) = world.parts(LEFT, 2)
    lane_time = Bucket.at(Origin.EXTERNAL, world.seal(LEFT, 2).lane_time_ms)
    world.put_parts(LEFT, 2, (Part(lane_time, part.ids),), part.count)


@found(Kind.BUCKET)
def external_id_that_goes_too_early(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    earlier = Bucket(Origin.EXTERNAL, part.bucket.number - 1)
    world.put_parts(FIRST, 2, (replace(part, bucket=earlier),), part.count)


@found(Kind.BUCKET)
def external_id_that_is_kept_as_if_for_ever(world: World) -> None:
    (part,) = world.parts(FIRST, 2)
    beyond = world.seal(FIRST, 2).minted_at_ms + WINDOW_MS_MAX + BUCKET_MS
    world.put_parts(
        FIRST, 2, (replace(part, bucket=Bucket.at(Origin.EXTERNAL, beyond)),), part.count
    )


@found(Kind.BUCKET)
def bucket_covers_a_lower_seq_than_it_holds(world: World) -> None:
    (part,) = world.parts(LEFT, 2)
    (seen,) = part.seen
    lower = replace(part, seen=(replace(seen, seq=seen.seq - 1),))
    world.put_parts(LEFT, 2, (lower,), part.count)


@found(Kind.PARENT, Kind.TWO_VERSIONS)
def output_of_an_input_outside_its_seal(world: World) -> None:
    orphan(world, FIRST, 3, (0, 0))


@found(Kind.PARENT)
def output_of_a_duplicate(world: World) -> None:
    # The record at offset 15 repeats the id of the one at 4.
    orphan(world, FIRST, 3, (0, 15))


@found(Kind.REPEAT)
def output_that_tells_of_a_duplicate_what_does_not_hold(world: World) -> None:
    said = (("delivery-duplicate", b'{"reason": "remnant", "lane": "%s"}' % FIRST.encode()),)
    orphan(world, FIRST, 3, (0, 15), said)


@found(Kind.TARGET)
def output_to_a_partition_that_is_not(world: World) -> None:
    world.put_rows(FIRST, 3, lambda rows: [*rows, rows[0]._replace(partition=9)])
