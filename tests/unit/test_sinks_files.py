"""The files sink: names, what is visible when, and writers that are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dedup.arrays import pack
from dedup.errors import InvalidUsage, Unavailable
from dedup.model import Incarnation, RecordId
from delivery.header import NAME, Header, encode_header
from delivery.host.spec import StageSpec
from delivery.ports import Emissions, Source
from delivery.protocol.senders import Mark
from sinks.files import IDENTITY, STAGED, WRITTEN_NOT_RENAMED, FilesEmitter, read_files

#: Values that a line of JSON must give back to the byte.
VALUES = [
    b'{"a":1,"b":[null,"\xc3\xa9"]}',
    b'{"a": 1}',
    b"NaN",
    b"plain",
    b'"quoted"',
    b"\xff\x00",
    b"",
    None,
    b'{"base64":"x"}',
    b"[" * 100_000,
    b"1e5",
    "\u2028\r\n".encode(),
    b'{"a":1,"a":2}',
]


def bundle(seq: int = 7, values=VALUES, lane: str = "shop/price/orders-3") -> Emissions:
    """Return the emissions of one bundle."""
    mark = Mark(lane, Incarnation(b"i" * 16), seq, 1)
    ids = [RecordId(b"%016d" % number) for number in range(len(values))]
    return Emissions(
        [0] * len(values),
        [3] * len(values),
        [b"k"] * len(values),
        values,
        [((NAME, encode_header(Header(one, mark, (3, 0)))),) for one in ids],
        pack(ids),
    )


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_bundle_is_one_file_and_reads_back_to_the_byte(tmp_path, form):
    emitter = FilesEmitter(f"files:{tmp_path}/out?format={form}")
    behind = emitter.emit(bundle())
    assert emitter.emit(bundle()) == behind, "again is the same"
    (file,) = (tmp_path / "out").glob(f"*.{form}")
    assert file.name.startswith("orders-3-000000000007-")
    records = list(read_files(tmp_path / "out"))
    assert [record.value for record in records] == VALUES
    assert {record.key for record in records} == {b"k"}
    assert [record.headers for record in records] == list(bundle().headers)
    source = Source(emitter.writes[0], 3)
    assert {record.source for record in records} == {source}
    assert behind.at(source) == records[-1].offset + 1


def test_json_lines_are_json(tmp_path):
    FilesEmitter(f"files:{tmp_path}?format=jsonl").emit(bundle())
    (file,) = tmp_path.glob("*.jsonl")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    lines = [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()[:1]]
    assert lines[0]["value"] == {"json": {"a": 1, "b": [None, "é"]}}
    assert lines[0]["id"] == (b"%016d" % 0).hex()


def test_parquet_has_ids_and_plain_columns(tmp_path):
    FilesEmitter(f"files:{tmp_path}").emit(bundle())
    (file,) = tmp_path.glob("*.parquet")
    table = pq.ParquetFile(file).read()
    assert table.column_names == ["id", "key", "value", "headers", "partition"]
    assert table.column("value").to_pylist() == VALUES


def test_bundles_have_names_of_their_own(tmp_path):
    emitter = FilesEmitter(f"files:{tmp_path}")
    long = "shop/price/" + "o" * 240 + "-3"
    behind = [
        emitter.emit(bundle(seq, [b"%d" % seq], lane))
        for seq, lane in [(1, "shop/price/orders-3"), (2, "shop/price/orders-3"), (3, long)]
    ]
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    assert [record.value for record in read_files(tmp_path)] == [b"1", b"2", b"3"]
    offsets = [frontier.at(Source(emitter.writes[0], 3)) for frontier in behind]
    assert offsets == sorted(offsets), "what is acknowledged only grows"


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_writer_killed_before_it_publishes_leaves_nothing_to_see(tmp_path, form):
    """Twenty times; then somebody else writes the same bundle, and takes the leftovers away."""
    target = f"files:{tmp_path}/out?format={form}"
    FilesEmitter(target)
    for _ in range(20):
        child = os.fork()
        if not child:
            FilesEmitter(target, _die).emit(bundle())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert list(read_files(tmp_path / "out")) == []
    assert len(list((tmp_path / "out" / STAGED).iterdir())) == 20
    FilesEmitter(target).emit(bundle())
    assert [record.value for record in read_files(tmp_path / "out")] == VALUES
    assert list((tmp_path / "out" / STAGED).iterdir()) == []


def _die(point: str) -> None:
    assert point == WRITTEN_NOT_RENAMED
    os.kill(os.getpid(), signal.SIGKILL)


def test_who_is_overtaken_by_another_writer_of_the_same_bundle_is_content(tmp_path):
    target = f"files:{tmp_path}"

    def overtaken(_point: str) -> None:
        FilesEmitter(target).emit(bundle())

    FilesEmitter(target, overtaken).emit(bundle())
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_directory_that_cannot_be_written_is_told_and_written_again(tmp_path):
    emitter = FilesEmitter(f"files:{tmp_path}/out")
    staged = tmp_path / "out" / STAGED
    staged.rmdir()
    staged.touch()
    with pytest.raises(Unavailable, match="nothing half is visible"):
        emitter.emit(bundle())
    staged.unlink()
    staged.mkdir()
    emitter.emit(bundle())
    assert len(list(read_files(tmp_path / "out"))) == len(VALUES)


def test_a_directory_has_an_identity(tmp_path):
    first = FilesEmitter(f"files:{tmp_path}/out")
    assert FilesEmitter(f"files:{tmp_path}/out").writes == first.writes
    assert FilesEmitter(f"files:{tmp_path}/other").writes != first.writes
    Path(tmp_path / "out" / IDENTITY).write_text("00")
    with pytest.raises(InvalidUsage, match="identity"):
        FilesEmitter(f"files:{tmp_path}/out")


@pytest.mark.parametrize(
    "target", ["files:", "out", "files:out?format=csv", "files:out?shape=round"]
)
def test_a_malformed_target_is_refused(target):
    with pytest.raises(InvalidUsage, match="write files"):
        FilesEmitter(target)


def test_a_sink_that_is_not_there_is_refused_where_it_is_said():
    def spec(*writes: str) -> StageSpec:
        return StageSpec(pipeline="p", name="s", reads="in", writes=writes, call=print)

    assert spec("a", "files:b", "cassandra://c:1/d/e").kafka_topics == ("a",)
    with pytest.raises(InvalidUsage, match="no sink of this name"):
        spec("http://somewhere")


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidUsage, match="there is no such directory"):
        list(read_files(tmp_path / "nowhere"))
