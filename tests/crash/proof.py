"""docs/proof.md: what the last `make crash` proved, with date, machine and versions.

What it is: a page made from the record that the slow tests leave; `python -m tests.crash` writes it at its end.
What it must not know: how anything is proved.

Invariants:
    Every number on the page was written down by a test that passed.
    Of worlds and mutants nothing is missing on it: each with the number of states that is pinned. Of
    the other tests it says how many were asked for, and names those that ran.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MEASURED = ROOT / ".cache" / "proof.jsonl"
PAGE = ROOT / "docs" / "proof.md"
NAMED = ("pyarrow", "xxhash", "kafka-python", "cassandra-driver")


def take_note(**figures: Any) -> None:
    """Write down one fact; `make crash` begins a new record."""
    MEASURED.parent.mkdir(exist_ok=True)
    figures["seconds"] = round(figures["seconds"], 1)
    with MEASURED.open("a") as record:
        record.write(json.dumps(figures) + "\n")


def page(record: list[dict[str, Any]], today: dt.date) -> str:
    """Return the page for a record."""
    # Of several runs of a test the last one counts.
    last = {(entry["kind"], entry["test"]): entry for entry in record if "test" in entry}.values()
    worlds, mutants, filters, killed = (
        [entry for entry in last if entry["kind"] == kind]
        for kind in ("world", "mutant", "filter", "killed")
    )
    own = {entry["test"] for entry in (*worlds, *mutants, *filters)}
    killed = [entry for entry in killed if entry["test"] not in own]
    made = (
        f"Made on {today.isoformat()} from what the tests of `make crash` wrote down: "
        f"{os.cpu_count()} cores, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )
    searched = (
        "The search is exhaustive and has no seed: each reachable state once, and no plan breaks the "
        "promise. The numbers of states are pinned in `tests/crash/worlds.py`."
    )
    sabotaged = (
        f"{len(mutants)} sabotages, each of one rule; for each the explorer found a plan anew that "
        "breaks the promise. The plans are kept in `tests/crash/plans.txt`."
    )
    others = (
        "Real processes, killed on every store and under Spark, put to sleep and woken; filters and "
        "runs under as many ids as a month has."
    )
    packages = ", ".join(f"{name} {version(name)}" for name in NAMED)
    lines = [
        "# What was proved, and when",
        "",
        f"{made}, {packages}.",
        "What is explored, and how to replay a plan, is in [protocol.md](protocol.md).",
        *_ended(record),
        "",
        "## Every plan of every world",
        "",
        searched,
        "",
        "| world | states | ways it can end | seconds |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {entry['name']} | {entry['states']:,} | {entry['ends']:,} | {entry['seconds']} |"
            for entry in sorted(worlds, key=lambda entry: str(entry["name"]))
        ),
        "",
        "## Every rule is needed",
        "",
        sabotaged,
        "",
        *_denied(filters),
        "## What else takes long",
        "",
        others,
        "",
        "| test | seconds |",
        "| --- | ---: |",
        *(
            f"| `{entry['test']}` | {entry['seconds']} |"
            for entry in sorted(killed, key=lambda entry: str(entry["test"]))
        ),
        "",
    ]
    return "\n".join(lines)


def _ended(record: list[dict[str, Any]]) -> list[str]:
    """Say so if not all tests have run, in one run or several."""
    asked = {test for entry in record if entry["kind"] == "asked" for test in entry["tests"]}
    ran = {entry["test"] for entry in record if entry["kind"] == "killed"}
    if asked <= ran:
        return []
    share = f"Of {len(asked | ran)} slow tests {len(ran)}"
    return [f"{share} are on record, all passed; the others have not run to their end."]


def _denied(filters: list[dict[str, Any]]) -> list[str]:
    """Return the part of the page about filters."""
    asked = (
        "A filter file filled to its capacity through several writers, and asked for every id by "
        "other processes: it denies none. Of strangers it lets through the share that stands there."
    )
    return [
        "## No id is ever denied",
        "",
        asked,
        "",
        "| filter | ids | denied | strangers asked for | let through | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {entry['engine']}{', with a key' * entry['keyed']} | {entry['ids']:,} | 0 | "
            f"{entry['strangers']:,} | {entry['hits'] / entry['strangers']:.3%} | {entry['seconds']} |"
            for entry in sorted(filters, key=lambda entry: (entry["engine"], entry["keyed"]))
        ),
        "",
    ]


def lacking(text: str) -> list[str]:
    """Return which worlds and how many mutants a page does not tell of as they are now."""
    from tests.crash.mutants import MUTANTS  # noqa: PLC0415 - every run of pytest loads this module
    from tests.crash.worlds import WORLDS  # noqa: PLC0415 - see above

    # The table of filters looks the same.
    explored = text.partition("## Every plan of every world")[2].partition("\n## ")[0]
    rows = {
        name: int(states.replace(",", ""))
        for name, states in re.findall(r"^\| ([a-z-]+) \| ([\d,]+) \|", explored, re.MULTILINE)
    }
    lacks = [
        f"world {name}: {rows.get(name, 'no')} states instead of {pinned.states}"
        for name, pinned in WORLDS.items()
        if rows.get(name) != pinned.states
    ]
    lacks += [f"world {name} is no more" for name in rows if name not in WORLDS]
    told = re.search(r"^(\d+) sabotages", text, re.MULTILINE)
    if told is None or int(told[1]) != len(MUTANTS):
        lacks.append(f"{told[1] if told else 'no'} sabotages instead of {len(MUTANTS)}")
    return lacks


def main() -> None:
    """Write the page."""
    record = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    # Of several runs of a test the last one counts: what failed was mended, and ran again.
    last = {entry["test"]: entry["outcome"] for entry in record if "outcome" in entry}
    failed = [test for test, outcome in last.items() if outcome != "passed"]
    if failed:
        sys.exit(f"nothing was written: {', '.join(failed)} did not pass")
    written = page(record, dt.datetime.now(tz=dt.UTC).date())
    if lacking(written):
        sys.exit(f"nothing was written, because it lacks: {'; '.join(lacking(written))}")
    PAGE.write_text(written)
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(record)} facts\n")


if __name__ == "__main__":
    main()
