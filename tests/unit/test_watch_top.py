"""`delivery top` shows what was sealed between two looks, and fits; documents are as documented."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery.cli.top import fitted
from delivery.watch.lag import Holdup
from delivery.watch.rates import Rates, Screen, StageRate
from tests.unit.documented import undocumented
from tests.unit.house import House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import Cluster, shop

#: How long a terminal may take to show something.
SHOW_SECONDS_MAX = 30.0


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def test_rates_are_differences_of_two_looks(house: House) -> None:
    rates = Rates(house.catalog(), Cluster(house.broker))
    first = rates.look(house.now)
    assert first.seconds is None
    assert {one.records_a_second for one in first.stages} == {None}
    house.write("new", "newer", "newest", "r0-0")
    house.done()
    second = rates.look(house.now)
    price, ship = second.stages
    assert second.seconds is not None
    assert price.records_a_second == pytest.approx(4 / second.seconds)
    assert price.outputs_a_second == pytest.approx(3 / second.seconds)
    assert (price.seals_a_second or 0) * second.seconds == pytest.approx(1)
    assert (price.repeats, price.state) == (0.25, "exact")
    assert (ship.records_a_second, ship.repeats, ship.behind) == (0, None, 3)
    third = rates.look(house.now)
    assert third.stages[0].records_a_second == 0


def rate(name: str, late_ms: int) -> StageRate:
    return StageRate(
        pipeline="shop",
        stage=name,
        state="exact",
        behind=1,
        pending=0,
        late_ms=late_ms,
        sealed_ms=None,
        records_a_second=1_234.5,
        outputs_a_second=None,
        seals_a_second=0.5,
        repeats=0.125,
    )


def screen(count: int) -> Screen:
    stages = tuple(rate(f"stage{at}", at * 1_000) for at in range(count))
    return Screen(at_ms=0, seconds=2.0, stages=stages, holdup=None)


def test_a_wide_terminal_shows_all_stages_in_the_order_of_the_flow() -> None:
    lines = fitted(screen(3), "sqlite:shop.db", 120, 24)
    assert [line.split()[0] for line in lines[2:5]] == [f"shop/stage{at}" for at in range(3)]
    assert lines[2].split()[1:] == ["1,234", "-", "0.5", "12.5%", "1", "0", "PROTECTED"]
    assert lines[-1] == "nothing holds things up"


def test_a_low_terminal_shows_those_that_wait_longest() -> None:
    lines = fitted(screen(20), "sqlite:shop.db", 120, 10)
    assert len(lines) <= 10
    assert lines[2].startswith("shop/stage19")
    assert any(re.fullmatch(r"and 1\d more; make the window larger", line) for line in lines)


def test_a_narrow_terminal_has_a_block_for_each_stage() -> None:
    late = Holdup(
        pipeline="shop", stage="stage1", late_ms=400_000, why="records (4,400) wait", advice=""
    )
    lines = fitted(replace(screen(2), holdup=late), "sqlite:shop.db", 30, 40)
    assert "shop/stage0" in lines
    assert "  records/s  1,234" in lines
    assert all(len(line) <= 30 for line in lines)
    assert [line.strip() for line in lines[:2]] == [
        "sqlite:shop.db  1970-01-01",
        "00:00:00.000 UTC",
    ]
    said = " ".join(line.strip() for line in lines[-3:])
    assert said == "shop/stage1 holds things up, by 6 min: records (4,400) wait"
    low = fitted(replace(screen(2), holdup=late), "sqlite:shop.db", 30, 6)
    assert low[-3:] == lines[-3:]
    assert len(low) == 6


def test_without_a_terminal_it_prints_table_after_table(house: House) -> None:
    said = called(
        "top", house.store.url, "--kafka", "here:1", "--times", "2", "--every", "10ms"
    ).stdout
    assert said.count("nothing holds things up") == 2
    assert "\x1b" not in said


def looks(house: House, *more: str) -> list[dict[str, Any]]:
    said = called("top", house.store.url, *more, "--every", "10ms", "--json").stdout
    return [json.loads(line) for line in said.splitlines()]


def test_with_json_it_prints_a_document_a_line(house: House) -> None:
    first, second = looks(house, "--kafka", "here:1", "--times", "2")
    assert (first["seconds"], first["stages"][0]["seals_a_second"]) == (None, None)
    assert (second["stages"][0]["seals_a_second"], second["stages"][0]["state"]) == (0, "exact")


def shown(terminal: int, wanted: str) -> str:
    """Read a terminal until it has shown something."""
    seen = ""
    deadline = time.monotonic() + SHOW_SECONDS_MAX
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


def test_in_a_terminal_it_draws_over_itself_until_it_is_interrupted(house: House) -> None:
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "delivery.cli", "top", house.store.url, "--every", "50ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100", "LINES": "20"},
    )
    try:
        assert "shop/price" in shown(ours, "\x1b[2J") + shown(ours, "\x1b[J")
        again = shown(ours, "\x1b[J")
        assert again.count("\x1b[2J") == 0
        running.send_signal(signal.SIGINT)
        assert running.wait(SHOW_SECONDS_MAX) == 0
    finally:
        running.kill()
        running.wait()
        os.close(ours)
        os.close(theirs)


# Documents ----------------------------------------------------------------------------------------


def test_every_key_is_documented(house: House, tmp_path: Path) -> None:
    house.write("late", timestamp_ms=1)
    asked = (house.store.url, "--kafka", "here:1")
    found = document("lag", *asked)
    assert found["holdup"] is not None
    assert undocumented("lag", found) == set()
    assert undocumented("top", looks(house, *asked[1:], "--times", "1"), "lag") == set()
    house.broker.create("in")
    assert undocumented("guarantee", document("guarantee", *asked, code=1)) == set()
    file = str(tmp_path / "r.html")
    assert undocumented("report", document("report", *asked, "-o", file)) == set()
    assert undocumented("advice", document("advice", *asked)) == set()
