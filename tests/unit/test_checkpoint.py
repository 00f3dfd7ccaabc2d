"""Reading where a Structured Streaming query stands, from directories as Spark leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedup.errors import InvalidUsage
from delivery.seeding.checkpoint import Position, positions

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763480000000,"conf":{}}'


class Checkpoint:
    """A checkpoint directory, written as Spark writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, *lines: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines))

    def offsets(self, batch: int, *sources: object, version: str = "v1") -> None:
        told = [one if isinstance(one, str) else json.dumps(one) for one in sources]
        if version == "v2":
            told = [f"{number}:{one}" for number, one in enumerate(told)]
        self.write(f"offsets/{batch}", version, METADATA, *told)
        # What a file system of Hadoop's leaves beside it.
        self.write(f"offsets/.{batch}.crc", "crc")

    def commit(self, batch: int) -> None:
        self.write(f"commits/{batch}", "v1", '{"nextBatchWatermarkMs":0}')

    def stands(self, **more: str) -> dict[str, dict[int, int]]:
        found = positions(str(self.root), **more)
        assert all(isinstance(one, Position) for one in found.values())
        return {topic: dict(one.offsets) for topic, one in found.items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "query")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_offsets_of_the_last_committed_batch_count(checkpoint, version):
    for batch in range(12):
        offsets = {"orders": {"0": 10 * batch, "1": batch}}
        checkpoint.offsets(batch, offsets, version=version)
        checkpoint.commit(batch)
    assert checkpoint.stands() == {"orders": {0: 110, 1: 11}}


def test_several_sources_and_topics_count_and_those_that_are_not_kafkas_do_not(checkpoint):
    checkpoint.offsets(
        0,
        {"orders": {"0": 5}, "returns": {"0": 7, "1": 0}},
        {"logOffset": 3},
        "42",
        "-",
        {"users": {"0": 1}},
        {"orders": {"0": 5}},
    )
    checkpoint.commit(0)
    assert checkpoint.stands() == {"orders": {0: 5}, "returns": {0: 7, 1: 0}, "users": {0: 1}}


def open_batch(checkpoint: Checkpoint) -> None:
    checkpoint.offsets(0, {"orders": {"0": 5}})
    checkpoint.commit(0)
    checkpoint.offsets(1, {"orders": {"0": 9}})


def test_a_batch_that_is_not_committed_is_refused_unless_somebody_says_what_it_is(checkpoint):
    open_batch(checkpoint)
    with pytest.raises(InvalidUsage, match="start the old query once more") as raised:
        checkpoint.stands()
    assert raised.value.subject.endswith("batch 1")
    assert checkpoint.stands(uncommitted="again") == {"orders": {0: 5}}
    assert checkpoint.stands(uncommitted="done") == {"orders": {0: 9}}


def test_before_the_first_commit_a_query_stands_where_it_began(checkpoint):
    checkpoint.offsets(0, {"orders": {"0": 9}})
    # The zero byte is Spark's own, for readers of an old version.
    checkpoint.write("sources/0/0", "\0v1", '{"orders":{"0":4}}')
    assert checkpoint.stands(uncommitted="again") == {"orders": {0: 4}}


REFUSED = {
    "no directory": (lambda c: c.root, "there is no such directory"),
    "no batch": (lambda c: c.write("metadata", "{}"), "no query ever planned"),
    "offsets purged": (
        lambda c: (c.offsets(1, {"t": {"0": 1}}), c.commit(2)),
        "batch 2 is committed, and its offsets are gone",
    ),
    "a newer version": (
        lambda c: (c.offsets(0, {"t": {"0": 1}}, version="v3"), c.commit(0)),
        "version 'v3'",
    ),
    "names instead of numbers": (
        lambda c: (c.write("offsets/0", "v2", METADATA, '{"a": "{}"}'), c.commit(0)),
        "version 'v2'",
    ),
    "an empty file": (lambda c: (c.write("offsets/0", ""), c.commit(0)), "version ''"),
    "not text": (
        lambda c: (
            c.offsets(0, {"t": {"0": 1}}),
            c.commit(0),
            (c.root / "offsets/0").write_bytes(b"\xff"),
        ),
        "it is not text",
    ),
    "no kafka": (lambda c: (c.offsets(0, {"logOffset": 3}), c.commit(0)), "none of its sources"),
    "offsets that are none": (
        lambda c: (c.offsets(0, {"t": {"0": -2}}), c.commit(0)),
        "none of its sources",
    ),
    "two positions of one topic": (
        lambda c: (c.offsets(0, {"t": {"0": 1}}, {"t": {"0": 2}}), c.commit(0)),
        "two of its sources read t",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused(checkpoint, case):
    make, words = REFUSED[case]
    make(checkpoint)
    with pytest.raises(InvalidUsage) as raised:
        checkpoint.stands()
    assert words in raised.value.hint
    assert "nothing was written" in raised.value.hint


def test_a_uri_names_a_directory_as_a_path_does(checkpoint):
    checkpoint.offsets(0, {"orders": {"0": 5}})
    checkpoint.commit(0)
    assert positions(checkpoint.root.as_uri()) == positions(str(checkpoint.root))
