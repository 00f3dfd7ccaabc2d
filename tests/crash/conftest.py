"""Takes down what the deep tests saw, for docs/proof.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.proof import MEASURED

#: Takes down one fact: a kind ("world", "mutant") and its figures.
TakeDown = Callable[..., None]


@pytest.fixture
def take_down(request: pytest.FixtureRequest) -> TakeDown:
    """Return a function that appends one line to the record of this run."""
    began = time.monotonic()

    def append(**figures: object) -> None:
        MEASURED.parent.mkdir(exist_ok=True)
        seconds = round(time.monotonic() - began, 1)
        line = json.dumps({**figures, "seconds": seconds, "test": request.node.nodeid})
        with Path(MEASURED).open("a") as record:
            record.write(line + "\n")

    return append


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin a new record when the slow tests are asked for."""
    if session.config.option.markexpr == "slow":
        MEASURED.unlink(missing_ok=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take down the other slow tests by their outcome: those that kill real processes."""
    slow = "slow" in report.keywords and report.when == "call"
    if slow and "tests/crash" not in report.nodeid:
        MEASURED.parent.mkdir(exist_ok=True)
        with MEASURED.open("a") as record:
            seconds = round(report.duration, 1)
            figures = {"kind": "killed", "test": report.nodeid, "outcome": report.outcome}
            record.write(json.dumps({**figures, "seconds": seconds}) + "\n")
