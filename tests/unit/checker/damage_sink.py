"""Damage to what left the pipeline, and to what is said of it."""

from __future__ import annotations

from dedup.catalog.catalog import blob_ref
from dedup.formats.lane import (
    decode_ack,
)
from dedup.model import (
    Frontier,
    Incarnation,
)
from delivery.checker import Kind
from delivery.recipe import Recipe, encode_recipe
from delivery.records import Record
from tests.unit.checker.damage import register
from tests.unit.checker.listing import list_all
from tests.unit.checker.worlds import FIRST, LEFT, World, abandon, drop_outputs, flipped

DAMAGE, found = register()


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
    world.broker.append(source, world.broker.partitions[source][offset]._replace(value=b"other"))


@found(Kind.PAYLOAD)
def copy_with_another_header(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    record = world.broker.partitions[source][offset]
    headers = (("trace", b"other"), *record.headers[1:])
    world.broker.append(source, record._replace(headers=headers))


@found(Kind.PAYLOAD)
def copy_in_another_partition(world: World) -> None:
    source, offset = world.sent(LEFT, 1)
    other = next(s for s in world.broker.sources("out") if s != source)
    world.broker.append(other, world.broker.partitions[source][offset])


@found(Kind.PAYLOAD)
def copy_differs_where_outputs_were_collected(world: World) -> None:
    drop_outputs(world, LEFT, 1)
    copy_with_another_value(world)


@found(Kind.NOT_OF_SEAL, Kind.TWO_VERSIONS)
def attempt_that_lost_where_outputs_were_collected(world: World) -> None:
    at = world.sent(LEFT, 1)
    drop_outputs(world, LEFT, 1)
    world.again(at, id=b"i" * 16)


@found(Kind.TWO_VERSIONS)
def two_seals_made_outputs_of_one_input(world: World) -> None:
    """The entries are gone, so only the sink can tell."""
    at = world.sent(LEFT, 1)
    list_all(world, LEFT)
    drop_outputs(world, LEFT, 2)
    for seq in (0, 1, 2):
        world.drop_seal(LEFT, seq)
    world.again(at, seq=2, id=b"i" * 16)


@found(Kind.TWO_VERSIONS)
def two_attempts_emitted_one_seal(world: World) -> None:
    at = world.sent(LEFT, 1)
    list_all(world, LEFT)
    drop_outputs(world, LEFT, 1)
    for seq in (0, 1):
        world.drop_seal(LEFT, seq)
    world.again(at, minted_at_ms=5, id=b"i" * 16)


@found(Kind.LOST)
def acknowledged_output_missing(world: World) -> None:
    world.put_record(*world.sent(LEFT, 1), None)


@found(Kind.LOST)
def acknowledged_output_missing_after_collection(world: World) -> None:
    drop_outputs(world, LEFT, 1)
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


@found(Kind.REMADE)
def outputs_made_again_that_say_something_else(world: World) -> None:
    world.forget_rows(LEFT, 1)
    source, offset = world.sent(LEFT, 1)
    record = world.broker.partitions[source][offset]
    world.put_record(source, offset, record._replace(value=b"other"))


@found(Kind.REMADE)
def outputs_made_again_with_another_header(world: World) -> None:
    world.forget_rows(LEFT, 1)
    source, offset = world.sent(LEFT, 1)
    record = world.broker.partitions[source][offset]
    world.put_record(
        source, offset, record._replace(headers=(("trace", b"other"), record.headers[-1]))
    )


@found(Kind.REMADE)
def outputs_of_which_the_recipe_says_something_else(world: World) -> None:
    world.forget_rows(LEFT, 1)
    blob = encode_recipe(Recipe(counts=(2,), digest=b"d" * 16))
    rows = world.seal(LEFT, 1).outputs.rows
    world.put_seal(LEFT, 1, outputs=blob_ref([blob], rows), inline_outputs=blob)


@found(Kind.DIGEST)
def recipe_that_is_not_the_one_that_was_sealed(world: World) -> None:
    world.forget_rows(LEFT, 1)
    world.put_seal(LEFT, 1, inline_outputs=encode_recipe(Recipe(counts=(2,), digest=b"d" * 16)))


@found(Kind.UNREADABLE)
def recipe_that_is_torn(world: World) -> None:
    world.forget_rows(LEFT, 1)
    blob = flipped(world.seal(LEFT, 1).inline_outputs)
    rows = world.seal(LEFT, 1).outputs.rows
    world.put_seal(LEFT, 1, outputs=blob_ref([blob], rows), inline_outputs=blob)


@found(Kind.LOST)
def outputs_never_sent_that_can_be_made_again(world: World) -> None:
    world.forget_rows(LEFT, 1)
    world.put_record(*world.sent(LEFT, 1), None)


@found(Kind.NOT_OF_SEAL)
def output_that_no_attempt_can_have_made(world: World) -> None:
    world.forget_rows(LEFT, 1)
    world.again(world.sent(LEFT, 1), id=b"i" * 16, parent=(0, 99))


@found(Kind.DELIVERED_LOW)
def outputs_made_again_that_lie_behind_what_was_delivered(world: World) -> None:
    world.forget_rows(LEFT, 3)
    world.forget_rows(LEFT, 1)
    source, offset = world.sent(LEFT, 1)
    record = world.broker.partitions[source][offset]
    world.put_record(source, offset, None)
    world.broker.append(source, record)
