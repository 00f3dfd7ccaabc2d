"""The examples of docs/formats.md are what the code writes and reads."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from dedup.arrays import from_raw, to_raw
from dedup.backup import Frame, back_up
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import CHUNK_BYTES_MAX
from dedup.formats.dropped import Run, Verdict, decode_dropped, encode_dropped
from dedup.formats.envelope import ENVELOPE_BYTES, Kind, Reader, Writer, unwrap, wrapped_bytes
from dedup.formats.lane import (
    decode_ack,
    decode_head,
    decode_seal,
    decode_segment_list,
    encode_ack,
    encode_head,
    encode_seal,
    encode_segment_list,
)
from dedup.formats.merged import Merged, merged_at
from dedup.formats.segment import (
    BUCKET_MS,
    CHUNK_IDS,
    Bucket,
    Origin,
    Part,
    decode_segment,
    encode_segment,
    raw_ids,
)
from dedup.ids import minted, named, positional
from dedup.model import (
    LANE_NAME_BYTES_MAX,
    Ack,
    Attempt,
    BlobRef,
    Counts,
    Frontier,
    Head,
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
from dedup.runs import open_run, write_run
from delivery.batch import Row, Rows
from delivery.checker import chunks as checker
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.outputs import NULL_WORD, content_digest, decode_outputs
from delivery.protocol.senders import Mark
from delivery.recipe import Recipe, encode_recipe, recipe_in
from delivery.records import Output

DOC = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()

LANE, MS = "shop/price/orders-0", 1_700_000_000_000
ORDERS, WRITTEN = TopicId(b"\x11" * 16), TopicId(b"\x44" * 16)
REF = HeadRef(Incarnation(b"\x22" * 16), 5, Attempt(b"\x33" * 16))
SOURCE = Source(ORDERS, 3)
LEARNED = (ReadSeq("shop/in/raw-0", Incarnation(b"\x55" * 16), ORDERS, 9),)
IDS = {
    "named": named(b"order-42"),
    "positional": positional(SOURCE, 107),
    "minted": minted(REF.attempt, 0, 5),
}
EXTERNAL = Part(
    Bucket(Origin.EXTERNAL, MS // BUCKET_MS), raw_ids((IDS["named"], IDS["positional"]))
)
INTERNAL = Part(
    Bucket(Origin.INTERNAL, MS // BUCKET_MS),
    IDS["minted"],
    (ReadSeq(LANE, REF.incarnation, WRITTEN, 5),),
)
INLINE = encode_segment((EXTERNAL,))
ORIGINS = ((Incarnation(b"\x77" * 16), 1), (REF.incarnation, 4))
ORIGIN_OF = np.array([1, 0], dtype="<u2")
DIGESTS = np.array([0xD19E, 0x5700], dtype="<u2")
TIER = Bucket(Origin.EXTERNAL, MS // BUCKET_MS // 4 * 4, 4)
MERGED = Part(TIER, EXTERNAL.ids, (), DIGESTS.tobytes(), ORIGINS, ORIGIN_OF.tobytes())
NAMED = Merged(TIER, 1, b"\x88" * 6, 1)
SEAL = Seal(
    ref=REF,
    start=Frontier(((SOURCE, 100),)),
    end=Frontier(((SOURCE, 110),)),
    minted_at_ms=MS,
    lane_time_ms=MS - 5000,
    code="v1",
    counts=Counts(read=4, fresh=2, duplicate=1, remnant=1),
    learned=LEARNED,
    outputs=BlobRef(chunks=2, rows=2, size=9000, digest=b"\x66" * 16),
    segment=blob_ref([INLINE], 2),
    inline_segment=INLINE,
    window_ms=24 * 3_600_000,
    named="header:id",
)
HEAD = Head(
    ref=REF,
    frontier=SEAL.end,
    lane_time_ms=SEAL.lane_time_ms,
    minted_at_ms=MS,
    read_seqs=LEARNED,
    topics=(("orders", ORDERS),),
    writes=(WRITTEN,),
    past=(Kept(Incarnation(b"\x77" * 16), 2),),
    window_ms=SEAL.window_ms,
    named=SEAL.named,
)
ACK = Ack(REF.incarnation, 5, Frontier(((Source(WRITTEN, 0), 41), (Source(WRITTEN, 1), 12))))
AT_0 = HeadRef(REF.incarnation, 0, REF.attempt)
SEAL_AT_0 = Seal(ref=AT_0, start=SEAL.start, end=SEAL.start, minted_at_ms=0, lane_time_ms=0)
HEAD_AT_0 = Head(ref=AT_0, frontier=SEAL.start)
DROPPED = [
    Run(Source(ORDERS, 3), 101, 2, Verdict.DUPLICATE),
    Run(Source(ORDERS, 3), 107, 1, Verdict.REMNANT),
    Run(Source(ORDERS, 4), 7, 300, Verdict.ABANDONED),
]
LISTED = SegmentList(
    version=2, upto=4, slots=(Slot(LANE, REF.incarnation, 4, REF.attempt), NAMED.slot(LANE, 0))
)
RECIPE = Recipe(counts=(2,), digest=bytes.fromhex("0c85d47a3e017a81db3a9b58fa6b9db5"))
HEADER = Header(IDS["minted"], Mark(LANE, REF.incarnation, 5, MS), (3, 107))


def example(name: str) -> bytes:
    """Read the block of hexadecimal digits that is called so."""
    return bytes.fromhex(re.search(rf"^```hex {name}\n([^`]*)```$", DOC, re.MULTILINE)[1])


def table(heading: str, first: str) -> list[list[str]]:
    """Read the table below a heading whose first column is called so."""
    section = DOC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = section.partition(f"\n| {first} |")[2].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    assert rows, f"no table {first} below {heading}"
    return rows


WRITTEN_BY_CODE = {
    "header": encode_header(HEADER),
    "empty acknowledgement": encode_ack(Ack(REF.incarnation, 0)),
    "seal": encode_seal(SEAL),
    "head": encode_head(HEAD),
    "acknowledgement": encode_ack(ACK),
    "segment list": encode_segment_list(LISTED),
    "segment": encode_segment((INTERNAL, EXTERNAL)),
    "dropped": encode_dropped(DROPPED),
    "merged segment": encode_segment((MERGED,)),
    "recipe": encode_recipe(RECIPE),
}


@pytest.mark.parametrize("name", WRITTEN_BY_CODE)
def test_the_code_writes_the_example(name):
    assert WRITTEN_BY_CODE[name].hex() == example(name).hex()


def test_the_code_reads_the_examples():
    assert decode_header(example("header")) == HEADER
    assert decode_dropped(example("dropped"), "doc") == DROPPED
    assert decode_ack(example("empty acknowledgement"), "doc") == Ack(REF.incarnation, 0)
    assert decode_seal(example("seal"), "doc") == SEAL
    assert decode_head(example("head"), "doc") == HEAD
    assert decode_ack(example("acknowledgement"), "doc") == ACK
    assert decode_segment_list(example("segment list"), "doc") == LISTED
    assert decode_segment(example("segment"), "doc") == (INTERNAL, EXTERNAL)
    assert decode_segment(example("merged segment"), "doc") == (MERGED,)
    assert recipe_in([example("recipe")], "doc") == RECIPE
    assert recipe_in([example("outputs")], "doc") is None
    assert [merged_at(slot) for slot in LISTED.slots] == [None, (NAMED, 0)]


def test_the_run_is_the_merged_segment_in_a_file(tmp_path):
    ids = from_raw(MERGED.ids)
    path = tmp_path / "run"
    write_run(path, LANE, TIER, ids, origins=ORIGINS, origin_of=ORIGIN_OF, digests=DIGESTS)
    assert path.read_bytes().hex() == example("run").hex()
    path.write_bytes(example("run"))
    run = open_run(path, LANE)
    assert (run.bucket, run.origins, to_raw(run.ids)) == (TIER, ORIGINS, MERGED.ids)
    rows = run.find(ids)
    assert [run.origin(rows).tolist(), run.digest(rows).tolist()] == [[1, 0], DIGESTS.tolist()]
    assert run.verify()


def test_no_example_is_left_untested():
    names = set(re.findall(r"^```hex (.+)$", DOC, re.MULTILINE))
    assert names == {*WRITTEN_BY_CODE, "outputs", "run"}


def test_the_stored_outputs_are_the_rows_of_the_table():
    emitted = list(decode_outputs([example("outputs")], "doc"))
    rows = table("Outputs", "ordinal")
    assert len(rows) == len(emitted)
    for ordinal, (row, emission) in enumerate(zip(rows, emitted, strict=True)):
        parent = tuple(int(number) for number in row[3].split(","))
        record_id = minted(REF.attempt, int(row[1]), ordinal)
        ours = encode_header(Header(record_id, HEADER.mark, parent))
        theirs = re.findall(r"(\w+)` = `(\w+)", f"`{row[6]}`") if row[6] else []
        headers = tuple((name, bytes.fromhex(value)) for name, value in theirs)
        assert (int(row[0]), int(row[1]), int(row[2])) == (
            ordinal,
            emission.edge,
            emission.partition,
        )
        assert (emission.key, emission.value) == tuple(
            None if cell == "null" else bytes.fromhex(cell) for cell in row[4:6]
        )
        assert emission.headers == (*headers, (NAME, ours))
        assert emission.id == record_id


def test_the_digest_of_a_recipe_is_that_of_the_rows_of_the_table():
    """Two readers agree: the one that writes recipes, and the checker's."""
    _, promised = checker._chunk(example("outputs"), "doc")
    assert checker.content_digest(promised) == RECIPE.digest
    assert checker.read_recipe([example("recipe")], "doc") == RECIPE.digest
    rows = Rows.of(
        Row(
            output=Output(value=one.value, key=one.key, headers=one.headers, edge=one.edge),
            partition=one.partition,
            parent=one.parent,
        )
        for one in promised
    )
    assert content_digest(rows) == RECIPE.digest
    assert f"their digest is `{RECIPE.digest.hex()}`" in DOC
    assert f"that of null is `{NULL_WORD:016x}`" in DOC
    assert checker.NOTHING == NULL_WORD


