"""The directory of a host where lanes keep their indexes: whose it is, and what is deleted there."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from dedup.local import Home, home
from tests.unit.local_lanes import NAME, Lane
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
