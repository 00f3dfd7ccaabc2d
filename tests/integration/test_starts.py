"""Starts that would silently make everything a second time, on a real broker: refused, nothing sent."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from delivery import Delivery, InvalidUsage
from delivery.host.starting import prepare
from delivery.kafka.opening import open_client
from delivery.records import Output, Record
from delivery.services.kafka import Kafka
from tests.integration.work_kit import Bench, named
from tests.integration.wrap_kit import Job, traffic
from tests.unit.operate_kit import called

RECORDS = 60


def grow(kafka: str, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
    with open_client(kafka) as client:
        deadline = time.monotonic() + 30
        while client.describe([topic])[topic].partitions < partitions:
            assert time.monotonic() < deadline, "the brokers do not say it"


def priced(record: Record) -> Output:
    """User code."""
    return record.replace(value=b"priced " + (record.value or b""))


class Shop:
    """One stage over a broker, declared as a test likes."""

    def __init__(self, bench: Callable[[Delivery], Bench], kafka: str, name: str, at: Path) -> None:
        self._bench = bench
        self.kafka, self.name, self.at = kafka, name, at
        self.orders, self.priced = f"{name}.orders", f"{name}.priced"
        self.bench = self.declared()
        for topic in (self.orders, self.priced):
            self.bench.create(topic, 2)

    def declared(
        self,
        *stages: str,
        file: str = "shop.db",
        pipeline: str | None = None,
        id_from: str = "header:id",
    ) -> Bench:
        """Declare stages that all do the same, anew."""
        delivery = Delivery(
            catalog=f"sqlite:{self.at / file}",
            kafka=self.kafka,
            pipeline=pipeline or self.name,
            home=str(self.at / "home"),
        )
        for stage in stages or ("price",):
            delivery.stage(reads=self.orders, writes=self.priced, name=stage, id_from=id_from)(
                priced
            )
        self.bench = self._bench(delivery)
        return self.bench

    def drain(self, *names: str) -> None:
        self.bench.publish(self.orders, [*named(0, *names[::2]), *named(1, *names[1::2])])
        self.bench.work()

    def refused(self, bench: Bench, why: str) -> None:
        """Start, and see that it is refused and nothing is sent."""
        before = self.sent()
        for start in (bench.work, lambda: prepare(bench.delivery.plan, create_topics=True)):
            with pytest.raises(InvalidUsage, match=re.compile(why, re.DOTALL)):
                start()
        assert self.sent() == before

    def sent(self) -> list[str]:
        """Return what is in the output topic, each as often as it is there."""
        return sorted(
            (record.value or b"")[len(b"priced value of ") :].decode()
            for record in self.bench.records(self.priced)
        )


@pytest.fixture
def shop(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Shop]:
    with open_client(kafka.bootstrap) as client:
        made = Shop(
            lambda delivery: Bench(client, delivery), kafka.bootstrap, unique("shop"), tmp_path
        )
        made.drain("a", "b", "c", "d")
        yield made


def test_a_stage_under_a_new_name_is_refused_until_it_is_renamed(shop):
    renamed = shop.declared("cost")
    shop.refused(renamed, f"{shop.name}/cost: it never ran, and {shop.name}/price.*stage rename")
    url = renamed.delivery.catalog
    words = ("stage", "rename", url, f"{shop.name}/price", "cost", "--kafka", shop.kafka, "--yes")
    called(*words)
    shop.drain("a", "e")
    assert shop.sent() == ["a", "b", "c", "d", "e"]
    assert renamed.proved() == []


def test_a_pipeline_under_a_new_name_is_refused_until_it_is_meant(shop):
    new = f"{shop.name}prod"
    why = f"{new}/price: it never ran, and {shop.name}/price of another pipeline.*count twice"
    shop.refused(shop.declared(pipeline=new), f'{why}.*pipeline="{shop.name}"')
    shop.declared()
    shop.drain("a", "e")
    assert shop.sent() == ["a", "b", "c", "d", "e"]
    both = shop.declared(pipeline=new)
    called("catalog", "accept", both.delivery.catalog, "--stage", f"{new}/price", "--yes")
    both.work()
    assert shop.sent() == sorted("abcde" * 2)


def test_a_start_says_what_lets_repeats_through(shop, caplog):
    """Another way of naming, and partitions that appeared since."""
    prepare(shop.declared().delivery.plan)
    assert "takes effect" not in caplog.text
    prepare(shop.declared(id_from="key").delivery.plan)
    assert "stage price names its records by key now, and 2 of its lanes" in caplog.text
    caplog.clear()
    grow(shop.kafka, shop.orders, 3)
    prepare(shop.declared().delivery.plan)
    assert f"stage price reads {shop.orders}: partitions appeared (2)" in caplog.text


def test_a_stage_more_and_one_in_place_of_a_retired_one_begin(shop):
    """Each makes everything of its own once: that is what was meant."""
    shop.declared("price", "cost").work()
    assert shop.sent() == sorted("abcd" * 2)
    for stage in ("price", "cost"):
        assert shop.bench.delivery.life.retire(stage, perform=True).done
    shop.declared("value").work()
    assert shop.sent() == sorted("abcd" * 3)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_catalog_that_is_gone_is_noticed_and_rebuilt(shop, elsewhere):
    """Deleted, or not there because the program was started in another directory."""
    file = "elsewhere.db" if elsewhere else "shop.db"
    if not elsewhere:
        for one in shop.at.glob("shop.db*"):
            one.unlink()
    shutil.rmtree(shop.at / "home")
    empty = shop.declared(file=file)
    why = f"{shop.name}/price/.*was emitted by a lane of this name.*ran with another catalog.*"
    shop.refused(empty, f"{why}recover-a-lost-catalog.*--stage {shop.name}/price")
    if elsewhere:
        shop.declared()
    else:
        program = shop.at / "shop.py"
        program.write_text(
            "from delivery import Delivery\n"
            f"d = Delivery(catalog={empty.delivery.catalog!r}, kafka={shop.kafka!r}, "
            f"pipeline={shop.name!r})\n"
            f"@d.stage(reads={shop.orders!r}, writes={shop.priced!r}, id_from='header:id')\n"
            "def price(record):\n    return record\n"
        )
        url = empty.delivery.catalog
        called("catalog", "repair", url, "--pipeline", str(program), "--yes")
    shop.drain("a", "e")
    assert shop.sent() == ["a", "b", "c", "d", "e"]


def test_a_stage_begins_anew_where_that_is_said(shop):
    empty = shop.declared(file="other.db")
    shop.refused(empty, "accept")
    url, stage = empty.delivery.catalog, f"{shop.name}/price"
    called("catalog", "accept", url, "--stage", stage, "--yes")
    empty.work()
    assert shop.sent() == sorted("abcd" * 2)
    empty.work()
    assert shop.sent() == sorted("abcd" * 2)


@pytest.mark.slow
def test_a_wrapped_job_begins_nowhere_unnoticed_either(kafka, unique, tmp_path):
    job = Job(name=unique("wrap"), kafka=kafka.bootstrap, directory=tmp_path, kind="plain")
    job.send(traffic(0, RECORDS))
    job.run()
    before = job.effects()
    assert len(before) == RECORDS
    said = replace(job, stage="summary").run(expected=1)
    assert f"delivery stage rename {job.catalog} {job.name}/report summary" in said
    for one in tmp_path.glob("catalog.db*"):
        one.unlink()
    said = job.run(expected=1)
    assert "ran with another catalog" in said
    assert job.effects() == before
