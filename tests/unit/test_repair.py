"""What a repair concludes: from the headers that are left, and from the files of a host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dedup.errors import InvalidUsage
from dedup.filters import Filters
from dedup.local import Home, LaneIndex
from dedup.local.shelf import filters_of
from dedup.model import Frontier, Incarnation, Kept, Source, TopicId
from delivery.operate.repair.found import stretches
from delivery.operate.repair.host import State, examine, rebuild
from delivery.operate.repair.sights import Sight, Sights
from tests.unit.house import LANE, House
from tests.unit.operate_kit import SECOND, called, chained, document, housed

OLD, NEW = Incarnation(b"o" * 16), Incarnation(b"n" * 16)
IN, OUT = Source(TopicId(b"i" * 16), 0), Source(TopicId(b"u" * 16), 0)
OTHER = Source(OUT.topic, 1)
WINDOW_MS = 86_400_000


def seen(*seals: tuple[Incarnation, int, int, list[int]]) -> Sight:
    sight = Sight(IN)
    for incarnation, seq, minted, parents in seals:
        sight.add(incarnation, seq, minted, np.array(parents, dtype=np.int64))
    return sight


def test_the_history_of_one_incarnation_ends_at_its_last_seq():
    sight = seen((OLD, 1, 10, [0, 1]), (OLD, 3, 30, [5]), (OLD, 2, 20, [2]))
    assert sight.history == (Kept(OLD, 3),)
    assert sight.parents().tolist() == [0, 1, 2, 5]
    assert (sight.minted_at_ms, sight.abandoned, sight.last_bundle()) == (30, 0, 1)


def test_what_a_restore_gave_up_counts_for_nothing():
    sight = seen(
        (OLD, 1, 10, [0]),
        (OLD, 2, 20, [1]),
        (OLD, 3, 30, [2, 3]),
        (NEW, 2, 90, [1]),
        (NEW, 3, 99, [4]),
    )
    assert sight.history == (Kept(OLD, 1), Kept(NEW, 3))
    assert sight.parents().tolist() == [0, 1, 4]
    assert sight.abandoned == 3


def test_what_a_restore_ran_again_is_given_up_although_its_seqs_do_not_show_it():
    # The new incarnation made nothing in its first seal, so its seqs begin above the old one's.
    sight = seen((OLD, 5, 50, [99]), (OLD, 6, 60, [100, 111]), (NEW, 7, 90, [111, 112]))
    assert sight.history == (Kept(OLD, 5), Kept(NEW, 7))
    assert sight.parents().tolist() == [99, 111, 112]


def test_a_lane_that_was_rebuilt_before_keeps_all_of_its_past():
    # It went back to an input without output, and ran none that had one.
    sight = seen(
        (OLD, 5, 50, [3, 5]), (OLD, 6, 60, [6, 8]), (NEW, 7, 90, [4]), (NEW, 8, 95, [7, 9])
    )
    assert sight.history == (Kept(OLD, 6), Kept(NEW, 8))
    assert sight.parents().tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_an_incarnation_of_which_nothing_was_kept_is_no_past():
    sight = seen((OLD, 1, 10, [0]), (NEW, 1, 90, [0]))
    assert sight.history == (Kept(NEW, 1),)
    assert sight.parents().tolist() == [0]


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("cut", "holed", "certain"),
    [
        ({}, set(), 0),
        # What was minted later than the first record that is left is all there.
        ({OUT: 1 * HOUR_MS}, set(), 7),
        # Whether or not it is this lane that has a record left in that partition.
        ({OTHER: 1 * HOUR_MS}, set(), 7),
        ({OUT: 0, OTHER: 1 * HOUR_MS}, set(), 7),
        # Clocks may be an hour apart.
        ({OUT: 3 * HOUR_MS - 1}, set(), None),
        ({OUT: None}, set(), None),
        ({}, {OTHER}, None),
        ({OUT: 0}, {OUT}, None),
    ],
)
def test_where_a_missing_output_is_really_missing(cut, holed, certain):
    # The last record is a late copy: what was made of 4 to 6 may be gone.
    sight = seen(
        (OLD, 1, 1 * HOUR_MS, [3]), (OLD, 3, 4 * HOUR_MS - 1, [7, 8]), (OLD, 1, 1 * HOUR_MS, [3])
    )
    sights = Sights({}, Frontier(), cut, frozenset(holed))
    assert sights.certain_from(sight, [OUT, OTHER]) == certain


def test_offsets_are_named_in_stretches_and_not_all_of_them():
    assert stretches([1, 2, 3, 7, 9, 10]) == ((1, 3), (7, 7), (9, 10))
    assert stretches([]) == ()
    assert len(stretches(range(0, 100, 2))) == 8


# The index of a host ------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with housed(tmp_path / "shop.db", chained) as house:
        yield house


@pytest.fixture
def filters() -> Filters:
    return Filters()


@pytest.fixture
def home(house: House, tmp_path: Path, filters: Filters) -> Home:
    """The index of the first lane, as a process has left it."""
    home = Home(tmp_path / "index")
    index = LaneIndex(house.catalog(), LANE, window_ms=WINDOW_MS, home=home, filters=filters)
    row = house.catalog().load(LANE)
    assert row is not None
    index.catch_up(row.head)
    index.close()
    return home


def files(house: House, home: Home, kind: str) -> list[Path]:
    return sorted(home.place(house.store.url, LANE).path.glob(f"{kind}*"))


def test_an_index_that_is_right(house, home):
    found = examine(house.catalog(), home, LANE)
    assert (found.state, found.missing, found.foreign) == (State.RIGHT, 0, 0)
    assert found.ids == 27
    assert examine(house.catalog(), home, SECOND).state is State.ABSENT


def emptied(house: House, home: Home) -> None:
    """Clear every bit of a filter, behind its header."""
    (path,) = files(house, home, "filter")
    body = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(len(body) - 4096))


def torn(house: House, home: Home) -> None:
    for path in files(house, home, "run"):
        path.write_bytes(path.read_bytes()[:-1])


def flipped(house: House, home: Home) -> None:
    path = files(house, home, "run")[0]
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)


def unnamed(house: House, home: Home) -> None:
    (path,) = files(house, home, "manifest")
    path.write_bytes(b"not a manifest")


DAMAGE = {
    emptied: State.WRONG,
    torn: State.WRONG,
    flipped: State.WRONG,
    unnamed: State.UNUSABLE,
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one.__name__)
def test_what_is_wrong_is_said_and_made_anew(house, home, damage):
    damage(house, home)
    found = examine(house.catalog(), home, LANE)
    assert found.state is DAMAGE[damage]
    assert found.repairable
    again = rebuild(house.catalog(), home, found)
    assert (again.state, again.ids, again.missing, again.unfiltered) == (State.RIGHT, 27, 0, 0)


@pytest.mark.parametrize(
    "filters", [Filters(engine="pybloom-live", rate=0.01, key=b"sixteen secrets!")], ids=["chosen"]
)
def test_filters_are_made_anew_as_they_were_chosen(house, home, filters):
    emptied(house, home)
    rebuild(house.catalog(), home, examine(house.catalog(), home, LANE))
    place = home.place(house.store.url, LANE)
    assert filters_of(place.read(), place) == filters
    # Where no file tells the key any more, the next process makes filters with its own.
    for path in files(house, home, "filter"):
        path.unlink()
    again = examine(house.catalog(), home, LANE)
    assert (again.state, again.broken) == (State.UNUSABLE, 1)
    assert rebuild(house.catalog(), home, again).state is State.RIGHT
    assert filters_of(place.read(), place) == Filters(engine="pybloom-live", rate=0.01)


def test_an_index_of_another_history_is_a_stray(house, home, tmp_path):
    # The same URL, another catalog: put back by copying a file.
    url = house.store.url
    house.store.close()
    for path in tmp_path.glob("shop.db*"):
        path.unlink()
    with housed(tmp_path / "shop.db", otherwise) as other:
        assert other.store.url == url
        found = examine(other.catalog(), home, LANE)
        assert found.state is State.STRAY
        assert rebuild(other.catalog(), home, found).state is State.RIGHT


def otherwise(house: House) -> None:
    """The same inputs, sealed by other attempts."""
    house.random.seed(99)
    chained(house)


def test_the_verb_says_what_is_wrong_and_repairs_it(house, home, tmp_path):
    torn(house, home)
    verb = ("catalog", "repair", f"sqlite:{tmp_path / 'shop.db'}", "--home", str(home.root))
    found = document(*verb, code=1)
    assert [one["state"] for one in found["lanes"]] == ["wrong", "absent"]
    assert found["rebuilt"] == []
    assert "27 decided ids are missing" in called(*verb, code=1).output
    assert document(*verb, "--yes")["rebuilt"] == [LANE]
    assert "nothing is to be repaired" in called(*verb).output


def test_one_of_two_repairs_is_to_be_chosen(tmp_path):
    for more in ((), ("--home", str(tmp_path), "--pipeline", "shop.py")):
        refused = called("catalog", "repair", "sqlite:shop.db", *more, code=InvalidUsage.exit_code)
        assert "nothing was done" in refused.stderr
