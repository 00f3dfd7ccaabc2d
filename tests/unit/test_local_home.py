"""The directory of a host where lanes keep their indexes: whose it is, and what is deleted there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from dedup.local import Home, home
from tests.unit.local_lanes import NAME, TINY, Lane
from tests.unit.test_local_index import all_known, filled, opened, place_of


def test_places_of_lanes_that_are_gone_are_swept(tmp_path):
    lane = filled(Lane())
    house = Home(tmp_path)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        assert house.sweep(lane.store.url, []) == []  # its process lives
    assert house.sweep(lane.store.url, [NAME]) == []
    assert house.sweep(lane.store.url, []) == [place_of(lane, tmp_path)]
    assert not place_of(lane, tmp_path).exists()


def test_places_that_nobody_wrote_to_for_long_are_swept(tmp_path):
    lane, house = filled(Lane()), Home(tmp_path)
    long_ago = time.time() - home.UNUSED_SECONDS_MAX - 1
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        os.utime(place_of(lane, tmp_path), (long_ago, long_ago))
        assert house.sweep_unused() == []  # its process lives
        lane.append([lane.fresh()])
        assert all_known(index, lane)
    assert house.sweep_unused() == []
    os.utime(place_of(lane, tmp_path), (long_ago, long_ago))
    assert house.sweep_unused() == [place_of(lane, tmp_path)]
    assert not place_of(lane, tmp_path).exists()


def test_whose_home_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(home.VARIABLE, raising=False)
    own = home.home_of(None)
    assert own is not None
    assert own.root.parent == tmp_path
    assert own.root.stat().st_mode & 0o777 == 0o700
    own.root.chmod(0o770)
    assert home.home_of(None) is None, "others may write to it"
    own.root.rmdir()
    own.root.symlink_to(tmp_path)
    assert home.home_of(None) is None, "it leads elsewhere"
    monkeypatch.setenv(home.VARIABLE, "/var/lib/elsewhere")
    for given in (None, "/var/lib/elsewhere"):
        found = home.home_of(given)
        assert found is not None
        assert found.root == Path("/var/lib/elsewhere")
    assert home.home_of("") is None


def test_nobody_takes_a_process_for_dead_before_its_lock_is_held(tmp_path):
    """Whatever another process sweeps while a workshop is made, it is there when it is made."""
    lane = filled(Lane())
    with opened(lane, tmp_path) as other:
        assert all_known(other, lane)
        steps: list[str] = []

        def sweep(step: str) -> None:
            steps.append(step)
            lane.append([lane.fresh() for _ in range(TINY.overlay_ids_max)])
            assert all_known(other, lane)  # and so it has published, and swept
            assert Home(tmp_path).sweep(lane.store.url, []) == []

        workshop = Home(tmp_path).place(lane.store.url, NAME, sweep).workshop()
        assert steps == ["workshop-unborn", "workshop-born"]
        workshop.fresh("run").write_bytes(b"what it makes")
        workshop.close()


def test_what_a_process_left_that_died_being_born_goes_after_a_while(tmp_path):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        left = place_of(lane, tmp_path) / "new-abcdefgh"
        left.mkdir()
        for age, there in ((0.0, True), (home.UNBORN_SECONDS_MAX + 1, False)):
            then = time.time() - age
            os.utime(left, (then, then))
            lane.append([lane.fresh() for _ in range(TINY.overlay_ids_max)])
            assert all_known(index, lane)
            index.settle()
            assert left.exists() is there


def test_a_process_whose_directory_was_deleted_makes_another(tmp_path):
    place = Home(tmp_path).place("memory:", "lane")
    workshop = place.workshop()
    before = workshop.path
    shutil.rmtree(tmp_path)
    workshop.fresh("run").write_bytes(b"")
    assert workshop.path != before
    workshop.close()
    assert list(place.path.iterdir()) == []
