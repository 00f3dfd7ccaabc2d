"""Records that say when they were made: what comes too late to tell is put aside, and nothing else."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from dedup.collect import Keep, collect
from dedup.errors import InvalidUsage
from dedup.expiry import outlived
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, decode_segment
from dedup.ids import named
from dedup.index import ExactIndex
from dedup.local import Home
from dedup.model import Frontier
from delivery import Delivery
from delivery.api import passed_on
from delivery.batch import batches_of
from delivery.host.spec import StageSpec
from delivery.judge import Judge
from delivery.lateness import Trust
from delivery.records import Record
from delivery.stage import Policy
from delivery.timing import time_from
from tests.unit.house import LANE, House, id_from, seals

WINDOW_MS = 6 * BUCKET_MS
START = 1_600_000_200_000 // BUCKET_MS * BUCKET_MS
LETTERS = Policy(dead_letter_edge=1)


@pytest.fixture
def shop(house: House) -> House:
    house.broker.create("dead")
    house.now = START + 100 * BUCKET_MS
    return house


def made(name: str, said: int | str, **more: Any) -> Record:
    headers = (("id", name.encode()), ("at", str(said).encode()))
    return Record(value=name.encode(), headers=headers, **more)


def work(house: House, *records: Record, way="header:at", cut: int = 100, **more: Any):
    """Let records come and be worked off; return the values in effect, and of dead letters."""
    before = len(house.sent()), len(house.sent("dead"))
    for record in records:
        house.broker.append(house.source(), record)
    given = {"writes": ("out", "dead"), "policy": LETTERS, "window_ms": WINDOW_MS, **more}
    house.done(house.runner(call=lambda record: record, time_from=way, **given), cut=cut)
    return (
        [record.value for record in house.sent()[before[0] :]],
        [record.value for record in house.sent("dead")[before[1] :]],
    )


def why(house: House) -> str:
    return house.sent("dead")[-1].header("delivery-error").decode()


def lane_time(house: House) -> int:
    return house.catalog().load(LANE).head.lane_time_ms


# Too late -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("beyond_ms", [-1, 0, 1, BUCKET_MS - 1])
def test_a_record_is_put_aside_exactly_below_the_end_of_the_last_bucket_that_may_be_gone(
    shop, number, beyond_ms
):
    """Every edge, of lane time and of the record's."""
    lane_time_ms = START + WINDOW_MS + number * BUCKET_MS + beyond_ms
    work(shop, made("first", lane_time_ms))
    assert lane_time(shop) == lane_time_ms
    floor = START + (number if beyond_ms >= 0 else number - 1) * BUCKET_MS
    assert outlived(Bucket.at(Origin.EXTERNAL, floor - 1), lane_time_ms, WINDOW_MS)
    assert not outlived(Bucket.at(Origin.EXTERNAL, floor), lane_time_ms, WINDOW_MS)
    assert work(shop, made("below", floor - 1), made("at", floor)) == ([b"at"], [b"below"])
    assert shop.proved() == []


def test_a_repeat_whose_first_copy_is_forgotten_is_a_dead_letter_that_says_why(shop):
    work(shop, made("a", START))
    work(shop, made("b", START + BUCKET_MS + WINDOW_MS))
    collect(shop.catalog(), LANE, Keep(window_ms=WINDOW_MS))
    collect(shop.catalog(), LANE, Keep(window_ms=WINDOW_MS))
    assert work(shop, made("a", START)) == ([], [b"a"])
    said = why(shop)
    assert "nobody can tell whether it is a repeat" in said
    assert "2020-09-13T12:30:00.000+00:00" in said
    assert "2020-09-13T13:40:00.000+00:00" in said
    assert f"{WINDOW_MS} ms" in said
    # And a retry of that within the window is a duplicate.
    assert work(shop, made("a", START)) == ([], [])
    counts = [seal.counts for seal in seals(shop)]
    assert (sum(c.duplicate for c in counts), sum(c.dead_letter for c in counts)) == (1, 1)


def test_without_a_time_it_would_take_effect_again(shop):
    """What the window is without: the same, judged by Kafka's stamps."""
    for at in (START, START + BUCKET_MS + WINDOW_MS):
        work(shop, made(str(at), at, timestamp_ms=at), way=None)
    again = made(str(START), START, timestamp_ms=START)
    assert work(shop, again, way=None) == ([str(START).encode()], [])


def test_a_repeat_that_is_still_known_is_a_duplicate_however_old_its_time(shop):
    work(shop, made("a", START), made("b", START + 3 * BUCKET_MS))
    work(shop, made("c", START + BUCKET_MS + WINDOW_MS))
    assert outlived(Bucket.at(Origin.EXTERNAL, START), lane_time(shop), WINDOW_MS)
    assert work(shop, made("a", START)) == ([], [])
    assert work(shop, made("d", START), made("d", START)) == ([], [b"d"])


