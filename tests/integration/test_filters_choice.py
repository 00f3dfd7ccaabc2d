"""Filters made otherwise from one run to the next, on real servers: it costs time, never a verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.open import open_catalog
from dedup.filters.header import PAGE_BYTES, read_page
from dedup.local import Home
from dedup.local.shelf import filters_of
from delivery import Delivery, Filters
from delivery.kafka.opening import open_client
from delivery.records import Record
from delivery.services.kafka import Kafka
from tests.integration.resident_kit import Pipeline, driven
from tests.integration.test_rekeying import counted
from tests.integration.work_kit import Bench, named
from tests.integration.wrap_kit import Job, traffic

KEY = b"sixteen secrets!"
#: One after the other, on the same files: all that a choice can change, and back.
CHOICES = (
    Filters(),
    Filters(engine="pybloom-live", rate=0.01, key=KEY),
    Filters(rate=0.1),
    Filters(key=KEY),
    Filters(),
)
PARTITIONS = 2


def made_in(home: Path) -> set[tuple[bool, float, bytes | None]]:
    """Return how the filter files below a home were made: whether by the package, rate and key."""
    found = set()
    for path in home.rglob("filter-*"):
        header = read_page(lambda: path.read_bytes()[:PAGE_BYTES])  # noqa: B023 - called at once
        assert header is not None
        found.add((b"pybloom-live" in header.maker, header.rate, header.key))
    return found


def as_made(filters: Filters) -> tuple[bool, float, bytes | None]:
    return filters.engine == "pybloom-live", filters.rate, filters.key


def told(filters: Filters) -> dict[str, Any]:
    """Return what a program of a test is told."""
    return asdict(filters) | {"key": (filters.key or b"").hex()}


def check_files(delivery: Delivery, lanes: int) -> None:
    """What lies in the home for the next process is as it was chosen, of so many lanes."""
    assert delivery.home is not None
    with closing(open_catalog(delivery.catalog).store) as store:
        places = [Home(Path(delivery.home)).place(store.url, lane) for lane in store.lanes()]
    found = [(manifest, place) for place in places if (manifest := place.read())]
    made = [filters_of(*one) for one in found if one[0].groups]
    assert made == [delivery.filters] * lanes


@pytest.fixture
def bench(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bench]:
    delivery = Delivery(
        catalog=f"sqlite:{tmp_path / 'catalog.db'}",
        kafka=kafka.bootstrap,
        pipeline=unique("shop"),
        home=str(tmp_path / "home"),
    )
    with open_client(kafka.bootstrap) as client:
        yield Bench(client, delivery)


def test_a_stage_and_a_receiver_go_on_with_other_filters(bench, unique) -> None:
    clicks, out = unique("clicks"), unique("counted")
    bench.create(clicks, PARTITIONS)
    bench.create(out, PARTITIONS)
    received: Counter[bytes] = Counter()
    sent: list[str] = []
    for turn, filters in enumerate(CHOICES):
        first = bench.delivery
        delivery = bench.delivery = Delivery(
            catalog=first.catalog,
            kafka=first.kafka,
            pipeline=first.pipeline,
            home=first.home,
            filters=filters,
        )
        delivery.stage(reads=clicks, writes=out, name="count", id_from="header:id")(counted)
        new = [f"click-{turn}-{number}" for number in range(500)]
        sent += new
        # Everything from before once more, and what is new twice.
        rows = [row for name in (*sent, *new) for row in named(int(name[-1]) % PARTITIONS, name)]
        bench.publish(clicks, rows)
        counters = bench.work()
        assert counters["duplicate"] == len(rows) - len(new)
        assert counters["probes"] == len(rows)
        # What was there before was let through; of the rest some, in vain.
        was_there = counters["positives"] - counters["false_positives"]
        assert len(sent) - len(new) <= was_there <= counters["duplicate"]
        group = delivery.receiver(topic=clicks, group="look", id_from="header:id", bounded=True)
        for bundle in group:
            received += Counter(record.header("id") for record in bundle.records())
            bundle.done()
        # An index takes the ids of its last bundle with the next one, and here is one in a turn.
        check_files(delivery, lanes=2 * PARTITIONS if turn else 0)
    each_once = Counter(name.encode() for name in sent)
    assert received == each_once
    records: list[Record] = bench.records(out)
    assert Counter(record.value.partition(b"/")[0] for record in records) == each_once
    assert bench.proved() == []


def test_what_is_chosen_reaches_the_tasks_of_both_engines(kafka, unique, tmp_path) -> None:
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path, partitions=PARTITIONS)
    home = tmp_path / "home"
    with driven("local[2,4]", tmp_path / "log") as driver, closing(pipeline):
        for turn, engine in enumerate(("resident", "micro-batch", "resident")):
            filters = CHOICES[turn]
            pipeline.send(range(500 * (turn + 1)))
            options = {"engine": engine}
            driver.well("start", **pipeline.given, options=options, filters=told(filters))
            driver.well("deliver", name=pipeline.name)
            pipeline.check()
            progress = driver.well("stop", name=pipeline.name)["progress"]
            assert progress["counters"]["probes"] >= 500 * (turn + 1)
            assert turn == 0 or as_made(filters) in made_in(home)
        text = (tmp_path / "log").read_text()
    assert KEY.decode() not in text
    assert KEY.hex() not in text


@pytest.mark.slow
def test_what_is_chosen_reaches_the_tasks_of_a_wrapped_job(kafka, unique, tmp_path) -> None:
    job = Job(name=unique("wrap"), kafka=kafka.bootstrap, directory=tmp_path, kind="plain")
    for turn in (1, 2):
        job.send(traffic(0, 100 * turn))
        said = replace(job, filters=told(CHOICES[turn])).run()
        assert as_made(CHOICES[turn]) in made_in(tmp_path / "home")
        assert KEY.decode() not in said
        counted = json.loads(said.partition("counted: ")[2].partition("\n")[0])
        assert counted["probes"] >= counted["positives"] >= counted["false_positives"]
        assert counted["probes"] - counted["positives"] + counted["false_positives"] >= 100
    job.prove()
    assert Counter(effect["id"] for effect in job.effects()) == Counter(range(200))
