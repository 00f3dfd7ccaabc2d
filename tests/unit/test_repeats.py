"""Repeats end to end, whenever they come: the runner, the judge and each index of ids together."""

from __future__ import annotations

import pytest

from dedup.arrays import pack
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from dedup.formats.segment import BUCKET_MS
from dedup.ids import named
from dedup.local import Home, LaneIndex
from delivery.protocol import messages as m
from delivery.runner import LaneRunner
from delivery.stage import Policy
from tests.unit.house import LANE, House, sealed_upto, seals, values

#: A window of so few buckets that a test walks through all of them.
WINDOW_MS = 6 * BUCKET_MS
#: Where a bucket begins, long after lane time began.
EDGE = 1_600_000_200_000 // BUCKET_MS * BUCKET_MS
RECEIVER = "shop/ship/0"


def run(house: House, *names: str, at_ms: int, cut: int = 100) -> int:
    """Write records of a time, work them off, and return how many took effect."""
    before = len(house.sent())
    house.write(*names, timestamp_ms=at_ms)
    house.done(house.runner(window_ms=WINDOW_MS), cut=cut)
    return len(house.sent()) - before


# The textbook figure --------------------------------------------------------------------------


def test_the_textbooks_figure_of_a_filter_before_a_catalog(tmp_path):
    """Eight records, three of them again, and one that the filter takes for known although it is new.

    Three are dropped, four are looked up, and the last one is accepted.
    """
    house = House(MemoryStore(), home=Home(tmp_path / "home"))
    first, last = [f"r{number}" for number in range(1, 8)], "r8"
    house.write(*first)
    house.done()
    index = house.indexes[-1]
    index.catch_up(head(house, LANE))
    (group,) = index._keeper.contents.groups.values()
    # Bits of an id that was never decided: what makes a false positive.
    group.filter.add(pack([named(last.encode())]))
    before = index.stats.counters
    index.close()
    house.write(last, "r1", "r4", "r6")
    house.done()
    counters = house.indexes[-1].stats.counters
    assert before.positives == 0, "seven new ids, no look-up"
    assert (counters.probes, counters.positives, counters.false_positives) == (4, 4, 1)
    sealed = seals(house)[-1].counts
    assert (sealed.duplicate, sealed.fresh) == (3, 1)
    assert len(house.sent()) == 8
    assert house.proved() == []
    house.close()


# Every edge of a bucket -----------------------------------------------------------------------


