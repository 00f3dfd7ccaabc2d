"""Where a bounded source ends, and which plans a bounded run is refused for, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dedup.errors import InvalidUsage
from delivery.broker import MemoryBroker
from delivery.host.spec import Plan, StageSpec
from delivery.microbatch.source import refuse_ours
from delivery.records import Record
from delivery.wrap.bounded import BoundedWriter, picked
from delivery.wrap.plans import Stream
from delivery.wrap.ranges import ends
from delivery.wrap.source import MAKING_OPTION, STAGE_OPTION, Wrapped
from tests.unit.memory_kafka import MemoryClient

BEGUN = {"in": {0: 1, 1: 4}}


@pytest.fixture
def client() -> Any:
    broker = MemoryBroker()
    broker.create("in", 2)
    for source, count in zip(broker.sources("in"), (3, 5), strict=True):
        for _ in range(count):
            broker.append(source, Record(value=b""))
    return MemoryClient(broker)


def ended(client: Any, said: str | None) -> dict[int, int]:
    topics = list(client.describe(["in"]).values())
    return ends(client, topics, said, BEGUN)["in"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, {0: 3, 1: 5}),
        ("latest", {0: 3, 1: 5}),
        ('{"in": {"0": 2, "1": -1}}', {0: 2, 1: 5}),
        ('{"in": {"0": 3, "1": 5}, "other": {}}', {0: 3, 1: 5}),
        # What is before the frontier is sealed: nothing of it is read.
        ('{"in": {"0": 0, "1": 2}}', {0: 1, 1: 4}),
    ],
)
def test_a_range_ends_where_it_is_told_to_and_never_before_it_begins(client, said, found):
    assert ended(client, said) == found


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("earliest", "it says nothing of topic in"),
        ("{", "it says nothing of topic in"),
        ("[]", "it says nothing of topic in"),
        ('{"in": 3}', "it says nothing of topic in"),
        ('{"other": {"0": 1, "1": 1}}', "it says nothing of topic in"),
        ('{"in": {"0": 1}}', r"has the partitions \[0, 1\]"),
        ('{"in": {"0": 1, "1": 1, "2": 1}}', r"has the partitions \[0, 1\]"),
        (
            '{"in": {"0": 4, "1": 1}}',
            "partition 0 of topic in ends at 3, as far as it is committed",
        ),
        ('{"in": {"0": 1, "1": -2}}', "partition 1 of topic in ends at 5"),
    ],
)
def test_an_end_that_is_not_said_plainly_is_refused(client, said, why):
    with pytest.raises(InvalidUsage, match=why) as refused:
        ended(client, said)
    assert "nothing was read: name every partition of the topic once" in str(refused.value)


@pytest.mark.parametrize("option", ["endingTimestamp", "endingOffsetsByTimestamp"])
def test_times_are_no_ends(option):
    with pytest.raises(InvalidUsage, match="a run ends at offsets, which endingOffsets may say"):
        refuse_ours({option: "1"})


# Plans ----------------------------------------------------------------------------------------


def stage(name: str, *topics: str) -> Wrapped:
    plan = Plan(catalog="memory:", kafka="here:9092", stages=())
    spec = StageSpec(pipeline="p", name=name, reads="", call=lambda _: None)
    no_spark: Any = None
    made = Wrapped(plan=plan, spec=spec, spark=no_spark, reports=None, bounded=True)
    made.topics = dict.fromkeys(topics)  # type: ignore[arg-type] # only their names are looked at
    return made


def read(wrapped: Wrapped, *topics: str) -> Stream:
    told = {topic: [0, 1] for topic in topics}
    options = {
        STAGE_OPTION: wrapped.spec.prefix,
        MAKING_OPTION: wrapped.query,
        "assign": json.dumps(told),
    }
    return Stream("kafka", options)


def test_a_plan_reads_all_of_one_stage_as_often_as_it_likes_and_what_is_not_wrapped_beside_it():
    one, other = stage("one", "a", "b"), stage("other", "c")
    known = {"one": one, "other": other}
    unwrapped = Stream("kafka", {"subscribe": "c"})
    assert picked(known, [read(one, "a"), unwrapped, read(one, "b"), read(one, "a")]) is one


def test_a_plan_that_would_seal_what_it_did_not_read_is_refused():
    one, other, remade = stage("one", "a", "b"), stage("other", "c"), stage("one", "a", "b")
    known = {"one": one, "other": other}
    for found, why in (
        ([], "a plan over no wrapped source"),
        ([Stream("kafka", {"subscribe": "a"})], "a plan over no wrapped source"),
        ([read(one, "a", "b"), read(other, "c")], "a plan over p/one/, p/other/"),
        ([read(stage("gone", "a"), "a")], "a plan over p/gone/"),
        ([read(one, "a")], "b is wrapped for it too, and would be sealed unread"),
        ([read(one, "a", "b"), read(remade, "a")], "was made by an earlier"),
    ):
        with pytest.raises(InvalidUsage, match="nothing was started") as refused:
            picked(known, found)
        assert why in str(refused.value)


@pytest.mark.parametrize(
    "say",
    [
        lambda writer: writer.mode("overwrite"),
        lambda writer: writer.mode("ignore"),
        lambda writer: writer.format("parquet"),
        lambda writer: writer.option("topic", "b"),
        lambda writer: writer.options(includeHeaders=True),
    ],
)
def test_a_writer_takes_what_makes_sense_of_topics_and_refuses_the_rest(say):
    no_frame: Any = None
    writer = BoundedWriter(no_frame, stage("one", "a"), ("out",), "")
    assert writer.mode("append").mode(None).format("kafka").options() is writer
    with pytest.raises(InvalidUsage, match="rows are added to topics"):
        say(writer)
