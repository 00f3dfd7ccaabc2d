"""A relative path is one of the driver's directory: executors each stand in one of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dedup.errors import InvalidUsage
from delivery.host.adapters import open_emitter
from delivery.host.spec import Plan, StageSpec, rooted
from delivery.microbatch import starting as microbatch
from delivery.resident import starting as resident
from delivery.resident.starting import placed
from delivery.wrap import source
from delivery.wrap.plans import Stream
from sinks.files import FilesEmitter

CATALOG = "cassandra://c:1/shop"


def plan(catalog: str = CATALOG, *, home: str | None = None, **stage: Any) -> Plan:
    spec = StageSpec(pipeline="shop", name="price", reads="in", call=len, **stage)
    return Plan(catalog=catalog, kafka="k:1", stages=(spec,), home=home)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "driver"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


def test_every_edge_to_files_is_one_of_the_drivers(driver: Path) -> None:
    given = plan(
        writes=("out", "files:out", "files:a/b?format=jsonl", CATALOG + "/t", "files:/there"),
        duplicates="files:again",
        dead_letters="files:bad?format=jsonl",
    )
    assert rooted(given).stages[0].topics == (
        "out",
        f"files:{driver}/out",
        f"files:{driver}/a/b?format=jsonl",
        CATALOG + "/t",
        "files:/there",
        f"files:{driver}/again",
        f"files:{driver}/bad?format=jsonl",
    )
    assert rooted(rooted(given)) == rooted(given)


def test_an_executor_writes_where_the_driver_said(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unasked: Any = None  # with this catalog the session has nothing to say
    given = placed(plan(writes=("files:out?format=jsonl",)), unasked)
    (tmp_path / "executor").mkdir()
    monkeypatch.chdir(tmp_path / "executor")
    no_kafka: Any = None
    assert isinstance(open_emitter(no_kafka, given.stages[0]), FilesEmitter)
    assert (driver / "out").is_dir()
    assert not list(Path().iterdir())


def test_what_is_malformed_or_left_out_stays_so() -> None:
    given = plan(writes=("files:", "files:?format=jsonl"))
    assert rooted(given) == given


def test_a_catalog_and_a_home_are_the_drivers(driver: Path) -> None:
    found = rooted(plan("sqlite:shop.db", home="idx"))
    assert (found.catalog, found.home) == (f"sqlite:{driver}/shop.db", f"{driver}/idx")


def test_a_home_that_nobody_shares_is_not_the_working_directory() -> None:
    assert rooted(plan("sqlite:/shop.db", home="")).home == ""
    without = plan("sqlite:/shop.db")
    assert rooted(without) == replace(without, home=None)


def wrapped(plan: Plan, spark: Any) -> None:
    source.wrap_source(plan, {}, SimpleNamespace(_spark=spark), plan.stages[0])


@pytest.mark.parametrize(
    "begin", [resident.start, microbatch.start, wrapped], ids=["resident", "micro-batch", "wrapped"]
)
@pytest.mark.parametrize("master", ["yarn", "spark://somewhere:7077"])
def test_a_catalog_in_a_file_is_refused_where_executors_have_files_of_their_own(
    begin: Callable[[Plan, Any], object],
    master: str,
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream("kafka", {"subscribe": "in"})
    monkeypatch.setattr(source, "_stream", lambda _reader, _plan: stream)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    with pytest.raises(
        InvalidUsage, match=f"sqlite:shop.db on {master}: SQLite serves one machine"
    ):
        begin(plan("sqlite:shop.db"), spark)
    assert not list(driver.iterdir()), "nothing was opened"