@pytest.mark.parametrize("past_ms", [-1, 0, 1])
@pytest.mark.parametrize("bucket", range(1, WINDOW_MS // BUCKET_MS + 1))
def test_an_id_repeated_at_an_edge_of_a_bucket_within_the_window_takes_no_effect(
    house, bucket, past_ms
):
    assert run(house, "a", at_ms=EDGE + 17) == 1
    at_ms = EDGE + bucket * BUCKET_MS + past_ms
    assert run(house, f"moves lane time to {at_ms}", at_ms=at_ms) == 1
    assert run(house, "a", at_ms=at_ms) == 0
    assert house.proved() == []


@pytest.mark.parametrize("sealed_ms", [0, 1, BUCKET_MS - 1])
def test_the_window_is_measured_from_the_end_of_the_bucket_that_the_id_was_sealed_in(
    house, sealed_ms
):
    assert run(house, "a", at_ms=EDGE + sealed_ms) == 1
    end = EDGE + BUCKET_MS + WINDOW_MS
    assert run(house, "last", at_ms=end - 1) == 1
    assert run(house, "a", at_ms=end) == 0, "it is judged by what is sealed, one before the end"
    assert run(house, "a", at_ms=end) == 1, "the window is past it"
    assert run(house, "a", at_ms=end) == 0, "and holds it again from now on"
    assert house.proved() == []


@pytest.mark.parametrize("age_ms", [1, BUCKET_MS, WINDOW_MS, 100 * WINDOW_MS, EDGE])
def test_a_record_that_comes_late_is_held_from_when_it_came(house, age_ms):
    assert run(house, "now", at_ms=EDGE + BUCKET_MS - 1) == 1
    assert run(house, "late", at_ms=EDGE - age_ms) == 1
    for at_ms in (EDGE + BUCKET_MS, EDGE + WINDOW_MS, EDGE + BUCKET_MS + WINDOW_MS - 1):
        assert run(house, f"moves lane time to {at_ms}", at_ms=at_ms) == 1
        assert run(house, "late", at_ms=EDGE - age_ms) == 0
    assert house.proved() == []


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_repeats_in_one_bundle_across_bundles_and_across_an_edge(house, cut):
    for name, at_ms in (
        ("a", EDGE - 1),
        ("a", EDGE),
        ("b", EDGE),
        ("a", EDGE + 1),
        ("b", EDGE - 1),
    ):
        house.write(name, timestamp_ms=at_ms)
    house.done(house.runner(window_ms=WINDOW_MS), cut=cut)
    assert run(house, *"ab", at_ms=EDGE + WINDOW_MS) == 0
    assert len(house.sent()) == 2
    assert house.proved() == []


# Ids that were minted -------------------------------------------------------------------------


def chain(house: House, *, only_sender: bool = False) -> None:
    """Work off both stages."""
    house.done(house.runner())
    if not only_sender:
        house.done(received(house), topic="out")


def received(house: House):
    return house.runner(RECEIVER, reads="out", writes=("shipped",), senders=(LANE,))


def again(house: House, count: int) -> None:
    """Send the last records of the sender once more, as a zombie does."""
    for record in house.sent()[-count:]:
        house.broker.append(house.source("out"), record)


@pytest.mark.parametrize("minted_ms", [-8, -7, -6, -1, 0])
def test_a_minted_id_is_known_on_both_sides_of_a_bucket_until_it_is_a_remnant(house, minted_ms):
    house.broker.create("shipped")
    house.now = EDGE + minted_ms
    for name in "abc":
        house.write(name)
        chain(house, only_sender=True)
    again(house, 3)
    chain(house)
    # What the receiver has read of its sender is sealed now: from here on copies are remnants.
    house.write("d")
    chain(house)
    again(house, 4)
    chain(house)
    counts = [seal.counts for seal in house.catalog().history(RECEIVER, head(house, RECEIVER))]
    assert len(house.sent("shipped")) == 4
    assert sum(one.duplicate for one in counts) == 3
    assert sum(one.remnant for one in counts) == 4
    assert house.proved() == []


def head(house: House, lane: str):
    return house.catalog().load(lane).head


# Time that stands, and clocks that are wrong --------------------------------------------------


def test_a_stage_that_stood_still_for_longer_than_the_window_forgets_nothing(house):
    assert run(house, *"abc", at_ms=EDGE) == 3
    house.now += 100 * WINDOW_MS
    assert run(house, *"abc", at_ms=EDGE) == 0, "no clock decides"
    assert run(house, "a", at_ms=EDGE + 100 * WINDOW_MS) == 0, "what is sealed decides"
    assert house.proved() == []
    assert run(house, "b", at_ms=EDGE) == 1, "lane time has moved a hundred windows on since"


HOUR_MS = 3_600_000


class Off:
    """A clock beside the house's."""

    def __init__(self, house: House, by_ms: int) -> None:
        self.house, self.by_ms = house, by_ms

    def now_ms(self) -> int:
        return self.house.now_ms() + self.by_ms

    def fresh(self) -> bytes:
        return self.house.fresh()

    def back_off(self, losses: int) -> None:
        self.house.back_off(losses)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("publishers_ms", [0, HOUR_MS])
def test_a_worker_whose_clock_is_an_hour_off_changes_no_verdict(house, by_ms, publishers_ms):
    """Workers take turns on both lanes; one clock is wrong, and maybe the publishers' too.

    Where both are ahead, lane time is, and the window is shorter by as much.
    """
    house.broker.create("shipped")
    house.now = EDGE
    for turn in range(6):
        clock = Off(house, by_ms if turn % 2 else 0)
        names = (f"{turn}", f"{turn - 1}", "every time")
        house.write(*names, timestamp_ms=house.now + publishers_ms)
        house.done(house.runner(clock=clock))
        again(house, 1)
        receiver = received(house)
        receiver._clock = Off(house, 0 if turn % 2 else by_ms)
        house.done(receiver, topic="out")
        house.now += BUCKET_MS
    names = {*(str(turn) for turn in range(-1, 6)), "every time"}
    assert len(values(house)) == len(names) + 6
    assert len(house.sent("shipped")) == len(set(values(house))) == len(names)
    history = house.catalog().history(LANE, head(house, LANE))
    minted = [seal.minted_at_ms for seal in history]
    assert minted == sorted(set(minted))
    assert [seal.lane_time_ms for seal in history] == sorted(seal.lane_time_ms for seal in history)
    assert house.proved() == []


# Payloads -------------------------------------------------------------------------------------


def write(house: House, *records: tuple[str, bytes]) -> None:
    """Write records of a name and a payload."""
    source = house.source()
    for name, value in records:
        house.write(name)
        log = house.broker.partitions[source]
        house.broker.partitions[source] = (*log[:-1], log[-1]._replace(value=value))


def test_a_repeat_with_another_payload_is_counted_and_told_wherever_it_stands(house, caplog):
    write(house, ("a", b"1"), ("a", b"1"), ("a", b"2"), ("b", b"1"))
    house.done(house.runner(payloads=True), cut=3)
    write(house, ("a", b"1"), ("a", b"3"), ("b", b"1"), ("c", b"1"))
    runner = house.runner(payloads=True)
    house.done(runner)
    counts = [seal.counts for seal in seals(house)]
    # The index that is the reference keeps ids alone: of what was sealed it knows no payload.
    later = int(house.home is not None)
    assert [(one.duplicate, one.conflict) for one in counts] == [
        (0, 0),
        (2, 1),
        (0, 0),
        (3, later),
    ]
    told = [record.getMessage() for record in caplog.records]
    one = f"(id {named(b'a').hex()})"
    assert len(told) == 1 + later
    assert f"{LANE}: 1 records repeat" in told[0]
    assert f"offset 2 of partition 0 {one}" in told[0]
    assert later == 0 or f"offset 5 of partition 0 {one}" in told[1]
    assert house.proved() == []


def strict(house: House) -> LaneRunner:
    return house.runner(payloads=True, policy=Policy(conflict_stops=True))


def stopped_at(house: House, offset: int, name: bytes, cut: int = 100) -> None:
    """Run a stage that is to stop at the first conflict, and see it stop there and say so."""
    runner = strict(house)
    assert house.run(runner, cut=cut).end is m.End.BROKEN
    error = runner.state.error
    assert isinstance(error, InvalidUsage)
    assert error.subject == f"{LANE}: offset {offset} of partition 0"
    said = (named(name).hex(), "nothing of its bundle was sealed or sent", 'conflicts="count"')
    assert [words for words in said if words not in error.hint] == []


def test_a_stage_that_is_to_stop_at_another_payload_stops_before_its_bundle(house, caplog):
    write(house, ("a", b"1"), ("a", b"1"))
    house.done(strict(house))
    assert (len(house.sent()), caplog.records) == (1, []), "the same again is none"
    write(house, ("b", b"1"), ("c", b"1"), ("b", b"2"))
    for _ in range(2):
        with house.untouched():
            stopped_at(house, 4, b"b")
    house.done(house.runner(payloads=True))
    assert len(house.sent()) == 3, "b and c, once the stage goes past it"
    assert seals(house)[-1].counts.conflict == 1
    assert house.proved() == []


def test_it_stops_at_another_payload_than_what_was_sealed_before(house, tmp_path):
    # The index that is the reference keeps ids alone: of what was sealed it knows no payload.
    house.home = house.home or Home(tmp_path / "home")
    write(house, ("a", b"1"))
    house.done(strict(house))
    write(house, ("b", b"1"), ("a", b"2"))
    with house.untouched():
        stopped_at(house, 2, b"a")


def test_it_stops_at_another_payload_than_what_is_not_sealed_yet(house):
    """What stands before it in a bundle of its own may count; what stands behind it never does."""
    write(house, ("a", b"1"), ("b", b"1"), ("b", b"2"), ("c", b"1"))
    stopped_at(house, 2, b"b", cut=1)
    assert len(house.sent()) <= 2
    assert sealed_upto(house) <= 2
    house.done(house.runner(payloads=True))
    assert len(house.sent()) == 3
    assert house.proved() == []


def test_the_host_keeps_its_index_between_processes(house):
    """Or else these tests say nothing of files."""
    run(house, *"ab", at_ms=EDGE)
    run(house, "a", at_ms=EDGE)
    assert all(isinstance(index, LaneIndex) for index in house.indexes)
    assert (house.home is None) == (not house.indexes)
