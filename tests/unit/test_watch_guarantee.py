"""`delivery guarantee`: what takes the promise away is said, with since when, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delivery.naming import id_from, said_of
from delivery.operate.opening import opened
from delivery.records import Record
from delivery.stage import Policy
from delivery.watch.guarantee import Guarantee, Kind, State, guarantee, settings_in
from delivery.watch.rows import read_rows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors
from tests.unit.house import LANE, House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import Cluster, shop


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def judged(house: House, cluster: Cluster | None) -> Guarantee:
    with opened(house.store.url) as catalog:
        rows, tallies = read_rows(catalog), Tallies()
        tallies.look(catalog, rows)
        doors = Doors(cluster) if cluster is not None else None
        return guarantee(rows, doors, tallies, settings_in(rows, doors))


def kinds(found: Guarantee) -> list[list[Kind]]:
    return [[reason.kind for reason in one.reasons] for one in found.stages]


def minted(house: House) -> int:
    row = house.catalog().load(LANE)
    assert row is not None
    return row.head.minted_at_ms


def test_a_clean_pipeline_is_exact(house: House) -> None:
    found = judged(house, Cluster(house.broker))
    assert (found.state, kinds(found)) == (State.EXACT, [[], []])


def test_what_was_not_looked_at_is_unknown(house: House) -> None:
    found = judged(house, None)
    assert (found.state, kinds(found)) == (
        State.UNKNOWN,
        [[Kind.NOT_ASKED], [Kind.NOT_ASKED]],
    )


def test_records_deleted_before_they_were_read(house: House) -> None:
    house.write("a", "b", "c")
    cluster = Cluster(house.broker, {house.source(): 32})
    found = judged(house, cluster)
    assert (found.state, kinds(found)) == (State.DEGRADED, [[Kind.UNREAD_DELETED], []])
    assert found.stages[0].since_ms == minted(house)
    assert found.stages[0].reasons[0].text.startswith("2 offsets")
    assert found.stages[1].state is State.EXACT


def test_records_without_the_name_they_should_have_until_a_window_has_passed(house: House) -> None:
    day = 86_400_000
    named = id_from("header:order_id")
    at = house.now
    house.write("a", "b", timestamp_ms=at)
    house.done(house.runner(id_from=named))
    found = judged(house, Cluster(house.broker)).stages[0]
    reasons = [one for one in found.reasons if one.kind is Kind.UNNAMED]
    assert (found.state, [one.subject for one in reasons]) == (State.DEGRADED, [LANE])
    assert reasons[0].text.startswith("2 records do not have the name")
    assert (reasons[0].since_ms, reasons[0].until_ms) == (minted(house), at + day)
    house.now += day
    house.write("c", timestamp_ms=at + day)
    house.done()
    assert judged(house, Cluster(house.broker)).stages[0].state is State.EXACT


def test_records_that_are_named_otherwise_until_a_window_has_passed(house: House) -> None:
    day, at = 86_400_000, house.now
    for way in ("header:id", "header:id", "key"):
        assert judged(house, Cluster(house.broker)).stages[0].state is State.EXACT
        house.write("again", key=b"again", timestamp_ms=at)
        house.done(house.runner(id_from=id_from(way), policy=Policy(named=way)))
    seq = house.catalog().load(LANE).head.ref.seq
    (reason,) = judged(house, Cluster(house.broker)).stages[0].reasons
    assert (reason.kind, reason.subject) == (Kind.NAMED_OTHERWISE, LANE)
    assert reason.text.startswith(
        f"records are named by key since seal {seq}, and were by header:id"
    )
    assert (reason.since_ms, reason.until_ms) == (minted(house), at + day)
    house.now += day
    house.write("c", key=b"c", timestamp_ms=at + day)
    house.done(house.runner(id_from=id_from("key"), policy=Policy(named="key")))
    assert judged(house, Cluster(house.broker)).stages[0].state is State.EXACT


def test_names_for_records_that_had_none_take_nothing_away(house: House) -> None:
    for way in (None, "key"):
        house.write("again", key=b"again")
        house.done(house.runner(id_from=id_from(way), policy=Policy(named=said_of(way))))
    assert judged(house, Cluster(house.broker)).stages[0].state is State.EXACT


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("in", [[Kind.LOG_CUT], []]), ("out", [[Kind.LOG_CUT], [Kind.LOG_CUT]])],
)
def test_a_log_that_lost_its_end(house: House, topic: str, expected: list[list[Kind]]) -> None:
    source = house.source(topic)
    house.broker.partitions[source] = house.broker.partitions[source][:-2]
    found = judged(house, Cluster(house.broker))
    assert (found.state, kinds(found)) == (State.DEGRADED, expected)


def test_a_topic_that_was_deleted_and_created_again(house: House) -> None:
    house.broker.create("in")
    assert kinds(judged(house, Cluster(house.broker))) == [[Kind.TOPIC_REPLACED], []]


def test_a_topic_that_is_gone(house: House) -> None:
    del house.broker.names["in"]
    found = judged(house, Cluster(house.broker))
    assert (found.state, kinds(found)) == (State.DEGRADED, [[Kind.TOPIC_GONE], []])


def test_what_is_written_elsewhere_is_unknown(house: House) -> None:
    del house.broker.names["end"]
    found = judged(house, Cluster(house.broker))
    assert (found.state, kinds(found)) == (State.UNKNOWN, [[], [Kind.ELSEWHERE]])


def test_one_id_with_two_payloads(house: House) -> None:
    # Payloads of the first nine records were not kept, so both of these are new.
    for value in (b"one", b"two"):
        house.broker.append(house.source(), Record(value=value, headers=(("id", b"twice"),)))
    house.done(house.runner(payloads=True))
    found = judged(house, Cluster(house.broker))
    assert kinds(found) == [[Kind.CONFLICT], []]
    assert found.stages[0].since_ms == minted(house)
    assert found.stages[0].reasons[0].text.startswith("1 repeats")


@pytest.mark.parametrize(
    ("topic", "setting", "value", "expected"),
    [
        ("in", "cleanup.policy", "compact", [[Kind.SETTING], []]),
        ("out", "cleanup.policy", "compact,delete", [[], [Kind.SETTING]]),
        ("end", "cleanup.policy", "compact", [[], []]),
        ("out", "unclean.leader.election.enable", "true", [[Kind.SETTING], [Kind.SETTING]]),
        ("out", "unclean.leader.election.enable", "false", [[], []]),
    ],
)
def test_a_setting_that_lets_kafka_lose_records(
    house: House, topic: str, setting: str, value: str, expected: list[list[Kind]]
) -> None:
    cluster = Cluster(house.broker)
    cluster.settings[topic] = {setting: value}
    assert kinds(judged(house, cluster)) == expected


@pytest.mark.parametrize("verb", ["guarantee", "status"])
def test_the_verb_exits_by_what_it_found(house: House, verb: str) -> None:
    """The status of a catalog is that of its stages."""
    asked = (verb, house.store.url, "--kafka", "here:1")
    assert called(*asked).stdout.splitlines() == ["shop/price: PROTECTED", "shop/ship: PROTECTED"]
    assert document(*asked)["state"] == "exact"
    assert "Kafka was not asked" in called(verb, house.store.url, code=3).stdout
    house.broker.create("in")
    assert "shop/price: DEGRADED since 2023-11-14" in called(*asked, code=1).stdout


def test_sums_go_on_from_look_to_look(house: House) -> None:
    tallies, catalog = Tallies(), house.catalog()
    tallies.look(catalog, read_rows(catalog))
    assert {name: tallies.lanes[LANE].before[name] for name in ("seals", "fresh", "duplicate")} == {
        "seals": 6,
        "fresh": 27,
        "duplicate": 3,
    }
    assert not tallies.lanes[LANE].counts
    house.write("new", "r0-0")
    house.done()
    for _ in range(2):
        tallies.look(catalog, read_rows(catalog))
        assert tallies.lanes[LANE].counts["fresh"] == 1
        assert tallies.lanes[LANE].counts["duplicate"] == 1
        assert sum(tallies.lanes[LANE].bundles.counts) == 1
        assert tallies.lanes[LANE].bundles.sum == 2
