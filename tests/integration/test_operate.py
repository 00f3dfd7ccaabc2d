"""`delivery audit` and `delivery explain` on a real Kafka: what a crash left behind is told as it was."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from delivery.header import NAME, Header, decode_header, encode_header
from delivery.host.spec import Plan, StageSpec
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.operate.logs import Cluster
from delivery.points import EMITTED_NOT_ACKNOWLEDGED
from delivery.records import Output, Record
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.unit.operate_kit import called, document

PARTITIONS = 2
#: How long a pipeline may take to come to rest.
REST_SECONDS_MAX = 120.0


class Crash(Exception):
    """A process died here."""


def price(record: Record) -> Output:
    return record.replace(value={**record.json(), "nonce": uuid.uuid4().hex})


@dataclass(frozen=True)
class Shop:
    """Two stages that have run, with a crash between emission and acknowledgement."""

    kafka: str
    url: str
    directory: Path
    orders: str
    priced: str
    shipped: str

    def specs(self) -> tuple[StageSpec, StageSpec]:
        first = StageSpec(
            pipeline="shop",
            name="price",
            reads=self.orders,
            writes=(self.priced,),
            call=price,
            named="header:id",
            bundle_rows=20,
        )
        ship = StageSpec(
            pipeline="shop",
            name="ship",
            reads=self.priced,
            writes=(self.shipped,),
            call=price,
            bundle_rows=20,
        )
        return first, ship

    def run(self, at: Callable[[str], None] = lambda _: None) -> None:
        """Run every lane until it is at its end and acknowledged."""
        home = str(self.directory / "home")
        plan = Plan(catalog=self.url, kafka=self.kafka, stages=self.specs(), home=home)
        worker = Worker(plan, at=at)
        try:
            for spec in self.specs():
                worker.open(spec, range(PARTITIONS), {})
            deadline = time.monotonic() + REST_SECONDS_MAX
            while time.monotonic() < deadline:
                if not worker.turn():
                    lags = [lane.lag for lane in worker.progress().lanes]
                    if set(lags) == {0}:
                        return
            raise AssertionError(f"never at rest: {worker.progress()}")
        finally:
            worker.close()

    def records(self, name: str) -> list[Record]:
        """Everything in a topic, by partition and offset."""
        with open_client(self.kafka) as client:
            cluster = Cluster(client)
            topic = cluster.topic(name)
            bounds = cluster.bounds(topic)
            every = [one for b in cluster.read(topic, bounds.low, bounds.high) for one in b]
        return sorted(every, key=lambda one: (one.source, one.offset))

    def send(self, name: str, rows: list[Sent]) -> None:
        with open_client(self.kafka) as client:
            send(client, name, rows)


def send(client: Client, name: str, rows: list[Sent]) -> None:
    producer = client.producer()
    producer.emit([client.describe([name])[name]], emissions(rows))
    producer.close()


def order(number: int) -> Sent:
    """An order; every tenth one repeats the one seven before it."""
    told = number - 7 * PARTITIONS if number % 10 == 9 and number > 20 else number
    value = json.dumps({"id": told}).encode()
    return Sent(number % PARTITIONS, b"k%d" % told, value, (("id", b"order-%d" % told),))


def crashing(after: int) -> Callable[[str], None]:
    """Let the process die at the `after`th bundle that is emitted and not acknowledged."""
    passed: list[str] = []

    def at(point: str) -> None:
        if point == EMITTED_NOT_ACKNOWLEDGED:
            passed.append(point)
            if len(passed) == after:
                raise Crash

    return at


@pytest.fixture(scope="module")
def shop(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop that tests only look at."""
    return planted(kafka, tmp_path_factory.mktemp("shop"), 120)


