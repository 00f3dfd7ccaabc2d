"""What no publisher should send, through a real lane of both engines: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery import Delivery
from delivery.header import decode_header
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.records import RECORD_BYTES_MAX, Record
from delivery.services.kafka import Kafka
from tests.conformance.cassandra_kit import cassandra_url
from tests.integration import resident_driver as user
from tests.integration.holes_kit import ABORTED, compacted_topic, transact, transactional
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX
from tests.integration.resident_kit import Driver, driven
from tests.integration.work_kit import Bench

#: Spark tries a task again before it gives up.
STOPPED_SECONDS_MAX = 200.0
ENGINES = ("resident", "micro-batch")
MEBIBYTE = 1024 * 1024
#: What the topic and the publisher allow: a mebibyte, and what is around it.
MESSAGE_BYTES_MAX = 4 * MEBIBYTE
MANY = tuple((f"h{number}", b"x") for number in range(1000))
ORDERS = 60


class Sent:
    """One record of a publisher."""

    def __init__(
        self,
        value: bytes,
        headers: Sequence[tuple[str, bytes | None]] = (),
        key: bytes | None = None,
    ) -> None:
        self.value, self.headers, self.key = value, headers, key


def order(number: int, **more: Any) -> Sent:
    """Return an order as the code knows them, but for what is said."""
    return Sent(json.dumps({"id": number, "lines": [{"price": number}], **more}).encode())


@dataclass
class House:
    """One pipeline, run by either engine in a driver of its own."""

    driver: Driver
    bench: Bench

    def topic(self, name: str, partitions: int = 1, **more: str) -> str:
        settings = {"max.message.bytes": str(MESSAGE_BYTES_MAX), **more}
        full = f"{self.bench.delivery.pipeline}.{name}"
        self.bench.client.create(full, TopicSettings(partitions=partitions, more=settings))
        return full

    def stage(self, call: Callable[..., Any], **declared: Any) -> None:
        self.bench.delivery.stage(name=call.__name__, **declared)(call)
        self.stages.append({"call": call.__name__, **declared})

    def __post_init__(self) -> None:
        self.stages: list[dict[str, Any]] = []

    def publish(self, topic: str, rows: Sequence[Sent]) -> None:
        """Write records as a publisher does who may send large ones."""
        given = {
            "bootstrap.servers": self.bench.delivery.kafka,
            "message.max.bytes": MESSAGE_BYTES_MAX,
        }
        publisher = Producer(given)
        for row in rows:
            publisher.produce(topic, row.value, row.key, partition=0, headers=list(row.headers))
            publisher.poll(0)
        assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0

    def start(self, engine: str) -> str:
        """Start it in an engine; return its name."""
        d = self.bench.delivery
        given = {"catalog": d.catalog, "kafka": d.kafka, "home": d.home, "stages": self.stages}
        self.driver.well("start", name=d.pipeline, options={"engine": engine}, **given)
        return d.pipeline

    def run(self, engine: str) -> Counter[str]:
        """Run it in an engine until everything is delivered; return what its seals have counted."""
        d, name = self.bench.delivery, self.start(engine)
        self.driver.well("deliver", name=name)
        self.driver.well("stop", name=name)
        counted: Counter[str] = Counter()
        with closing(open_store(d.catalog)) as store:
            catalog = Catalog(store)
            for lane in store.lanes():
                if not lane.startswith(d.pipeline):
                    continue
                row = catalog.load(lane)
                assert row is not None, f"{lane} never was"
                ref = row.head.ref
                for seal in catalog.seals(lane, ref.incarnation, 0, ref.seq):
                    counted.update(asdict(seal.counts))
        return counted


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driven("local[3,4]", tmp_path_factory.mktemp("poison") / "driver.log") as driver:
        yield driver


@pytest.fixture
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:{tmp_path / 'catalog.db'}"
    return cassandra_url(request.getfixturevalue("cassandra"), "poison")


@pytest.fixture
def house(
    driver: Driver, kafka: Kafka, catalog: str, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[House]:
    delivery = Delivery(
        catalog=catalog,
        kafka=kafka.bootstrap,
        pipeline=unique("poison"),
        home=str(tmp_path / "home"),
    )
    with open_client(kafka.bootstrap) as client:
        yield House(driver, Bench(client, delivery))


def parent_of(record: Record) -> int:
    header = decode_header(record.header("delivery") or b"")
    assert header is not None, "every output says what it was made of"
    return header.parent[1]


def drifting() -> list[Sent]:
    """Orders whose schema changes half way: the price disappears, becomes text, becomes nothing."""
    kinds: list[dict[str, Any]] = [{"lines": [{}]}, {"lines": [{"price": "1"}]}, {"lines": None}]
    known = [order(number) for number in range(ORDERS // 2)]
    return known + [
        order(number, **kinds[number % 4]) if number % 4 < 3 else order(number)
        for number in range(ORDERS // 2, ORDERS)
    ]


@pytest.mark.parametrize(
    "catalog", ["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_poison_record_is_a_dead_letter_and_all_others_count_once(
    house: House, engine: str
) -> None:
    pad = "x" * MEBIBYTE
    rows = drifting()
    rows += [
        Sent(b"{"),
        Sent(b'{"id": "\xff\xfe"}'),
        Sent(b"[1, 2]", key=b"k"),
        order(100, pad=pad),
        order(101, pad=pad, as_it_is=True),
        Sent(b"\xff" * MEBIBYTE, (("x", b"1"),), b"k"),
        Sent(order(102, as_it_is=True).value, MANY),
        Sent(b"{", MANY),
        Sent(order(103, as_it_is=True).value, (("none", None), ("twice", b"1"), ("twice", b""))),
    ]
    # And everything again, as from a publisher who lost an answer.
    rows += rows
    raw, out, dead, again = map(house.topic, ("raw", "out", "dead", "again"))
    aside = {"dead_letters": dead, "duplicates": again}
    house.stage(user.total, reads=raw, writes=[out], id_from="json:id", **aside)
    house.publish(raw, rows)
    counters = house.run(engine)
    assert house.bench.proved() == []
    made = {parent_of(record): record for record in house.bench.records(out)}
    letters = {parent_of(record): record for record in house.bench.records(dead)}
    named = {number for number, row in enumerate(rows[: len(rows) // 2]) if is_named(row)}
    bad = {number for number, row in enumerate(rows) if not is_named(row)}
    failing = {number for number in range(ORDERS // 2, ORDERS) if number % 4 < 3} | {ORDERS + 4}
    assert set(letters) == bad | failing
    assert set(made) == named - failing
    assert counters["dead_letter"] == len(letters)
    assert counters["duplicate"] == len(named)
    for offset, letter in letters.items():
        assert kept(rows[offset], letter, offset), offset
        assert (b"id_from failed" in (letter.header("delivery-error") or b"")) == (offset in bad)
    repeats = {parent_of(record): record for record in house.bench.records(again)}
    assert set(repeats) == set(range(len(rows) // 2, len(rows))) - bad
    for offset, repeat in repeats.items():
        assert kept(rows[offset], repeat, offset), offset
        said = json.loads(repeat.header("delivery-duplicate") or b"")
        assert (said["reason"], said["seq"] > 0) == ("duplicate", True)
    assert made[ORDERS + 6].headers[: len(MANY)] == MANY
    assert made[ORDERS + 8].headers[:3] == (("none", b""), ("twice", b"1"), ("twice", b""))
    totals = Counter(
        json.loads(made[number].value or b"")["total"] for number in range(ORDERS // 2)
    )
    assert totals == Counter(range(ORDERS // 2))


def is_named(row: Sent) -> bool:
    try:
        return bool(json.loads(row.value)["id"] is not None)
    except (TypeError, ValueError):
        return False


def kept(row: Sent, letter: Record, offset: int) -> bool:
    """Tell whether a dead letter has all that its record had, or says that it was cut and where."""
    # A header without a value is read as an empty one.
    headers = tuple((name, value or b"") for name, value in row.headers)
    same = (letter.key, letter.headers[: len(headers)]) == (row.key, headers)
    truncated = letter.header("delivery-truncated")
    if truncated is None:
        return same and letter.value == row.value
    said = json.loads(truncated)
    whole = (said["partition"], said["offset"], said["value_bytes"]) == (0, offset, len(row.value))
    long = len(letter.value or b"") > RECORD_BYTES_MAX - 4096
    return same and whole and long and row.value.startswith(letter.value or b"")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_repeat_from_before_the_window_is_a_dead_letter_where_its_time_tells(
    house: House, engine: str
) -> None:
    raw, out, dead = map(house.topic, ("raw", "out", "dead"))
    house.stage(
        user.total,
        reads=raw,
        writes=[out],
        id_from="json:id",
        time_from="header:at",
        window="1h",
        dead_letters=dead,
    )
    early, late = ((("at", b"2026-01-01T%02d:00:00Z" % hour),) for hour in (0, 9))
    first = Sent(order(0).value, early)
    house.publish(raw, [first])
    house.run(engine)
    house.publish(raw, [Sent(order(1).value, late)])
    house.run(engine)
    house.publish(raw, [first, Sent(order(2).value, late), order(3), Sent(order(4).value, early)])
    counted = house.run(engine)
    assert house.bench.proved() == []
    assert sorted(map(parent_of, house.bench.records(out))) == [0, 1, 3]
    said = {
        parent_of(record): (record.header("delivery-error") or b"").decode()
        for record in house.bench.records(dead)
    }
    assert said.keys() == {2, 4, 5}
    assert "time_from failed" in said[4]
    assert all("nobody can tell whether it is a repeat" in said[number] for number in (2, 5))
    assert (counted["fresh"], counted["dead_letter"], counted["duplicate"]) == (6, 3, 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("rows", "offset"),
    [
        ([order(0), order(1), Sent(b"{"), order(2)], 2),
        ([order(0), order(1), order(2, lines=None), order(3)], 2),
        ([order(number, lines=None) for number in range(4)], 0),
    ],
    ids=["nameless", "code-fails", "code-always-fails"],
)
def test_without_dead_letters_the_stage_stops_and_names_the_record(
    house: House, engine: str, rows: list[Sent], offset: int
) -> None:
    raw, out = house.topic("raw"), house.topic("out")
    house.stage(user.total, reads=raw, writes=[out], id_from="json:id")
    house.publish(raw, rows)
    failed = house.driver.do("wait", name=house.start(engine), timeout=STOPPED_SECONDS_MAX)
    assert f"offset {offset} of partition 0" in failed["text"], failed
    assert {parent_of(record) for record in house.bench.records(out)} <= set(range(offset))


@pytest.mark.parametrize("engine", ENGINES)
def test_code_that_always_fails_puts_everything_aside_once(house: House, engine: str) -> None:
    raw, out, dead = map(house.topic, ("raw", "out", "dead"))
    house.stage(user.total, reads=raw, writes=[out], id_from="json:id", dead_letters=dead)
    rows = [order(number, lines=None) for number in range(ORDERS)]
    house.publish(raw, rows + rows)
    counted = house.run(engine)
    assert house.bench.proved() == []
    assert house.bench.records(out) == []
    assert [parent_of(record) for record in house.bench.records(dead)] == list(range(ORDERS))
    assert (counted["dead_letter"], counted["duplicate"]) == (ORDERS, ORDERS)


@pytest.mark.parametrize("engine", ENGINES)
def test_of_a_batch_of_arrow_only_the_records_that_fail_are_dead_letters(
    house: House, engine: str
) -> None:
    raw, out, dead = map(house.topic, ("raw", "out", "dead"))
    aside = {"dead_letters": dead}
    house.stage(user.totals, reads=raw, writes=[out], id_from="json:id", batch=True, **aside)
    rows = [*drifting(), Sent(b"{"), order(0)]
    house.publish(raw, rows)
    counted = house.run(engine)
    assert house.bench.proved() == []
    failing = {number for number in range(ORDERS // 2, ORDERS) if number % 4 < 3}
    letters = {parent_of(record): record for record in house.bench.records(dead)}
    assert set(letters) == failing | {ORDERS}
    assert all(kept(rows[offset], letter, offset) for offset, letter in letters.items())
    made = house.bench.records(out)
    assert [parent_of(record) for record in made] == sorted(set(range(ORDERS)) - failing)
    assert [json.loads(record.value or b"")["total"] for record in made] == [
        parent_of(record) for record in made
    ]
    assert (counted["dead_letter"], counted["duplicate"]) == (len(letters), 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_repeat_with_another_payload_stops_the_stage_until_it_is_told_to_go_on(
    house: House, engine: str
) -> None:
    raw, out = house.topic("raw"), house.topic("out")
    house.stage(user.total, reads=raw, writes=[out], id_from="json:id", conflicts="error")
    house.publish(raw, [order(0), order(1), order(0)])
    assert house.run(engine)["duplicate"] == 1, "the same again is a repeat like any other"
    house.publish(raw, [order(2), order(0, note="another"), order(3)])
    failed = house.driver.do("wait", name=house.start(engine), timeout=STOPPED_SECONDS_MAX)
    assert failed["error"] == "InvalidUsage", failed
    assert f"/{raw}-0: offset 4 of partition 0: its id " in failed["text"]
    assert "nothing of its bundle was sealed or sent" in failed["text"]
    with closing(open_store(house.bench.delivery.catalog)) as store:
        (lane,) = store.lanes()
        row = Catalog(store).load(lane)
        assert row is not None
        assert max(offset for _, offset in row.head.frontier) <= 4
    assert set(map(parent_of, house.bench.records(out))) <= {0, 1, 3}
    assert 'say conflicts="count" to go past this one' in failed["text"]
    house.stages[0]["conflicts"] = "count"
    counted = house.run(engine)
    assert house.bench.proved() == []
    assert sorted(map(parent_of, house.bench.records(out))) == [0, 1, 3, 5]
    assert (counted["duplicate"], counted["conflict"]) == (2, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_with_holes_of_compaction_and_of_aborted_transactions(
    house: House, kafka: Kafka, engine: str
) -> None:
    compacted = compacted_topic(kafka, keep=True)
    aborted, first, second = house.topic("aborted"), house.topic("first"), house.topic("second")
    publisher = transactional(kafka, house.bench.delivery.pipeline)
    known = [order(number).value for number in range(ORDERS)]
    transact(publisher, aborted, known[:20], commit=True)
    transact(publisher, aborted, [b"never"] * ABORTED, commit=False)
    transact(publisher, aborted, known[10:], commit=True)
    transact(publisher, aborted, [b"never"] * ABORTED, commit=False)
    house.stage(user.total, reads=aborted, writes=[first], id_from="json:id")
    house.stage(user.marked, reads=compacted, writes=[second])
    counters = house.run(engine)
    assert house.bench.proved() == []
    left = house.bench.records(compacted)
    assert left[0].offset > 0, "compaction took the first ones"
    assert sorted(map(parent_of, house.bench.records(second))) == [r.offset for r in left]
    totals = [json.loads(record.value or b"")["total"] for record in house.bench.records(first)]
    assert sorted(totals) == list(range(ORDERS))
    assert counters["fresh"] == ORDERS + len(left)
    assert counters["duplicate"] == 10


@pytest.mark.parametrize("engine", ENGINES)
def test_calls_that_wait_run_several_at_once_and_their_outputs_keep_the_order(
    house: House, engine: str
) -> None:
    raw, out, dead = house.topic("raw"), house.topic("out"), house.topic("dead")
    house.stage(user.meet, reads=raw, writes=[out], dead_letters=dead, threads=3)
    house.publish(raw, [order(number) for number in range(ORDERS)])
    house.run(engine)
    assert house.bench.proved() == []
    made = house.bench.records(out)
    assert [parent_of(record) for record in made] == [n for n in range(ORDERS) if n != 7]
    assert [parent_of(record) for record in house.bench.records(dead)] == [7]
    together = [json.loads(record.value or b"")["together"] for record in made]
    assert max(together) == 3, "as many at once as were asked for, and no more"
