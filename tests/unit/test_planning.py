"""A plan tells what a pipeline will be and what would break its promise, and starts nothing."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib import request

import pytest

from dedup.catalog.store import Blob
from dedup.compact import compact
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.formats.segment import BUCKET_MS
from dedup.local import LaneIndex
from dedup.local.limits import LIMITS
from delivery import Delivery, Filters, Record
from delivery.operate.cautions import Caution, of_pipeline, of_stage
from delivery.operate.planning import Load, plan_of
from tests.unit.local_lanes import NAME, Lane
from tests.unit.operate_kit import called, document

LOAD = Load(per_second=1000.0, record_bytes=100, partitions=4)


def shop(**more: Any) -> Delivery:
    return Delivery(
        **{"catalog": "sqlite:shop.db", "kafka": "localhost:1", "home": "/var/x"} | more
    )


def price(record: Record) -> Record:
    return record


def quote(record: Record) -> Record:
    with request.urlopen("http://quotes") as answer:
        return record.replace(value={"quote": json.load(answer), "nonce": uuid.uuid4().hex})


def helped(record: Record) -> Record:
    return record.replace(value={"chance": rolled()})


def rolled() -> float:
    return random.random()


def named_by_chance(_record: Record) -> bytes:
    return uuid.uuid4().bytes


def named_now(record: Record) -> bytes:
    from datetime import UTC, datetime  # noqa: PLC0415  imported inside on purpose

    return f"{record.key!r} {datetime.now(UTC)}".encode()


def named_by_hash(record: Record) -> bytes:
    return str(hash(record.value)).encode()


def named_well(record: Record) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, str(record.value)).bytes


def cautions(d: Delivery) -> list[Caution]:
    made = {topic: spec for spec in d.stages for topic in spec.kafka_topics}
    return [one for spec in d.stages for one in of_stage(spec, made)]


def about(found: list[Caution], what: str) -> list[str]:
    return [one.text for one in found if one.about == what]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (named_by_chance, "uuid.uuid4"),
        (named_now, "datetime.now"),
        (named_by_hash, "the built-in hash"),
    ],
)
def test_ids_built_from_chance_or_clock_are_told(way: Any, said: str) -> None:
    d = shop()
    d.stage(reads="orders", writes="priced", id_from=way)(price)
    (text,) = [text for text in about(cautions(d), "id_from") if "BREAKS" in text]
    assert said in text


def test_ids_built_from_the_record_are_fine() -> None:
    d = shop()
    d.stage(reads="orders", writes="priced", id_from=named_well)(price)
    assert about(cautions(d), "id_from") == []


def test_chance_and_effects_in_a_stage_are_told_apart() -> None:
    d = shop()
    d.stage(reads="orders", writes="priced", id_from="key")(quote)
    d.stage(reads="priced", writes="end")(helped)
    found = cautions(d)
    assert "uuid.uuid4" in about(found, "chance")[0]
    assert "urllib.request.urlopen" in about(found, "effects")[0]
    assert "random.random" in about(found, "chance")[1]


def test_a_plain_stage_uses_nothing() -> None:
    d = shop()
    d.stage(reads="orders", writes="priced", id_from="key", dead_letters="bad")(price)
    assert cautions(d) == []


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"catalog": "memory:"}, "catalog"),
        ({}, "catalog"),
        ({"home": ""}, "home"),
    ],
)
def test_where_it_is_kept_is_told(more: dict[str, Any], what: str) -> None:
    assert what in {one.about for one in of_pipeline(shop(**more))}


def test_hosts_keep_indexes_unless_they_are_told_not_to() -> None:
    assert "home" not in {one.about for one in of_pipeline(shop(home=None))}
    (said,) = (one.text for one in of_pipeline(shop(home="")) if one.about == "home")
    assert "every one that starts makes them anew" in said


def test_options_that_break_the_promise_are_told() -> None:
    planned = plan_of(shop(options={"enable.idempotence": "false"}), LOAD)
    assert "enable.idempotence" in about(list(planned.warnings), "options")[0]


def test_what_stages_made_needs_no_name_and_no_window() -> None:
    d = shop()
    d.stage(reads="orders", writes="priced", dedup="topic", id_from="header:id")(price)
    d.stage(reads="priced", writes="end", id_from="key", name="ship")(price)
    rekeyed, priced, shipped = plan_of(d, LOAD).stages
    assert (rekeyed.reads, priced.reads) == ("orders", "main.price.by-id")
    assert shipped.named == "by the stages that made them"
    assert shipped.window_ids < rekeyed.window_ids == 86_400_000
    assert rekeyed.outputs_a_day == 1000 * 86_400 * 100 * 0.4
    assert rekeyed.kept == 0
    assert (
        about(cautions(d), "id_from")
        == ["what it reads is named by the stage that made it; id_from says nothing there"] * 1
    )


def test_a_round_that_records_may_go_for_ever_is_told() -> None:
    d = shop()
    d.stage(reads="orders", writes=("priced", "again"), id_from="key")(price)
    assert "loop" not in {one.about for one in of_pipeline(d)}
    d.stage(reads="again", writes="later", name="wait")(price)
    d.stage(reads="later", writes=("orders", "lost"), name="retry", dedup="topic")(price)
    (said,) = (one.text for one in of_pipeline(d) if one.about == "loop")
    assert said.startswith("price, wait, retry.by-id, retry read what is made of what they write")


def test_a_window_bounds_nothing_where_a_time_is_trusted() -> None:
    d = shop()
    given = {"reads": "orders", "id_from": "key", "window": "1m", "dead_letters": "bad"}
    d.stage(**given, name="timed", time_from="json:at")(price)
    d.stage(**given, name="plain")(price)
    d.stage(**given, name="stamped", time_from="timestamp")(price)
    d.stage(**given, name="keyed", dedup="topic", time_from="json:at")(price)
    d.stage(**given | {"reads": "made"}, name="inner", time_from="json:at")(price)
    d.stage(reads="orders", writes="made", name="maker", id_from="key")(price)
    found = cautions(d)
    assert [one.stage for one in found if one.about == "window"] == ["plain"]
    assert [one.stage for one in found if one.about == "time_from"] == ["stamped", "inner"]


@pytest.mark.parametrize("filters", [Filters(), Filters(engine="pybloom-live", rate=0.01)])
def test_what_ids_take_is_what_they_were_measured_to_take(filters: Filters) -> None:
    d = shop(filters=filters)
    d.stage(reads="orders", writes="priced", id_from="key")(price)
    d.stage(reads="orders", writes="b", name="loose", id_from="key", conflicts="ignore")(price)
    compared, loose = plan_of(d, LOAD).stages
    lane = Lane()
    for _ in range(40):
        lane.append([lane.fresh() for _ in range(2_500)], step_ms=BUCKET_MS // 10)
    limits = replace(LIMITS, first_ids=64)
    with LaneIndex(
        lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT, filters=filters, limits=limits
    ) as index:
        index.catch_up(lane.head)
        host = index.stats
    lane.collect()
    compact(lane.catalog, NAME, WINDOW_MS_DEFAULT, plain_min=4)
    slots = [(Blob.SEGMENT, slot) for slot in lane.store.slots(Blob.SEGMENT, NAME)]
    bytes_held = sum(len(chunk) for slot in slots for chunk in lane.store.get(*slot))
    ids = compared.window_ids
    assert bytes_held / 100_000 == pytest.approx(compared.ids_catalog / ids, rel=0.05)
    assert host.filter_bytes / 100_000 == pytest.approx(compared.filter_bytes / ids, rel=0.05)
    on_host = (host.run_bytes + host.filter_bytes) / 100_000
    assert on_host == pytest.approx(compared.ids_host / ids, rel=0.05)
    # A digest is two of the 20 bytes.
    assert loose.ids_catalog / compared.ids_catalog == pytest.approx(0.9)


def test_no_password_is_shown() -> None:
    d = shop(catalog="cassandra://me:secret@host:9042/shop")
    assert "secret" not in json.dumps(plan_of(d, LOAD).document())


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "shop.py"
    file.write_text(
        "from delivery import Delivery\n"
        "d = Delivery(catalog='sqlite:never.db', kafka='localhost:1')\n"
        "@d.stage(reads='orders', writes='priced')\n"
        "def price(record):\n"
        "    return record\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit('started')\n"
    )
    yield file
    assert not (tmp_path / "never.db").exists()


def test_a_file_is_planned_and_not_started(file: Path) -> None:
    found = document("plan", str(file), "--rate", "20000", "--partitions", "8")
    (stage,) = found["stages"]
    assert (stage["name"], stage["lanes"], stage["per_second"]) == ("price", 8, 20_000)
    assert {one["about"] for one in found["warnings"]} == {"catalog", "id_from", "failures"}
    assert "counts twice" in called("plan", str(file)).stdout
    called("plan", str(file.with_name("none.py")), code=2)


def test_a_mistyped_topic_between_stages_is_seen_before_the_start() -> None:
    mistyped, right = shop(), shop()
    for found, middle in ((mistyped, "orders.prized"), (right, "orders.priced")):
        found.stage(reads="orders", writes="orders.priced", name="price")(price)
        found.stage(reads=middle, writes="invoices", name="invoice")(price)
    (told,) = [one for one in of_pipeline(mistyped) if one.about == "input"]
    assert told.stage == "invoice"
    assert "orders.prized" in told.text
    assert "there is orders.priced" in told.text
    assert [one for one in of_pipeline(right) if one.about == "input"] == []


def test_an_input_from_outside_is_not_taken_for_mistyped() -> None:
    found = shop()
    found.stage(reads="orders", writes="orders.priced", name="price")(price)
    found.stage(reads="orders.raw", writes="orders.clean", name="clean")(price)
    assert [one for one in of_pipeline(found) if one.about == "input"] == []
