"""What a run of benchmarks says: Markdown tables for people, JSON for scripts and for comparing.

What it is: texts and plain values made from outcomes, and a description of the machine.
What it must not know: how anything was measured.

Invariants:
    The JSON holds every figure, the table those that fit a line.
    Nothing names the machine or a path of it.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from bench.harness import Outcome, Standing, Verdict

#: Version of the JSON.
VERSION = 2
#: Packages whose version says something about speed.
PACKAGES = ("cassandra-driver", "confluent-kafka", "kafka-python", "numpy", "pyarrow", "pyspark")

_HEADINGS = (
    *("", "median ms", "p99 ms", "{unit}/s", "time / baseline", "CPU ms/{unit}"),
    *("memory MB (growth)", "written MB"),
)


def machine(program: str = "python -m bench") -> dict[str, Any]:
    """Say what the figures were measured on, and how busy it was when this was called."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(psutil.Process().cpu_affinity()) if _affine() else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": installed,
        "load": [round(load, 1) for load in os.getloadavg()],
        "command": " ".join([program, *sys.argv[1:]]),
    }


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return every figure of a benchmark as plain values."""
    benchmark = outcome.benchmark
    return {
        "benchmark": benchmark.name,
        "says": benchmark.says,
        "unit": benchmark.unit,
        "baseline": benchmark.baseline,
        "contestants": {
            name: asdict(standing) | {"facts": dict(standing.facts)}
            for name, standing in outcome.standings.items()
        },
        "seconds": outcome.seconds,
        "derived": dict(outcome.derived),
        "goals": [
            {
                "says": verdict.goal.says,
                "value": verdict.value,
                "limit": verdict.limit,
                "better": "less" if verdict.goal.at_most is not None else "more",
                "unit": verdict.goal.unit,
                "met": verdict.met,
                "by": verdict.by,
            }
            for verdict in outcome.verdicts
        ],
    }


def as_table(outcome: Outcome) -> str:
    """Return the figures of a benchmark as Markdown that also reads well in a terminal."""
    benchmark = outcome.benchmark
    lines = [f"### {benchmark.name}", "", f"{benchmark.says} ({outcome.seconds / 60:.1f} min)", ""]
    rows = [[heading.format(unit=benchmark.unit) for heading in _HEADINGS]]
    for name, standing in outcome.standings.items():
        rows.append(_row(name, standing, baseline=name == benchmark.baseline))
    lines += _aligned(rows)
    facts = [
        f"{name}: " + ", ".join(f"{key} {number(value)}" for key, value in standing.facts.items())
        for name, standing in outcome.standings.items()
        if standing.facts
    ]
    lines += [f"\n- {fact}" if at == 0 else f"- {fact}" for at, fact in enumerate(facts)]
    if benchmark.derived is not None:
        told = ", ".join(f"{key} {number(value)}" for key, value in outcome.derived.items())
        lines += ["", f"{benchmark.derived[0]}: {told}"]
    if outcome.verdicts:
        lines += [
            "",
            *_aligned([["goal", "figure", "limit", ""], *map(_verdict, outcome.verdicts)]),
        ]
    return "\n".join([*lines, ""])


def number(value: float) -> str:
    """Return a figure with three digits that mean something, without an exponent."""
    size = abs(value)
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if size >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


def _row(name: str, standing: Standing, *, baseline: bool) -> list[str]:
    ratio = f"{number(standing.ratio)} ({standing.ratio_low:.2f}-{standing.ratio_high:.2f})"
    return [
        name,
        number(standing.median_ms),
        number(standing.tail_ms),
        number(standing.rate),
        "1" if baseline else ratio,
        number(standing.cpu_ms),
        f"{number(standing.memory_mb)} ({number(standing.growth_mb)})",
        number(standing.written_mb),
    ]


def _verdict(verdict: Verdict) -> list[str]:
    goal = verdict.goal
    sign = "≤" if goal.at_most is not None else "≥"
    return [
        goal.says,
        f"{number(verdict.value)} {goal.unit}".strip(),
        f"{sign} {number(verdict.limit)} {goal.unit}".strip(),
        f"{'met' if verdict.met else '**missed**'} by {verdict.by:.0%}",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [lines[0], "| " + " | ".join("-" * max(width, 3) for width in widths) + " |", *lines[1:]]


def _affine() -> bool:
    return hasattr(psutil.Process, "cpu_affinity")