def test_pending_bundles_of_this_process_count_as_sealed(shop):
    """They may be by now, and what a collector then drops is asked for against the head before."""
    work(shop, made("a", START))
    before = shop.catalog().load(LANE)
    trust = Trust(time_from("header:at"), WINDOW_MS)
    late = START + BUCKET_MS + WINDOW_MS
    shop.broker.append(shop.source(), made("b", late))
    given = {"writes": ("out", "dead"), "policy": LETTERS, "window_ms": WINDOW_MS}
    runner = shop.runner(time_from="header:at", **given)
    shop.begin(runner)
    pending = None
    while shop.catalog().load(LANE).head == before.head:
        assert shop.turn(runner)
        pending = next((work.verdicts for work in runner.state.work.values()), pending)
    assert pending.time_ms == lane_time(shop) == late
    # Sealed, and not acknowledged: the list ends at the head before, and is as short as after.
    assert collect(shop.catalog(), LANE, Keep(window_ms=WINDOW_MS))
    assert collect(shop.catalog(), LANE, Keep(window_ms=WINDOW_MS))
    judge = Judge(
        shop.catalog(),
        ExactIndex(shop.catalog(), LANE, WINDOW_MS),
        id_from,
        tuple,
        letters=True,
        trust=trust,
    )
    again = batches_of([made("a", START, source=shop.source(), offset=2)])
    end = Frontier.of([(shop.source(), 3)])

    def letters(bundles) -> int:
        verdicts = judge.judge(again, end, before.head, bundles, shop.now)
        return sum(len(pick.letters) for pick in verdicts.picks)

    assert letters([]) == 0, "nobody remembers it: nothing but the time can tell"
    assert letters([pending]) == 1


# Untold, and ahead ----------------------------------------------------------------------------


def test_a_record_without_a_time_is_a_dead_letter_and_moves_no_lane_time(shop):
    bare = Record(value=b"bare", headers=(("id", b"bare"),), timestamp_ms=START + 9 * BUCKET_MS)
    effects = work(shop, made("a", START), bare, made("b", "never"), made("c", START + 1))
    assert effects == ([b"a", b"c"], [b"bare", b"b"])
    assert lane_time(shop) == START + 1
    assert "time_from failed" in why(shop)
    assert shop.proved() == []


def test_a_record_without_name_and_time_is_one_dead_letter(shop):
    def fail(_record):
        raise KeyError

    assert work(shop, made("a", "never"), id_from=fail) == ([], [b"a"])
    assert "id_from failed" in why(shop)


def test_a_time_ahead_of_the_clock_is_taken_up_to_a_window_and_covered_by_the_bucket_of_its_id(
    shop,
):
    shop.now = START
    at = START + WINDOW_MS
    effects = work(shop, made("edge", at), made("beyond", at + BUCKET_MS))
    assert effects == ([b"edge"], [b"beyond"])
    assert "so far ahead" in why(shop)
    assert START <= lane_time(shop) <= shop.now, "lane time is never ahead of the clock"
    (part,) = decode_segment(seals(shop)[-1].inline_segment, "the last seal's ids")
    assert named(b"edge") in list(part)
    assert part.bucket == Bucket.at(Origin.EXTERNAL, at)
    assert shop.proved() == []
    # Lane time passes the window of the bucket it was sealed in, and not of its own.
    shop.now = START + 2 * WINDOW_MS
    work(shop, made("later", START + WINDOW_MS + 2 * BUCKET_MS))
    collect(shop.catalog(), LANE, Keep(window_ms=WINDOW_MS))
    assert work(shop, made("edge", at)) == ([], [])


def test_lane_time_is_the_trusted_time_and_not_kafkas(shop):
    work(shop, made("a", START, timestamp_ms=START + 50 * BUCKET_MS))
    assert lane_time(shop) == START
    assert work(shop, made("b", START + 1)) == ([b"b"], [])


def test_kafkas_own_timestamp_can_be_trusted_too(shop):
    work(shop, made("a", 0, timestamp_ms=START + BUCKET_MS + WINDOW_MS), way="timestamp")
    records = made("b", 0, timestamp_ms=START), made("c", 0, timestamp_ms=-1)
    assert work(shop, *records, way="timestamp") == ([], [b"b", b"c"])


def test_it_is_the_same_over_the_index_of_a_host(tmp_path, shop):
    shop.home = Home(tmp_path)
    work(shop, made("a", START))
    work(shop, made("b", START + BUCKET_MS + WINDOW_MS))
    assert work(shop, made("a", START), made("b", START + BUCKET_MS + WINDOW_MS)) == ([], [b"a"])


# Declared -------------------------------------------------------------------------------------

SPEC = StageSpec(
    pipeline="shop",
    name="price",
    reads="in",
    call=passed_on,
    dead_letters="dead",
    time_from="header:at",
)


def test_a_stage_that_trusts_a_time_needs_dead_letters():
    with pytest.raises(InvalidUsage, match="dead_letters") as raised:
        replace(SPEC, dead_letters=None)
    assert "price" in raised.value.subject
    with pytest.raises(InvalidUsage, match="nothing was started"):
        replace(SPEC, time_from="when")
    assert replace(SPEC, time_from=None, dead_letters=None).trust() is None


def test_it_is_picklable_and_trusts_for_its_window():
    spec = pickle.loads(pickle.dumps(replace(SPEC, window_ms=WINDOW_MS)))  # noqa: S301 - our own
    (batch,) = batches_of([made("a", START)])
    trust = spec.trust()
    assert trust.window_ms == WINDOW_MS
    assert trust.way(next(iter(batch))) == str(START).encode()


def test_what_rekeys_trusts_the_same_time_and_not_kafkas():
    d = Delivery(catalog="memory:", kafka="localhost:1", pipeline="shop")
    given = {"reads": "clicks", "name": "count", "dedup": "topic", "dead_letters": "dead"}
    d.stage(**given, time_from="json:at")(passed_on)
    assert [(spec.name, spec.time_from) for spec in d.stages] == [
        ("count.by-id", "json:at"),
        ("count", "json:at"),
    ]
    with pytest.raises(InvalidUsage, match="sent on"):
        d.stage(**{**given, "name": "other"}, time_from="timestamp")(passed_on)
