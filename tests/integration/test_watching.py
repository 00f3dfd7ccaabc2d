"""Watching on a real Kafka: a driver and a receiver serve metrics, and the verbs say what is so."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from delivery import Delivery
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from tests.integration.receiver_kit import World
from tests.integration.resident_kit import Driver, Pipeline, driven, until
from tests.unit.house import House
from tests.unit.operate_kit import called, chained, copied, document

ORDERS = 300


@pytest.fixture
def world(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> World:
    return World(kafka.bootstrap, unique("orders"), tmp_path).make()


def scraped(url: str) -> dict[str, float]:
    """Every sample that an endpoint serves, by its name and labels."""
    connection = HTTPConnection(url.split("/")[2], timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        key: float(value)
        for key, value in re.findall(r"^(delivery_\S+) (\S+)$", text, re.MULTILINE)
    }


def consume(world: World, found: dict[str, float]) -> None:
    """Let a receiver with metrics read everything; keep what it served in the middle of it."""
    pipeline = Delivery(
        catalog=f"sqlite:{world.root / 'catalog.db'}", kafka=world.bootstrap, metrics=0
    )
    assert pipeline.metrics is not None
    receiver = pipeline.receiver(
        topic=world.topic, group="billing", id_from="header:id", bounded=True
    )
    for bundle in receiver:
        assert pipeline.metrics.url is not None
        if not found:
            found.update(scraped(pipeline.metrics.url))
        bundle.done()
    behind = 'delivery_stage_behind_records{pipeline="main",stage="billing"}'
    # Whoever asks again within a second is told the same.
    until(lambda: scraped(pipeline.metrics.url or "").get(behind) == 0)
    pipeline.metrics.close()


def test_a_receiver_serves_metrics_and_the_verbs_say_how_it_stands(world: World) -> None:
    world.send([*range(ORDERS), *range(0, ORDERS, 3)])
    found: dict[str, float] = {}
    consume(world, found)
    assert found['delivery_up{of="kafka"}'] == found['delivery_up{of="catalog"}'] == 1
    assert found['delivery_run_active{run="billing"}'] == 1

    asked = (f"sqlite:{world.root / 'catalog.db'}", "--kafka", world.bootstrap)
    (stage,) = document("lag", *asked)["stages"]
    assert (stage["behind"], stage["waiting_ms"], stage["unclaimed"], stage["pending"]) == (
        *(0, 0, 0),
        0,
    )
    assert "PROTECTED" in called("guarantee", *asked).stdout
    world.send(range(ORDERS, ORDERS + 20))
    (stage,) = document("lag", *asked)["stages"]
    assert (stage["behind"], sum(lane["behind"] for lane in stage["lanes"])) == (20, 20)
    assert 0 <= stage["waiting_ms"] < 120_000
    served = document("metrics", *asked, "--once")["metrics"]
    assert served["delivery_stage_behind_records"][0]["value"] == 20


def test_repeats_are_looked_up_in_a_real_log(world: World) -> None:
    world.send([*range(ORDERS), *range(0, ORDERS, 3)])
    consume(world, {})
    asked = (f"sqlite:{world.root / 'catalog.db'}", "--kafka", world.bootstrap)
    (advice,) = (one for one in document("advice", *asked)["advice"] if one["topic"] == "window")
    assert advice["seen"].startswith("100 repeats")
    assert "its window is 1.0 d, and that long was not looked at" in advice["seen"]
    assert advice["change"] == ""
    file = world.root / "report.html"
    assert document("report", *asked, "-o", str(file))["stages"] == ["main/billing"]
    assert re.search(r"[1-9]\d* of [1-9]\d* sampled repeats; the latest came", file.read_text())


# Cassandra ----------------------------------------------------------------------------------------


def test_a_catalog_in_cassandra_is_watched_like_one_in_a_file(
    cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> None:
    url = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}/{unique('shop')}"
    house = House(MemoryStore())
    chained(house)
    store = open_store(url)
    copied(house.store, store)
    store.close()
    first, second = document("lag", url)["stages"]
    assert (first["stage"], first["pending"], second["behind"]) == ("price", 0, 0)
    assert document("guarantee", url, code=3)["state"] == "unknown"
    served = document("metrics", url, "--once")["metrics"]
    assert [one["value"] for one in served["delivery_lane_seals_total"]] == [6, 6]
    assert document("report", url, "-o", str(tmp_path / "report.html"))["seals"] == 12
    assert document("advice", url)["kafka"] is False


# Spark --------------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with driven("local[3,4]", tmp_path / "driver.log") as found:
        yield found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_driver_serves_what_its_executors_do(
    driver: Driver, kafka: Kafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    given: dict[str, Any] = {**pipeline.given, "metrics": port}
    try:
        pipeline.send(range(ORDERS))
        driver.well("start", **given)
        driver.well("deliver", name=pipeline.name)
        run = f'run="{pipeline.name}"'
        fresh = f'delivery_run_records_total{{{run},verdict="fresh"}}'
        # What tasks tell is up to a second old.
        until(lambda: scraped(url).get(fresh) == 2 * ORDERS)
        found = scraped(url)
        assert found[f"delivery_run_active{{{run}}}"] == 1
        assert found[f"delivery_run_tasks{{{run}}}"] == 2
        for stage in ("price", "ship"):
            names = f'pipeline="{pipeline.name}",stage="{stage}"'
            assert found[f"delivery_stage_behind_records{{{names}}}"] == 0
            assert found[f'delivery_guarantee{{{names},state="exact"}}'] == 1
        driver.well("stop", name=pipeline.name)
        until(lambda: scraped(url)[f"delivery_run_active{{{run}}}"] == 0)
    finally:
        pipeline.close()