def planted(kafka: Kafka, directory: Path, count: int) -> Shop:
    """Run a pipeline over orders, with two crashes."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    made = Shop(
        kafka.bootstrap,
        f"sqlite:{directory / 'shop.db'}",
        directory,
        *(f"{name}.{topic}" for topic in ("orders", "priced", "shipped")),
    )
    with open_client(kafka.bootstrap) as client:
        for topic in (made.orders, made.priced, made.shipped):
            client.create(topic, TopicSettings(partitions=PARTITIONS))
        send(client, made.orders, [order(number) for number in range(count)])
    for after in (2, 3):
        with pytest.raises(Crash):
            made.run(crashing(after))
    made.run()
    return made


def told(shop: Shop, *arguments: str, code: int = 0) -> dict[str, Any]:
    verb, *more = arguments
    return document(verb, shop.url, "--kafka", shop.kafka, *more, code=code)


def header_of(record: Record) -> Header:
    found = decode_header(record.header(NAME) or b"")
    assert found is not None
    return found


def test_a_run_with_crashes_is_exact(shop: Shop) -> None:
    found = told(shop, "audit", "--finished")
    assert (found["verdict"], found["findings"], found["unproved"]) == ("exact", [], {})
    assert len(found["proved"]) == 2 * PARTITIONS
    assert found["records"] > 120 * 3 - 30
    said = called("audit", shop.url, "--kafka", shop.kafka, "--stage", "price").stdout
    assert said.splitlines()[-1].startswith("exact: ")


def test_explain_tells_of_every_kind_of_record_what_was_planted(shop: Shop) -> None:
    copies: dict[tuple[int, int], list[Record]] = {}
    for record in shop.records(shop.priced):
        copies.setdefault(header_of(record).parent, []).append(record)
    repeated = next(parent for parent, found in copies.items() if len(found) > 1)
    single = next(parent for parent, found in copies.items() if len(found) == 1)
    for partition, offset in (repeated, single):
        story = told(shop, "explain", "--offset", f"{shop.orders}/{partition}/{offset}")
        (reading,) = story["readings"]
        assert (reading["lane"], reading["fate"]) == (
            f"shop/price/{shop.orders}-{partition}",
            "fresh",
        )
        assert reading["attempts"][0]["won"]
        found = copies[partition, offset]
        assert reading["seq"] == header_of(found[0]).mark.seq
        (output,) = reading["outputs"]
        assert output["id"] == header_of(found[0]).id.hex()
        assert (output["topic"], output["partition"]) == (shop.priced, found[0].source.partition)
        assert [copy["offset"] for copy in output["copies"]] == [one.offset for one in found]
        fates = [list(copy["receivers"].values()) for copy in output["copies"]]
        assert fates[0] == ["fresh"]
        assert all(fate[0] in ("duplicate", "remnant") for fate in fates[1:])
        assert story["size"] is not None


def test_explain_tells_what_a_duplicate_repeats(shop: Shop) -> None:
    first: dict[bytes, Record] = {}
    for record in shop.records(shop.orders):
        name = record.header("id") or b""
        if name not in first:
            first[name] = record
            continue
        place = f"{shop.orders}/{record.source.partition}/{record.offset}"
        (reading,) = told(shop, "explain", "--offset", place)["readings"]
        assert (reading["fate"], reading["named"]) == ("duplicate", "header:id")
        original = first[name]
        assert reading["original"]["place"] == [original.source.partition, original.offset]
        said = called("explain", shop.url, "--kafka", shop.kafka, "--offset", place).stdout
        assert f"it repeats partition {original.source.partition} offset {original.offset}" in said
        return
    raise AssertionError("no repeat was sent")


def test_explain_tells_where_an_output_comes_from(shop: Shop) -> None:
    record = shop.records(shop.shipped)[0]
    header = header_of(record)
    place = f"{shop.shipped}/{record.source.partition}/{record.offset}"
    story = told(shop, "explain", "--offset", place)
    assert story["readings"] == []
    origin = story["origin"]
    assert (origin["lane"], origin["seq"]) == (header.mark.sender, header.mark.seq)
    assert (origin["standing"], origin["parent"]) == ("sealed", list(header.parent))
    assert story["id"] == header.id.hex()


def test_explain_tells_what_is_not_there(shop: Shop) -> None:
    story = told(shop, "explain", "--offset", f"{shop.orders}/0/99999")
    assert (story["size"], story["readings"][0]["fate"]) == (None, "pending")
    said = called(
        "explain", shop.url, "--kafka", shop.kafka, "--offset", "no.such.topic/0/1", code=2
    ).stderr
    assert "there is no such topic" in said


def test_explain_finds_copies_after_the_outputs_were_collected(shop: Shop) -> None:
    record = shop.records(shop.priced)[5]
    parent = header_of(record).parent
    place = f"{shop.orders}/{parent[0]}/{parent[1]}"
    before = told(shop, "explain", "--offset", place)
    document("catalog", "compact", shop.url, "--yes")
    after = told(shop, "explain", "--offset", place)
    ids = [[one["id"] for one in story["readings"][0]["outputs"]] for story in (before, after)]
    assert ids[0] == ids[1] != []
    assert told(shop, "audit", "--finished")["verdict"] == "exact"


def test_a_record_that_nobody_sealed_breaks_an_audit(kafka: Kafka, tmp_path: Path) -> None:
    shop = planted(kafka, tmp_path, 60)
    record = shop.records(shop.shipped)[0]
    header = header_of(record)
    mark = replace(header.mark, seq=999)
    forged = encode_header(replace(header, mark=mark))
    shop.send(shop.shipped, [Sent(0, None, b"forged", ((NAME, forged),))])
    found = told(shop, "audit", code=1)
    assert found["verdict"] == "broken"
    assert [finding["kind"] for finding in found["findings"]] == ["UNSEALED"]
    said = called("audit", shop.url, "--kafka", shop.kafka, code=1).stdout
    assert "UNSEALED" in said.splitlines()[0]
    last = max(one.offset for one in shop.records(shop.shipped) if one.source.partition == 0)
    story = told(shop, "explain", "--offset", f"{shop.shipped}/0/{last}")
    assert "forged" in story["origin"]["standing"]


def test_what_is_not_read_yet_is_wrong_only_when_it_is_due(kafka: Kafka, tmp_path: Path) -> None:
    shop = planted(kafka, tmp_path, 60)
    shop.send(shop.orders, [order(number) for number in range(60, 80)])
    assert told(shop, "audit", "--finished", code=1)["findings"][0]["kind"] == "UNFINISHED"
    assert told(shop, "audit")["verdict"] == "exact"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--stage", "prise"), 2, "name one of shop/price, shop/ship"),
        (("--id-from", "hader:id"), 2, "id_from='hader:id'"),
        (("--id-from", "price=key"), 0, "by header:id, as its seals say"),
    ],
)
def test_an_audit_says_what_it_was_told(
    shop: Shop, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = called("audit", shop.url, "--kafka", shop.kafka, "--json", *arguments, code=code)
    assert said in result.stdout.replace('"broken"', "BROKEN")


def test_options_of_kafka_come_from_a_file(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\n\nclient.id = auditor\n")
    more = ("--kafka-config", str(file))
    assert told(shop, "audit", *more)["verdict"] == "exact"
    file.write_text("password\n")
    said = called("audit", shop.url, "--kafka", shop.kafka, *more, code=2).stderr
    assert "write key=value" in said
    assert "password" not in said


# Sending again ------------------------------------------------------------------------------------

#: Partition, key, value and headers: everything but where a record lies and since when.
Bits = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def bits(records: Iterable[Record]) -> dict[tuple[str, int], list[Bits]]:
    """Return the contents of records by sender and partition, in their order there, copies once."""
    found: dict[tuple[str, int], dict[Bits, None]] = {}
    for one in records:
        partition = one.source.partition
        content = (partition, one.key, one.value, tuple(one.headers))
        found.setdefault((header_of(one).mark.sender, partition), {})[content] = None
    return {place: list(every) for place, every in found.items()}


def test_a_window_is_sent_into_another_topic_bit_for_bit(shop: Shop) -> None:
    lane, copy = f"shop/price/{shop.orders}-0", f"{shop.priced}.{uuid.uuid4().hex[:8]}"
    with open_client(shop.kafka) as client:
        client.create(copy, TopicSettings(partitions=PARTITIONS + 1))
    before = shop.records(shop.priced)
    asked = ("replay", "price", "--lane", f"{shop.orders}-0", "--seqs", "2..3", "--to", copy)
    assert told(shop, *asked)["done"] is False
    assert shop.records(copy) == []
    (done,) = told(shop, *asked, "--yes")["lanes"]
    wanted = [
        one for one in before if (mark := header_of(one).mark).sender == lane and 2 <= mark.seq <= 3
    ]
    assert len(shop.records(copy)) == done["sent"] == done["records"] > 0
    assert bits(shop.records(copy)) == bits(wanted)
    assert shop.records(shop.priced) == before
    story = told(shop, "explain", "--offset", f"{copy}/{wanted[0].source.partition}/0")
    assert "does not know as one of this topic" in story["origin"]["standing"]


def test_what_is_sent_again_into_its_topic_is_the_same_and_takes_no_effect(
    kafka: Kafka, tmp_path: Path
) -> None:
    shop = planted(kafka, tmp_path, 60)
    before, shipped = shop.records(shop.priced), shop.records(shop.shipped)
    ends = Counter(one.source for one in before)
    lanes = told(shop, "replay", "price", "--yes")["lanes"]
    tail = [one for one in shop.records(shop.priced) if one.offset >= ends[one.source]]
    assert len(tail) == sum(one["sent"] for one in lanes) > 0
    assert bits(tail) == bits(before)
    shop.run()
    assert shop.records(shop.shipped) == shipped
    found = told(shop, "audit", "--finished")
    assert (found["verdict"], found["findings"], found["unproved"]) == ("exact", [], {})
