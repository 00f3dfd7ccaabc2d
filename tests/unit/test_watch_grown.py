"""A topic that grew takes something away for a window, and whatever only looks like it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.memory import MemoryReader
from dedup.catalog.memory import MemoryStore
from dedup.model import Frontier, Source
from delivery.batch import batches_of
from delivery.protocol import messages as m
from delivery.records import Record
from delivery.stage import Policy
from delivery.watch.guarantee import Kind, Reason, guarantee
from delivery.watch.rows import StageRows, read_rows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors
from tests.unit.house import WINDOW_MS, House
from tests.unit.operate_kit import called, housed
from tests.unit.watch_kit import Cluster

HOUR_MS = 3_600_000


def partition(house: House, number: int) -> Source:
    """Return a partition of the input, which grows to have it."""
    source = Source(house.broker.names["in"], number)
    house.broker.partitions.setdefault(source, ())
    return source


def write(house: House, number: int, *names: str) -> None:
    for name in names:
        record = Record(value=b"v", headers=(("id", name.encode()),), timestamp_ms=house.now)
        house.broker.append(partition(house, number), record)


def ran(
    house: House, number: int, stage: str = "price", said: str = "", window_ms: int = WINDOW_MS
) -> int:
    """Run the lane of a partition to the end of its log; return when its clock says it began."""
    source, begun_ms = partition(house, number), house.now
    reader = MemoryReader(house.broker, "in", [source])
    policy = Policy(named=said)
    lane = f"shop/{stage}/in-{number}"
    runner = house.runner(lane, reader=reader, policy=policy, window_ms=window_ms)
    end = house.broker.high([source])
    high = end.at(source) or 0
    runner.tell(m.Opened(Frontier.of([(source, 0)])))
    runner.tell(m.Ending(end))
    while (stop := runner.state.stopped) is None:
        lane = runner.state.lane
        start = (lane.planned.at(source) or 0) if lane.hungry else high
        if start < high:
            rows = house.broker.read(source, start, high)
            runner.offer(m.Polled(Frontier.of([(source, start)]), end), batches_of(rows))
        else:
            assert runner.step()
    assert stop.end is m.End.DONE, stop.why
    return begun_ms


def reasons(house: House, *, kafka: bool = True, window_ms: int = WINDOW_MS) -> list[Reason]:
    catalog, tallies = house.catalog(), Tallies()
    rows = read_rows(catalog)
    tallies.look(catalog, rows)
    doors = Doors(Cluster(house.broker)) if kafka else None
    found = guarantee(rows, doors, tallies, {}, window_ms=window_ms)
    return [
        one for stage in found.stages for one in stage.reasons if one.kind is not Kind.NOT_ASKED
    ]


def started(house: House, stage: str = "price") -> None:
    """Two partitions whose lanes begin one after the other; the first has sealed by then."""
    write(house, 0, "a")
    partition(house, 1)
    ran(house, 0, stage)
    house.now += 20_000
    ran(house, 1, stage)


def grown(house: House) -> None:
    """A third partition, whose lane begins an hour later."""
    started(house)
    house.now += HOUR_MS
    partition(house, 2)
    ran(house, 2)


@pytest.fixture
def house() -> House:
    return House(MemoryStore())


def test_a_new_partition_is_told_until_every_lane_has_read_a_window_on(house: House) -> None:
    started(house)
    house.now += HOUR_MS
    write(house, 2, "b")
    begun_ms = ran(house, 2)
    (found,) = reasons(house)
    assert (found.kind, found.subject) == (Kind.PARTITIONS_GREW, "in")
    assert found.since_ms is not None
    assert begun_ms < found.since_ms < begun_ms + 1000
    assert found.until_ms == found.since_ms + WINDOW_MS
    assert "appeared (2)" in found.text
    assert [one.kind for one in reasons(house, kafka=False)] == [Kind.PARTITIONS_GREW]
    # Keys moved between old partitions as well, and this one has not read what waits in it.
    write(house, 1, "c")
    house.now += WINDOW_MS + HOUR_MS
    write(house, 0, "d")
    write(house, 2, "e")
    ran(house, 0)
    ran(house, 2)
    assert [one.kind for one in reasons(house)] == [Kind.PARTITIONS_GREW]
    ran(house, 1)
    assert reasons(house) == []


@pytest.mark.parametrize(("window_ms", "kinds"), [(HOUR_MS, []), (7 * WINDOW_MS, ["grew"])])
def test_a_window_is_what_the_stage_ran_with(
    house: House, window_ms: int, kinds: list[str]
) -> None:
    """Two days after it grew, a day is over and a week is not, whatever the look was told."""
    grown(house)
    house.now += 2 * WINDOW_MS
    write(house, 0, "b")
    ran(house, 0, window_ms=window_ms)
    if not kinds:
        write(house, 1, "c")
        write(house, 2, "d")
        ran(house, 1, window_ms=window_ms)
        ran(house, 2, window_ms=window_ms)
    told = [Kind.PARTITIONS_GREW for _ in kinds]
    assert [one.kind for one in reasons(house)] == told
    assert [one.kind for one in reasons(house, window_ms=30 * WINDOW_MS)] == told


def test_where_no_seal_says_a_window_it_is_what_the_look_was_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(house)
    house.now += 2 * HOUR_MS
    write(house, 0, "b")
    ran(house, 0)
    monkeypatch.setattr(StageRows, "window_ms", 0)  # as sealed before seals said it
    assert [one.kind for one in reasons(house)] == [Kind.PARTITIONS_GREW]
    assert reasons(house, window_ms=HOUR_MS) == []


def test_what_was_collected_is_older_than_what_was_not(house: House) -> None:
    started(house)
    house.now += HOUR_MS
    ran(house, 2)
    for lane in ("shop/price/in-0", "shop/price/in-1"):
        row = house.catalog().load(lane)
        assert row is not None
        ref = row.head.ref
        assert house.store.delete_entries(lane, ref.incarnation, 0, ref.seq, head=ref.incarnation)
    assert [one.kind for one in reasons(house)] == [Kind.PARTITIONS_GREW]


def test_partitions_of_one_start_have_not_grown(house: House) -> None:
    started(house)
    assert reasons(house) == []
    # The first record of a partition comes when it comes.
    house.now += HOUR_MS
    write(house, 1, "b")
    ran(house, 1)
    assert reasons(house) == []


def test_a_lane_that_waited_for_a_task_is_no_new_partition(house: House) -> None:
    write(house, 0, "a")
    ran(house, 0)
    ran(house, 2)
    house.now += HOUR_MS
    ran(house, 1)
    assert reasons(house) == []


def test_what_grew_before_anything_was_sealed_took_nothing_away(house: House) -> None:
    ran(house, 0)
    house.now += HOUR_MS
    ran(house, 1)
    assert reasons(house) == []
    write(house, 0, "a")
    ran(house, 0)
    assert reasons(house) == []


def test_who_re_keys_or_reads_what_stages_make_misses_nothing(house: House) -> None:
    started(house, "price.by-id")
    house.now += HOUR_MS
    ran(house, 2, "price.by-id")
    assert reasons(house) == []
    house = House(MemoryStore())
    started(house)
    house.now += HOUR_MS
    ran(house, 2)
    write(house, 0, "made")
    feeding = house.runner("shop/feed/raw-0", reads="out", writes=("in",))
    house.done(feeding, topic="out")
    assert reasons(house) == []


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("place", "place", []),
        ("header:id", "header:id", [Kind.PARTITIONS_GREW]),
        # What it was named by counts no more; what is said of the change is not this.
        ("header:id", "place", []),
    ],
)
def test_who_names_records_by_their_place_has_no_keys_that_could_move(
    house: House, before: str, after: str, kinds: list[Kind]
) -> None:
    for number in (0, 1):
        write(house, number, f"a{number}")
        ran(house, number, said=before)
    house.now += HOUR_MS
    for number in (0, 1, 2):
        write(house, number, f"b{number}")
        ran(house, number, said=after)
    assert [one.kind for one in reasons(house) if one.kind is Kind.PARTITIONS_GREW] == kinds


def test_a_lane_that_has_only_begun_is_looked_at_again(house: House) -> None:
    write(house, 0, "a")
    catalog, tallies = house.catalog(), Tallies()
    ran(house, 1)
    tallies.look(catalog, read_rows(catalog))
    house.now += HOUR_MS
    ran(house, 0)
    write(house, 1, "b")
    ran(house, 1)
    tallies.look(catalog, read_rows(catalog))
    again = Tallies()
    again.look(catalog, read_rows(catalog))
    for lane, tally in again.lanes.items():
        assert tally.first_ms is not None
        found = tallies.lanes[lane]
        assert (found.begun_ms, found.first_ms) == (tally.begun_ms, tally.first_ms)


def test_the_verb_says_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def furnish(house: House) -> None:
        started(house)
        house.now += HOUR_MS
        ran(house, 2)

    with housed(tmp_path / "shop.db", furnish) as house:
        monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: Cluster(house.broker))
        asked = ("guarantee", house.store.url, "--kafka", "here:1")
        said = called(*asked, code=1).stdout
        assert "shop/price: DEGRADED since 2023-11-14" in said
        assert "(until lane time 2023-11-15" in said
        monkeypatch.setattr(StageRows, "window_ms", 0)
        assert called(*asked, "--window", "1ms", code=1).stdout != said
