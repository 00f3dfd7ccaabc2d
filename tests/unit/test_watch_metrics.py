"""Metrics: what is served is what the catalog says, in Prometheus' own format, and never a failure."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage, Unavailable
from delivery import Delivery
from delivery.watch import brokers
from delivery.watch import endpoint as endpoint_module
from delivery.watch.collector import Collector
from delivery.watch.endpoint import Endpoint, address_in
from delivery.watch.exposition import Samples
from delivery.watch.registry import METRICS
from delivery.watch.serving import Run, Serving
from delivery.watch.tally import Histogram
from tests.unit.documented import undocumented
from tests.unit.house import LANE, House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import Cluster, shop

#: One line of the format: name, labels, value.
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\})? (\S+)')


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def collector(house: House, *, kafka: bool = True) -> Collector:
    cluster = Cluster(house.broker)
    return Collector(
        lambda: open_catalog(house.store.url, create=False),
        (lambda: cluster) if kafka else None,
        lambda: house.now,
    )


def parsed(text: str) -> dict[str, float]:
    """Every sample of a page by its name and labels, held to the format."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in kinds or kinds[family] == "histogram", line
            key = match[1] + (f"{{{match[2]}}}" if match[2] else "")
            assert key not in found
            found[key] = float(match[3])
    assert {METRICS[name].kind for name in kinds} == set(kinds.values())
    return found


def price(name: str, **more: str) -> str:
    labels = {"pipeline": "shop", "stage": "price"} | more
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}"


def test_a_look_says_what_the_rows_say(house: House) -> None:
    with closing(collector(house)) as looks:
        found = parsed(looks.look().text())
    assert found['delivery_up{of="catalog"}'] == found['delivery_up{of="kafka"}'] == 1
    assert found[price("delivery_lane_seals_total", lane=LANE)] == 6
    assert found[price("delivery_lane_acknowledged_seals_total", lane=LANE)] == 6
    assert found[price("delivery_lane_sealed_offsets_total", lane=LANE)] == 30
    assert found[price("delivery_stage_behind_records")] == 0
    assert found[price("delivery_guarantee", state="exact")] == 1
    assert found[price("delivery_guarantee", state="degraded")] == 0
    assert price("delivery_degraded_since_timestamp_seconds") not in found


def test_records_are_counted_from_the_first_look_on(house: House) -> None:
    with closing(collector(house)) as looks:
        first = parsed(looks.look().text())
        house.write("new", "newer", "r0-0")
        house.done()
        second = parsed(looks.look().text())
    fresh, repeats = (
        price("delivery_stage_records_total", verdict=verdict) for verdict in ("fresh", "duplicate")
    )
    assert (first[fresh], first[repeats]) == (0, 0)
    assert (second[fresh], second[repeats]) == (2, 1)
    assert second[price("delivery_stage_outputs_total")] == 2
    assert second[price("delivery_stage_bundle_records_sum")] == 3
    assert second[price("delivery_stage_bundle_records_bucket", le="1")] == 0
    assert second[price("delivery_stage_bundle_records_bucket", le="10")] == 1
    assert second[price("delivery_stage_bundle_records_bucket", le="+Inf")] == 1


def test_what_is_degraded_says_since_when(house: House) -> None:
    house.broker.create("in")
    with closing(collector(house)) as looks:
        found = parsed(looks.look().text())
    minted = house.catalog().load(LANE).head.minted_at_ms
    assert found[price("delivery_guarantee", state="degraded")] == 1
    assert found[price("delivery_degraded_since_timestamp_seconds")] == minted / 1000


def test_what_is_unknown_has_no_sample(house: House) -> None:
    with closing(collector(house, kafka=False)) as looks:
        found = parsed(looks.look().text())
    assert 'delivery_up{of="kafka"}' not in found
    assert price("delivery_stage_behind_records") not in found
    assert found[price("delivery_guarantee", state="unknown")] == 1


def test_a_catalog_that_does_not_answer_is_down_and_is_opened_anew(house: House) -> None:
    answers = iter([False, True])

    def opened() -> Catalog:
        if not next(answers):
            raise Unavailable("open a catalog", "here", "it does not answer; try again")
        return open_catalog(house.store.url, create=False)

    with closing(Collector(opened, None, lambda: house.now)) as looks:
        first, second = (parsed(looks.look().text()) for _ in range(2))
    assert first['delivery_up{of="catalog"}'] == 0
    assert len(first) == 2
    assert second['delivery_up{of="catalog"}'] == 1


def test_a_cluster_that_does_not_answer_leaves_the_catalogs_metrics(house: House) -> None:
    def closed() -> Cluster:
        raise Unavailable("ask Kafka", "here:1", "no answer; try again")

    opened = lambda: open_catalog(house.store.url, create=False)  # noqa: E731  as short as it is
    with closing(Collector(opened, closed, lambda: house.now)) as looks:
        found = parsed(looks.look().text())
    assert (found['delivery_up{of="kafka"}'], found['delivery_up{of="catalog"}']) == (0, 1)


def test_a_cluster_that_does_not_answer_in_time_is_asked_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "ANSWER_SECONDS", 0.1)
    answered = threading.Event()
    cluster = Cluster(house.broker)

    def slow() -> Cluster:
        assert answered.wait(30)
        return cluster

    opened = lambda: open_catalog(house.store.url, create=False)  # noqa: E731  as short as it is
    with closing(Collector(opened, slow, lambda: house.now)) as looks:
        assert parsed(looks.look().text())['delivery_up{of="kafka"}'] == 0
        answered.set()
        monkeypatch.setattr(brokers, "ANSWER_SECONDS", 30)
        assert parsed(looks.look().text())['delivery_up{of="kafka"}'] == 1


