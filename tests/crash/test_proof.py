"""docs/proof.md is written whole or not at all."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tests.crash import proof
from tests.crash.mutants import MUTANTS
from tests.crash.worlds import WORLDS

WORLD = "tests/crash/test_worlds.py::test_no_deep_plan_breaks_the_promise[{}]"


@pytest.fixture
def record() -> list[dict[str, Any]]:
    """What a run of all slow tests writes down."""
    found = []
    for name, pinned in WORLDS.items():
        test = WORLD.format(name)
        figures = {"states": pinned.states, "ends": 3, "seconds": 1.5, "test": test}
        found.append({"kind": "world", "name": name, **figures})
        found.append({"kind": "killed", "outcome": "passed", "seconds": 2.0, "test": test})
    found += [
        {"kind": "mutant", "name": one.name, "seconds": 0.1, "test": f"anew[{one.name}]"}
        for one in MUTANTS
    ]
    found.append({"kind": "killed", "outcome": "passed", "seconds": 9.5, "test": "tests/a.py::b"})
    asked = {"ids": 100, "strangers": 1_000, "hits": 1, "seconds": 1.0, "test": "filters"}
    found.append({"kind": "filter", "engine": "blocked", "keyed": False, **asked})
    return found


def test_the_page_of_a_whole_record_lacks_nothing(record):
    page = proof.page(record, dt.date(2026, 1, 2))
    assert proof.lacking(page) == []
    # What has figures of its own is told once.
    assert "| `tests/a.py::b` | 9.5 |" in page
    assert "test_no_deep_plan" not in page
    # What ran twice is told once, as it was the last time.
    again = [*({"seconds": 7.5, **one, "states": 0} for one in record), *record]
    assert proof.page(again, dt.date(2026, 1, 2)) == page


def test_a_run_that_was_ended_early_says_so(record):
    ran = sorted({one["test"] for one in record if one["kind"] == "killed"})
    # Two runs at once, each of its half.
    halves = [{"kind": "asked", "tests": half} for half in (ran[::2], ran[1::2])]
    assert "on record" not in proof.page([*halves, *record], dt.date(2026, 1, 2))
    more = {"kind": "asked", "tests": ["tests/a.py::ended", *ran[:1]]}
    part = proof.page([*halves, more, *record], dt.date(2026, 1, 2))
    assert f"Of {len(ran) + 1} slow tests {len(ran)} are on record, all passed" in part


def test_the_page_that_is_kept_tells_of_every_world_and_mutant_there_is():
    assert proof.lacking(proof.PAGE.read_text()) == []


def test_a_world_or_a_mutant_that_is_missing_is_named(record):
    record[0]["states"] += 1
    left = [one for one in record if one.get("name") not in {"zombie", MUTANTS[-1].name}]
    page = proof.page(
        [*left, record[0] | {"name": "gone", "test": "anew[gone]"}], dt.date(2026, 1, 2)
    )
    assert proof.lacking(page) == [
        f"world solo: {record[0]['states']} states instead of {WORLDS['solo'].states}",
        f"world zombie: no states instead of {WORLDS['zombie'].states}",
        "world gone is no more",
        f"{len(MUTANTS) - 1} sabotages instead of {len(MUTANTS)}",
    ]


def test_nothing_is_written_of_a_run_that_failed_or_was_not_whole(
    record, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(proof, "MEASURED", tmp_path / "proof.jsonl")
    monkeypatch.setattr(proof, "PAGE", tmp_path / "proof.md")
    monkeypatch.setattr(proof, "ROOT", tmp_path)

    def written(lines: list[dict[str, Any]]) -> None:
        proof.MEASURED.write_text("".join(json.dumps(line) + "\n" for line in lines))
        proof.main()

    with pytest.raises(SystemExit, match="did not pass"):
        written([*record, {"kind": "killed", "outcome": "failed", "seconds": 1, "test": "t"}])
    again = {"kind": "killed", "outcome": "passed", "seconds": 1, "test": "t"}
    with pytest.raises(SystemExit, match="did not pass"):
        written([*record, again, again | {"outcome": "failed"}])
    with pytest.raises(SystemExit, match="world solo: no states"):
        written([one for one in record if one.get("name") != "solo"])
    assert not proof.PAGE.exists()
    written([*record, again | {"outcome": "failed"}, again])
    assert proof.lacking(proof.PAGE.read_text()) == []
