"""Runs: files that are looked up, merged, torn, deleted under their reader."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
import psutil
import pytest

from dedup.arrays import Ids, sorted_unique
from dedup.errors import InvalidUsage
from dedup.formats.segment import Bucket, Origin
from dedup.local import group as groups
from dedup.local import upkeep
from dedup.local.group import EXTERNAL, Group, Held, Lens
from dedup.local.stats import Counters
from dedup.model import Incarnation
from dedup.runs import Run, Stopped, merge_runs, open_run, write_run
from dedup.runs import merge as merging
from dedup.runs import run as files
from dedup.runs import write as writing
from dedup.runs.run import HEADER_BYTES
from dedup.runs.write import UNFINISHED, RunWriter

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

LANE = "shop/price/0"
BUCKET = Bucket(Origin.EXTERNAL, 7)
ONE = Incarnation(b"1" * 16)
TWO = Incarnation(b"2" * 16)


def some(count: int, seed: int = 1) -> Ids:
    rng = np.random.default_rng(seed)
    return sorted_unique(rng.integers(0, 1 << 64, size=(count, 2), dtype=np.uint64))


def aligned_to_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def put(
    path: Path, ids: Ids, *, origins=((ONE, 1),), origin_of=None, digests=None, bucket=BUCKET
) -> Run:
    index = np.zeros(len(ids), dtype=np.int64) if origin_of is None else origin_of
    return write_run(path, LANE, bucket, ids, origins=origins, origin_of=index, digests=digests)


# Looking up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 31, 32, 33, 1_000, 70_000])
def test_every_id_is_found_in_its_row_and_no_other_is(tmp_path, count):
    ids = some(count)
    run = put(tmp_path / "run", ids)
    assert run.count == len(run.ids) == count
    assert (run.find(ids) == np.arange(count)).all()
    assert (run.find(some(count, seed=2)) == -1).all()
    assert run.find(np.empty((0, 2), dtype=np.uint64)).tolist() == []


@pytest.mark.parametrize("high", [0, 1 << 40, (1 << 64) - 1])
def test_ids_that_somebody_chose_to_agree_in_their_high_half_are_told_apart(tmp_path, high):
    tied = np.array([[high, low] for low in range(1, 5_000, 2)], dtype=np.uint64)
    ids = sorted_unique(np.concatenate([tied, some(1_000)]))
    run = put(tmp_path / "run", ids)
    assert (run.find(ids) == np.arange(len(ids))).all()
    absent = tied - np.array([0, 1], dtype=np.uint64)
    assert (run.find(absent) == -1).all()
    beyond = np.array([[high, 5_001], [high, (1 << 64) - 1]], dtype=np.uint64)
    assert (run.find(beyond) == -1).all()


def test_the_last_id_is_not_found_in_what_lies_behind_it(tmp_path):
    same = np.array([[9, 9]], dtype=np.uint64)
    run = put(tmp_path / "run", same)
    asked = np.array([[9, 9], [9, 10], [10, 9], [10, 10], [8, 9]], dtype=np.uint64)
    assert run.find(asked).tolist() == [0, -1, -1, -1, -1]


@pytest.mark.parametrize("origins", [1, 2, 65_536, 65_537])
def test_origins_and_digests_come_back(tmp_path, origins):
    ids = some(70_000)
    rng = np.random.default_rng(3)
    of = rng.integers(0, origins, size=len(ids))
    digests = rng.integers(0, 1 << 16, size=len(ids)).astype(np.uint16)
    seals = tuple((ONE if seq < 1_000 else TWO, seq) for seq in range(origins))
    run = put(tmp_path / "run", ids, origins=seals, origin_of=of, digests=digests)
    rows = rng.permutation(len(ids))[:1_000]
    assert (run.origin(rows) == of[rows]).all()
    assert (run.digest(rows) == digests[rows]).all()
    assert run.origins == seals
    assert run.origin_at(origins - 1) == seals[-1]


def test_a_run_takes_at_most_21_bytes_an_id_with_digests_and_origins(tmp_path):
    for count in (100_000, 131_071, 131_072):
        ids = some(count)
        digests = np.zeros(count, dtype=np.uint16)
        seals = tuple((ONE, seq) for seq in range(100))
        of = np.zeros(count, dtype=np.int64)
        put(tmp_path / "run", ids, origins=seals, origin_of=of, digests=digests)
        assert (tmp_path / "run").stat().st_size / count <= 21.02


# Files ----------------------------------------------------------------------------------------


def test_what_is_not_there_or_of_another_lane_is_none(tmp_path):
    put(tmp_path / "run", some(10))
    assert open_run(tmp_path / "none", LANE) is None
    assert open_run(tmp_path / "run", "another/lane") is None
    assert open_run(tmp_path / "run", LANE).bucket == BUCKET


def test_a_torn_file_is_none_wherever_it_ends(tmp_path):
    path = tmp_path / "run"
    put(path, some(10))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert open_run(path, LANE) is None
    path.write_bytes(whole + b"\0")
    assert open_run(path, LANE) is None


def test_a_flipped_bit_in_the_header_is_seen_at_once_and_one_behind_it_by_verify(tmp_path):
    path = tmp_path / "run"
    put(path, some(10))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = open_run(path, LANE)
        assert found is None if at < HEADER_BYTES else not found.verify()
    path.write_bytes(whole)
    assert open_run(path, LANE).verify()


def test_another_version_is_none(tmp_path, monkeypatch):
    path = tmp_path / "run"
    put(path, some(10))
    whole = path.read_bytes()
    assert struct.unpack_from("<I", whole, 8) == (1,)
    monkeypatch.setattr("dedup.runs.run.VERSION", 2)
    assert open_run(path, LANE) is None


def test_a_run_outlives_its_file_and_the_one_that_takes_its_name(tmp_path):
    ids = some(1_000)
    path = tmp_path / "run"
    run = put(path, ids)
    put(path, some(10, seed=2))
    path.unlink()
    assert (run.find(ids) == np.arange(1_000)).all()
    assert run.verify()


def test_nothing_but_the_run_is_left_in_its_directory(tmp_path):
    put(tmp_path / "run", some(10))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    half = RunWriter(
        tmp_path / "half", b"k" * 16, BUCKET, expected=10, origins=[(ONE, 1)], digests=True
    )
    (unfinished,) = tmp_path.glob(f"*{UNFINISHED}")
    with pytest.raises(AssertionError, match="every id has a digest"):
        half.add(some(10), np.zeros(10, dtype=np.int64), None)
    half.abandon()
    assert not unfinished.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Merging --------------------------------------------------------------------------------------


def every(_incarnation: Incarnation, _seq: int) -> bool:
    return True


def test_of_an_id_in_several_runs_the_oldest_origin_wins_whatever_the_order(tmp_path):
    ids = some(9)
    seals = ((ONE, 3), (TWO, 5))
    old_last = np.array([1, 1, 1, 0, 0, 0, 1, 1, 1])
    first = put(tmp_path / "a", ids, origins=seals, origin_of=old_last)
    second = put(tmp_path / "b", ids, origins=((TWO, 4),))
    for order in ([first, second], [second, first]):
        merged = merge_runs(tmp_path / "merged", order, every)
        assert merged.count == 9
        at = merged.origin(merged.find(ids)).tolist()
        assert [merged.origins[one][1] for one in at] == [4, 4, 4, 3, 3, 3, 4, 4, 4]


def test_an_origin_that_is_not_kept_drops_its_ids_and_only_those(tmp_path):
    ids = some(100)
    of = np.arange(100) % 3
    seals = ((ONE, 1), (ONE, 2), (TWO, 3))
    run = put(tmp_path / "a", ids, origins=seals, origin_of=of)
    again = put(tmp_path / "b", ids[of == 1], origins=((TWO, 9),))
    merged = merge_runs(tmp_path / "merged", [run, again], lambda _, seq: seq != 2)
    assert merged.origins == ((ONE, 1), (TWO, 3), (TWO, 9))
    assert merged.count == 100, "the ids of the dropped seal came again in a later one"
    assert (merged.origin(merged.find(ids[of == 1])) == 2).all()


def test_a_merged_run_covers_the_buckets_of_its_runs(tmp_path):
    buckets = [Bucket(Origin.EXTERNAL, 4, 2), Bucket(Origin.EXTERNAL, 9)]
    runs = [put(tmp_path / str(at), some(5, seed=at), bucket=one) for at, one in enumerate(buckets)]
    assert merge_runs(tmp_path / "m", runs, every).bucket == Bucket(Origin.EXTERNAL, 4, 6)


def test_ids_of_both_origins_are_not_merged(tmp_path):
    buckets = [Bucket(Origin.EXTERNAL, 4), Bucket(Origin.INTERNAL, 4)]
    runs = [put(tmp_path / str(at), some(5, seed=at), bucket=one) for at, one in enumerate(buckets)]
    with pytest.raises(InvalidUsage, match="merge them apart"):
        merge_runs(tmp_path / "m", runs, every)
    assert not (tmp_path / "m").exists()


def test_digests_are_kept_where_every_run_has_them(tmp_path):
    ids = [some(50, seed=seed) for seed in (1, 2)]
    digests = [np.arange(50, dtype=np.uint16), np.arange(50, 100, dtype=np.uint16)]
    runs = [put(tmp_path / str(at), ids[at], digests=digests[at]) for at in (0, 1)]
    merged = merge_runs(tmp_path / "m", runs, every)
    for at in (0, 1):
        assert (merged.digest(merged.find(ids[at])) == digests[at]).all()
    without = put(tmp_path / "w", some(5, seed=3))
    assert not merge_runs(tmp_path / "m", [*runs, without], every).has_digests
    empty = put(tmp_path / "e", some(0))
    assert merge_runs(tmp_path / "m", [*runs, empty], every).has_digests


def test_a_merge_goes_through_the_id_space_in_small_pieces(tmp_path, monkeypatch):
    """What is in memory at once depends on the constants, not on the runs."""
    monkeypatch.setattr(merging, "MERGE_IDS_MAX", 4_096)
    ids = [some(30_000, seed=seed) for seed in range(4)]
    runs = [put(tmp_path / str(at), one) for at, one in enumerate(ids)]
    largest = 0
    combined = merging.combined

    def seen(pieces):
        nonlocal largest
        largest = max(largest, sum(map(len, pieces)))
        return combined(pieces)

    monkeypatch.setattr(merging, "combined", seen)
    merged = merge_runs(tmp_path / "m", runs, every)
    assert 0 < largest <= 4_096
    assert (merged.ids == sorted_unique(np.concatenate(ids))).all()
    assert merged.verify()


def test_a_merge_of_the_same_runs_writes_the_same_bytes_also_over_one_of_them(tmp_path):
    runs = [put(tmp_path / str(at), some(500, seed=at)) for at in range(3)]
    merge_runs(tmp_path / "m", runs, every)
    merge_runs(tmp_path / "0", runs, every)
    assert (tmp_path / "m").read_bytes() == (tmp_path / "0").read_bytes()


def test_a_merge_stops_wherever_it_is_told_to_and_leaves_nothing(tmp_path, monkeypatch):
    """It asks at every piece, also while the sections are put together at the end."""
    monkeypatch.setattr(merging, "MERGE_IDS_MAX", 4_096)
    monkeypatch.setattr(writing, "COPY_BYTES", 4_096)
    seals = ((ONE, 1), (ONE, 2))
    runs = []
    for at in range(3):
        ids = some(6_000, seed=at)
        of = np.arange(6_000) % 2
        runs.append(put(tmp_path / str(at), ids, origins=seals, origin_of=of))
    left = sorted(path.name for path in tmp_path.iterdir())
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    patience = 1 << 20
    merged = merge_runs(tmp_path / "m", runs, every, stop=stop)
    pieces, asks = merged.count // 4_096, asked
    (tmp_path / "m").unlink()
    assert asks > pieces + 10, "every piece, and every block that is copied at the end"
    for patience in range(asks):
        asked = 0
        with pytest.raises(Stopped):
            merge_runs(tmp_path / "m", runs, every, stop=stop)
        assert asked == patience + 1, "it went on after it had been told to stop"
        assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert all(run.verify() for run in runs)


def test_upkeep_that_is_told_to_stop_has_no_outcome(tmp_path):
    runs = [put(tmp_path / str(at), some(50, seed=at)) for at in range(2)]
    held = tuple(Held(run, tmp_path / str(at), 1) for at, run in enumerate(runs))
    group = Group(EXTERNAL, 1, None)
    work = upkeep.merging(group, held, tmp_path / "m")
    assert work(lambda: True) is None
    assert not (tmp_path / "m").exists()
    done = work(lambda: False)
    assert done is not None
    assert done.output.run.count == 100


# Memory ---------------------------------------------------------------------------------------


def resident(*names: Path) -> int:
    """Return how many bytes of these files are resident in this process."""
    wanted = {str(name) for name in names}
    return sum(at.rss for at in psutil.Process().memory_maps() if at.path in wanted)


@pytest.mark.parametrize("large", [False, True])
def test_a_run_is_touched_whole_unless_it_is_large(tmp_path, monkeypatch, large):
    run = put(tmp_path / "run", some(200_000))
    run.release()
    if large:
        monkeypatch.setattr(files, "TOUCHED_BYTES_MAX", run.nbytes - 1)
    run.touch()
    assert resident(tmp_path / "run") == (0 if large else aligned_to_pages(run.nbytes))


@pytest.mark.parametrize("crowded", [False, True])
def test_whoever_goes_through_a_run_leaves_the_pages_of_others_alone(
    tmp_path, monkeypatch, crowded
):
    """Of a run that may not stay, only what was gone through goes: others look ids up in the rest."""
    ids = some(50_000)
    run = put(tmp_path / "run", ids)
    monkeypatch.setattr(groups, "crowded", lambda: crowded)
    monkeypatch.setattr(groups, "PIECE_IDS", 1 << 14)
    whole = aligned_to_pages(run.nbytes)
    run.touch()
    seen = [len(piece) for piece in Held(run, tmp_path / "run", 1).pieces()]
    assert (sum(seen), len(seen)) == (len(ids), 4)
    left = resident(tmp_path / "run")
    # Prefixes and origins stand behind the ids.
    assert (left == whole) if not crowded else (0 < left <= whole - ids.nbytes + mmap.PAGESIZE)


def test_what_is_let_go_of_is_not_resident_and_is_found_all_the_same(tmp_path):
    ids = some(50_000)
    run = put(tmp_path / "run", ids)
    assert run.verify()
    assert resident(tmp_path / "run") == aligned_to_pages(run.nbytes)
    run.release()
    assert resident(tmp_path / "run") == 0
    assert (run.find(ids) == np.arange(len(ids))).all()


def test_a_merge_does_not_keep_what_it_has_read(tmp_path, monkeypatch):
    """The system may map 2 MiB around what is read, of ids and of origins; not the whole file."""
    names = [tmp_path / str(at) for at in range(2)]
    runs = [put(name, some(1_000_000, seed=at)) for at, name in enumerate(names)]
    most = 0
    combined = merging.combined

    def seen(pieces):
        nonlocal most
        most = max(most, resident(*names))
        return combined(pieces)

    monkeypatch.setattr(merging, "MERGE_IDS_MAX", 1 << 16)
    monkeypatch.setattr(merging, "combined", seen)
    merge_runs(tmp_path / "m", runs, every)
    assert 0 < most < sum(run.nbytes for run in runs) / 2
    assert resident(*names) == 0


def test_a_small_merge_leaves_pages_alone(tmp_path):
    """Others look ids up there meanwhile."""
    names = [tmp_path / str(at) for at in range(2)]
    runs = [put(name, some(50_000, seed=at)) for at, name in enumerate(names)]
    for run in runs:
        run.touch()
    before = resident(*names)
    merge_runs(tmp_path / "m", runs, every)
    assert resident(*names) == before > 0


@pytest.mark.parametrize(("spare", "kept"), [(0, True), (-1, False)])
def test_look_ups_let_go_of_large_runs_now_and_then(tmp_path, monkeypatch, spare, kept):
    ids = some(50_000)
    name = tmp_path / "run"
    run = put(name, ids)
    monkeypatch.setattr(groups, "RESIDENT_BYTES_MAX", run.nbytes + spare)
    monkeypatch.setattr(groups, "_everybody", groups._Everybody())
    group = Group(EXTERNAL, 1, None)
    group.runs.append(Held(run, name, 1))
    for _ in range(run.nbytes // groups.BYTES_PER_ASKED // 100):
        assert group.ask(ids[:100], Lens(), Counters()).all()
        assert resident(name) > 0
    assert group.ask(ids[:100], Lens(), Counters()).all()
    assert (resident(name) > 0) is kept