def test_a_sample_has_exactly_the_labels_of_its_metric() -> None:
    found = Samples()
    with pytest.raises(KeyError):
        found.add("delivery_nothing", 1)
    with pytest.raises(AssertionError, match="labels"):
        found.add("delivery_up", 1)
    with pytest.raises(AssertionError):
        found.add("delivery_up", Histogram((1.0,)), of="kafka")
    assert found.text() == ""


def test_labels_are_escaped() -> None:
    found = Samples()
    found.add("delivery_run_active", 1, run='a"b\\c\nd')
    assert found.text().splitlines()[-1] == r'delivery_run_active{run="a\"b\\c\nd"} 1'


# The endpoint -------------------------------------------------------------------------------------


def fetched(url: str, path: str = "/metrics", status: int = HTTPStatus.OK) -> str:
    with closing(HTTPConnection(url.split("/")[2], timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == status
        if status == HTTPStatus.OK:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_the_endpoint_answers_metrics_and_nothing_else() -> None:
    with closing(Endpoint(("127.0.0.1", 0), lambda: "delivery_x 1\n")) as endpoint:
        assert fetched(endpoint.url) == "delivery_x 1\n"
        assert "there is only /metrics" in fetched(endpoint.url, "/more", HTTPStatus.NOT_FOUND)
        with pytest.raises(InvalidUsage, match="in use"):
            Endpoint(("127.0.0.1", endpoint.port), str)


def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "CLIENT_SECONDS_MAX", 0.1)
    with (
        closing(Endpoint(("127.0.0.1", 0), lambda: "delivery_x 1\n")) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)),
    ):
        assert fetched(endpoint.url) == "delivery_x 1\n"


@pytest.mark.parametrize(
    ("said", "address"),
    [
        (9464, ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_addresses(said: str | int, address: tuple[str, int]) -> None:
    assert address_in(said) == address


@pytest.mark.parametrize("said", ["here", "here:there", "70000", -1, ""])
def test_what_is_no_address_is_refused(said: str | int) -> None:
    with pytest.raises(InvalidUsage, match="nothing was started"):
        Delivery(catalog="sqlite:x.db", kafka="here:1", metrics=said)


def test_a_process_serves_its_runs_and_its_catalog(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(house.broker)
    monkeypatch.setattr("delivery.watch.serving.open_client", lambda *_: cluster)
    pipeline = Delivery(catalog=house.store.url, kafka="here:1", metrics=0)
    serving = pipeline.metrics
    assert serving is not None
    assert serving.url is None
    serving.begin(pipeline.plan)
    numbers = {"fresh": 3, "duplicate": 1, "seals": 2, "lost": 1, "bytes_read": 99, "tasks": 2}
    numbers |= {"probes": 50, "positives": 7, "false_positives": 4, "saturated": 2}
    serving.follow(Run("billing", lambda: True, lambda: numbers))
    serving.follow(Run("new", lambda: False, lambda: None))
    try:
        assert serving.url is not None
        found = parsed(fetched(serving.url))
    finally:
        serving.close()
        serving.close()
    assert found['delivery_run_active{run="billing"}'] == 1
    assert found['delivery_run_active{run="new"}'] == 0
    assert found['delivery_run_records_total{run="billing",verdict="fresh"}'] == 3
    assert found['delivery_run_tasks{run="billing"}'] == 2
    assert found['delivery_run_filter_probes_total{run="billing"}'] == 50
    assert found['delivery_run_filter_positives_total{run="billing"}'] == 7
    assert found['delivery_run_filter_false_positives_total{run="billing"}'] == 4
    assert found['delivery_run_filter_saturations_total{run="billing"}'] == 2
    assert 'delivery_run_seals_total{run="new"}' not in found
    assert found[price("delivery_lane_seals_total", lane=LANE)] == 6
    assert found['delivery_up{of="kafka"}'] == 1
    assert serving.url is None


def test_a_pipeline_can_be_sent_to_executors_while_it_serves(house: House) -> None:
    pipeline = Delivery(catalog=house.store.url, kafka="here:1", metrics=0)
    assert pipeline.metrics is not None
    pipeline.metrics.begin(pipeline.plan)
    try:
        there = deepcopy(pipeline)
    finally:
        pipeline.metrics.close()
    assert there.plan == pipeline.plan
    assert isinstance(there.metrics, Serving)
    assert there.metrics.url is None


# The verb -----------------------------------------------------------------------------------------


def test_the_verb_prints_them_once(house: House) -> None:
    text = called("metrics", house.store.url, "--kafka", "here:1", "--once").stdout
    found = parsed(text)
    assert found[price("delivery_stage_lanes")] == 1
    told = document("metrics", house.store.url, "--kafka", "here:1", "--once")
    assert set(told["metrics"]) <= set(METRICS)
    assert told["metrics"]["delivery_stage_lanes"][0] == {
        "labels": {"pipeline": "shop", "stage": "price"},
        "value": 1,
    }
    assert undocumented("metrics", told) == set()
    called("metrics", "sqlite:nothing.db", "--once", code=2)


def test_the_verb_serves_until_it_is_interrupted(house: House) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "delivery.cli", "metrics", house.store.url, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert serving.stdout is not None
        said = json.loads(serving.stdout.readline())
        assert undocumented("metrics", said) == set()
        assert parsed(fetched(said["url"]))['delivery_up{of="catalog"}'] == 1
        serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 0
    finally:
        serving.kill()
        serving.communicate()
