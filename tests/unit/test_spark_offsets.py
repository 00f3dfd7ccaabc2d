"""What Spark planned, read from its checkpoint: both formats of its log, new partitions, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedup.errors import Corrupt
from delivery.microbatch.offsets import Planned, checkpoint_at

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


def entry(*sources: object, version: str = "v1") -> str:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in sources]
    return "\n".join([version, METADATA, *lines])


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_the_first_batch_begins_where_the_query_was_told_to(tmp_path):
    write(tmp_path, "offsets/0", entry({"t": {"0": 7, "1": 3}}))
    planned = checkpoint_at(str(tmp_path)).planned(0, {"t": {0: 5, 1: 3}})
    assert planned == Planned({"t": {0: 5, 1: 3}}, {"t": {0: 7, 1: 3}})


def test_or_where_its_source_noted_that_it_began(tmp_path):
    write(tmp_path, "offsets/0", entry({"t": {"0": 7}}))
    write(tmp_path, "sources/0/0", 'v1\n{"t":{"0":2}}')
    assert checkpoint_at(str(tmp_path)).planned(0) == Planned({"t": {0: 2}}, {"t": {0: 7}})


def test_a_batch_begins_where_the_one_before_ended_and_a_new_partition_at_its_first(tmp_path):
    write(tmp_path, "offsets/4", entry({"t": {"0": 7}}))
    write(tmp_path, "offsets/5", entry({"t": {"0": 9, "1": 4}}))
    planned = checkpoint_at(str(tmp_path)).planned(5)
    assert planned == Planned({"t": {0: 7, 1: 0}}, {"t": {0: 9, 1: 4}})


def test_sources_are_put_together_and_those_without_offsets_left_out(tmp_path):
    write(tmp_path, "offsets/0", entry({"a": {"0": 1}}, "-", {"b": {"0": 2}}))
    assert checkpoint_at(str(tmp_path)).ends(0) == {"a": {0: 1}, "b": {0: 2}}


def test_named_sources_are_read_too(tmp_path):
    write(tmp_path, "offsets/0", entry('0:{"a":{"0":1}}', version="v2"))
    assert checkpoint_at(str(tmp_path)).ends(0) == {"a": {0: 1}}


@pytest.mark.parametrize(
    "text",
    [entry("12"), entry({"t": 3}), entry({"t": {"0": 1}}, {"t": {"0": 2}})],
    ids=["another source", "no offsets", "two ends"],
)
def test_what_is_no_range_of_kafka_is_an_error(tmp_path, text):
    write(tmp_path, "offsets/0", text)
    with pytest.raises(Corrupt, match="nothing was read from Kafka"):
        checkpoint_at(str(tmp_path)).ends(0)


def test_an_entry_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(Corrupt, match="it is not there"):
        checkpoint_at(str(tmp_path)).ends(3)


def test_a_checkpoint_is_given_its_identity_once(tmp_path):
    checkpoint = checkpoint_at((tmp_path / "new").as_uri())
    assert checkpoint.query_id() is None
    assert checkpoint.identify() == checkpoint.identify() == checkpoint.query_id()


def test_what_was_planned_and_what_is_done(tmp_path):
    checkpoint = checkpoint_at(str(tmp_path))
    assert (checkpoint.latest(), checkpoint.committed()) == (None, None)
    for path in ("offsets/9", "offsets/10", "offsets/.11.crc", "commits/9"):
        write(tmp_path, path, entry({"t": {"0": 1}}))
    assert (checkpoint.latest(), checkpoint.committed()) == (10, 9)