def test_the_columns_of_outputs_are_those_of_the_reader():
    types = {
        "uint16": pa.uint16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "fixed size binary 16, null unless the id is kept": pa.binary(16),
        "binary": pa.binary(),
        "binary, null for a tombstone": pa.binary(),
        "list of struct of `name` utf8 and `value` binary": pa.list_(
            pa.struct([("name", pa.string()), ("value", pa.binary())])
        ),
    }
    columns = [(name, types[text]) for name, text in table("Outputs", "column")]
    assert pa.schema(columns) == checker._ROW


def test_the_table_of_the_header_cuts_the_example_into_its_fields():
    value, at = example("header"), 0
    for offset, size, _, field in table("The record header", "offset"):
        assert int(offset) == at
        end = at + int(size) if size.isdigit() else len(value)
        assert value[at:end].hex() == field
        at = end
    assert at == len(value)


def test_the_rules_of_the_header_name_its_real_bounds():
    shortest, longest = re.search(r"shorter than (\d+) bytes or longer than (\d+)", DOC).groups()
    value = example("header")
    fixed = value[: int(shortest) - 1]
    assert decode_header(fixed) is None
    assert decode_header(fixed + b"l") is not None
    assert decode_header(fixed + b"l" * LANE_NAME_BYTES_MAX) is not None
    assert len(fixed) + LANE_NAME_BYTES_MAX == int(longest)
    assert decode_header(fixed + b"l" * (LANE_NAME_BYTES_MAX + 1)) is None
    assert decode_header(bytes([2]) + value[1:]) is None
    assert decode_header(value[:1] + bytes([2]) + value[2:]) is None
    assert decode_header(value[:-1] + b"\xff") is None


