"""One flipped bit in any blob of the raw SQLite rows is `Corrupt`, and the message names the place."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.sqlite import SqliteStore
from dedup.catalog.sqlite_file import PAGE_BYTES
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.formats import lane as lane_format
from dedup.model import Ack, SegmentList
from tests.conformance.values import acknowledged, first, following, slot

#: Bits flipped in each blob; of a smaller blob all bytes are hit.
FLIPS_MAX = 300


@pytest.fixture
def damaged(tmp_path, lane):
    """Give a catalog with one of everything, and a function that flips a bit of a column."""
    path = tmp_path / "catalog.db"
    catalog = Catalog(SqliteStore(path))
    head, seal = first()
    assert catalog.create(lane, head, seal)
    chunks = {
        Blob.OUTPUTS: [os.urandom(20_000), os.urandom(20_000)],
        Blob.SEGMENT: [os.urandom(8_000)],
        Blob.DROPPED: [os.urandom(5_000)],
    }
    after, seal = following(head, **{kind.value: blobs for kind, blobs in chunks.items()})
    for kind, blobs in chunks.items():
        catalog.put(kind, slot(lane, seal.ref), blobs, 10)
    assert catalog.append(lane, head.ref, after, seal)
    assert catalog.acknowledge(lane, Ack(head.ref.incarnation, 0), acknowledged(after))
    listed = SegmentList(version=1, upto=0, slots=(slot(lane, seal.ref),))
    assert catalog.replace_segment_list(lane, None, listed)
    inlined, last = following(after, [os.urandom(100)])
    assert catalog.append(lane, after.ref, inlined, last)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        yield catalog, seal, last, raw
    catalog.store.close()


def flips(raw, table, column, where):
    """Flip one bit after another in one blob, yielding with each; the last state is the first."""
    select = f"SELECT {column} FROM {table} WHERE {where}"  # noqa: S608 - constants of this file
    update = f"UPDATE {table} SET {column} = ? WHERE {where}"  # noqa: S608 - constants of this file
    ((blob,),) = raw.execute(select).fetchall()
    places = range(len(blob))
    for at in places if len(blob) <= FLIPS_MAX else random.sample(places, FLIPS_MAX):
        flipped = bytearray(blob)
        flipped[at] ^= 1 << random.randrange(8)
        raw.execute(update, (bytes(flipped),))
        yield
    raw.execute(update, (blob,))


def test_heads_and_acknowledgements(damaged, lane):
    catalog, _, _, raw = damaged
    for column in ("head", "ack", "incarnation", "attempt", "ack_incarnation"):
        for _ in flips(raw, "lane", column, "true"):
            with pytest.raises(Corrupt, match=f"head of {lane}"):
                catalog.load(lane)
        assert catalog.load(lane).head.ref.seq == 2


@pytest.mark.parametrize(("column", "bit_min"), [("seq", 0), ("ack_seq", 0), ("collected", 1)])
def test_numbers_beside_the_blobs(damaged, lane, column, bit_min):
    """Of `collected` only what contradicts the acknowledgement, which is at 1, can be noticed."""
    catalog, _, _, raw = damaged
    for bit in range(bit_min, 62):
        change = f"UPDATE lane SET {column} = ({column} | {1 << bit}) - ({column} & {1 << bit})"  # noqa: S608 - constants of this file
        raw.execute(change)
        with pytest.raises(Corrupt, match=f"head of {lane}"):
            catalog.load(lane)
        raw.execute(change)
    assert catalog.load(lane).head.ref.seq == 2


def test_entries(damaged, lane):
    catalog, first_seal, last, raw = damaged
    for seal in (first_seal, last):
        for _ in flips(raw, "entry", "entry", f"seq = {seal.ref.seq}"):
            with pytest.raises(Corrupt, match=f"entry {seal.ref.seq} of {lane}"):
                catalog.seal(lane, seal.ref.incarnation, seal.ref.seq)
        assert catalog.seal(lane, seal.ref.incarnation, seal.ref.seq) == seal


@pytest.mark.parametrize(
    ("kind", "ordinal"), [("outputs", 0), ("outputs", 1), ("segment", 0), ("dropped", 0)]
)
def test_chunks(damaged, lane, kind, ordinal):
    catalog, seal, _, raw = damaged
    for _ in flips(raw, "chunk", "bytes", f"kind = '{kind}' AND ordinal = {ordinal}"):
        with pytest.raises(Corrupt, match=f"{kind} of {lane} seq 1"):
            catalog.get(Blob(kind), lane, seal)
    assert catalog.get(Blob(kind), lane, seal) is not None


def test_segment_lists(damaged, lane):
    catalog, _, _, raw = damaged
    for _ in flips(raw, "segment_list", "list", "true"):
        with pytest.raises(Corrupt, match=f"segment list of {lane}"):
            catalog.segment_list(lane)
    assert catalog.segment_list(lane).version == 1


def test_a_newer_format_is_refused_by_the_release_that_wrote_it(damaged, lane, monkeypatch):
    """Not `Corrupt`: its bytes are whole, and only this release is too old for them."""
    catalog, _, _, _ = damaged
    row = catalog.load(lane)
    with monkeypatch.context() as newer:
        newer.setattr("dedup.formats.lane.HEAD_VERSION", lane_format.HEAD_VERSION + 1)
        newer.setattr("dedup.formats.lane.SEAL_VERSION", lane_format.SEAL_VERSION + 1)
        after, seal = following(row.head)
        assert catalog.append(lane, row.head.ref, after, seal)
    with pytest.raises(InvalidUsage, match="install the release that wrote it"):
        catalog.load(lane)
    with pytest.raises(InvalidUsage, match=f"entry 3 of {lane}"):
        catalog.seal(lane, seal.ref.incarnation, 3)


def everything(path):
    """Read all that a catalog holds."""
    with closing(SqliteStore(path)) as store:
        catalog = Catalog(store)
        found = []
        for name in catalog.lanes():
            row = catalog.load(name)
            found += [row, catalog.segment_list(name)]
            for seal in catalog.seals(name, row.head.ref.incarnation, 0, 9) if row else []:
                found += [seal, *(catalog.get(kind, name, seal) for kind in Blob)]
        return found


@pytest.mark.parametrize("flips", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_bit_flipped_anywhere_in_the_file(damaged, tmp_path, flips):
    """A row may be gone, as if collected; one that is read is the right one, or the error is ours."""
    catalog, _, _, raw = damaged
    raw.close()
    catalog.store.close()
    whole = (tmp_path / "catalog.db").read_bytes()
    path = tmp_path / "flipped.db"
    right = everything(tmp_path / "catalog.db")
    corrupt = locked = 0
    for _ in range(flips):
        # Most of a page is blobs; what SQLite itself reads stands at both ends of it.
        page = random.randrange(0, len(whole), PAGE_BYTES)
        at = page + random.choice((random.randrange(200), random.randrange(PAGE_BYTES)))
        flipped = bytearray(whole)
        flipped[at] ^= 1 << random.randrange(8)
        path.write_bytes(flipped)
        try:
            found = everything(path)
        except (Corrupt, InvalidUsage):
            corrupt += 1
        except Unavailable:
            # The header's version byte may say that the file is being converted: nothing was read.
            locked += 1
        else:
            assert [it for it in found if it is not None and it not in right] == []
    assert corrupt > locked