def test_the_ids_are_made_as_the_page_says():
    assert {row[0]: row[2] for row in table("Ids", "example")} == {
        name: record_id.hex() for name, record_id in IDS.items()
    }
    assert IDS["named"] == xxhash.xxh3_128_digest(b"order-42")
    message = ORDERS + struct.pack("<QQ", 3, 107)
    assert IDS["positional"] == xxhash.xxh3_128_digest(message)
    assert IDS["minted"] == xxhash.xxh3_128_digest(REF.attempt + struct.pack("<QQ", 0, 5))


def test_the_numbers_are_written_as_the_page_says():
    for number, written in table("Conventions", "number"):
        assert Writer().uint(int(number)).body().hex() == written


def test_the_envelope_is_laid_out_as_the_page_says():
    blob = example("seal")
    assert [int(row[0]) for row in table("The envelope", "offset")] == [0, 2, 3, 4, 8, 16]
    magic, kind, version, length, checksum = struct.unpack_from("<2sBBIQ", blob)
    assert magic.hex() == table("The envelope", "offset")[0][2].split("`")[0]
    assert (kind, version, length) == (Kind.SEAL, 3, len(blob) - ENVELOPE_BYTES)
    assert checksum == xxhash.xxh3_64_intdigest(blob[:8] + blob[16:])
    assert wrapped_bytes(blob, "doc") == len(blob)
    kinds = {name.replace(" ", "_"): int(n) for name, n, _ in table("The envelope", "kind")}
    kinds["ack"] = kinds.pop("acknowledgement")
    assert kinds == {kind.name.lower(): kind.value for kind in Kind}


def test_every_kind_is_at_the_version_the_page_names():
    (backup,) = back_up(Catalog(MemoryStore()))
    blobs = {**WRITTEN_BY_CODE, "outputs": example("outputs"), "backup": backup}
    for name, number, version in table("The envelope", "kind"):
        found, _ = unwrap(blobs[name], Kind(int(number)), version_max=99, place="doc")
        assert found == int(version)


def test_a_backup_has_the_frames_of_the_page():
    numbers = {name: int(number) for name, number, _ in table("Backup", "frame")}
    assert numbers == {frame.name.lower(): frame.value for frame in Frame}
    catalog = Catalog(MemoryStore())
    assert catalog.create(LANE, HEAD_AT_0, SEAL_AT_0)
    frames = [
        Reader(unwrap(frame, Kind.BACKUP, version_max=1, place="doc")[1], "doc")
        for frame in back_up(catalog)
    ]
    lane, entry, end = frames
    assert (lane.uint(), lane.text()) == (numbers["lane"], LANE)
    assert decode_head(lane.data(), "doc") == HEAD_AT_0
    assert decode_ack(lane.data(), "doc") == Ack(REF.incarnation, 0)
    assert lane.uint() == 0
    assert (entry.uint(), entry.text()) == (numbers["entry"], LANE)
    assert decode_seal(entry.data(), "doc") == SEAL_AT_0
    assert (end.uint(), end.uint()) == (numbers["end"], 2)
    for frame in frames:
        frame.end()


def test_buckets_origins_and_limits_are_those_of_the_code():
    assert f"/ {BUCKET_MS}," in DOC
    assert f"at most {CHUNK_IDS} ids" in DOC
    assert f"longer than {CHUNK_BYTES_MAX} bytes" in DOC
    origins = {name: int(number) for name, number, _, _ in table("Buckets", "origin")}
    assert origins == {origin.name.lower(): origin.value for origin in Origin}


def test_the_digest_of_two_chunks():
    assert f"it is `{blob_ref([b'ab', b'c'], 1).digest.hex()}`" in DOC
    assert blob_ref([], 0).digest == bytes(16)
