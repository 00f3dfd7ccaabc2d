"""The pytest plugin: the fixture `delivery_run` and the option `--delivery-plan`.

What it is: `run` with failures that say how pytest replays them.
What it must not know: what a plan is.

Invariants:
    pytest loads it in every project it is installed in: importing it brings in nothing that is not
    there already, and without the option it changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from delivery.testing.trials import RunResult

OPTION = "--delivery-plan"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take a plan."""
    parser.getgroup("delivery", "exactly-once delivery").addoption(
        OPTION,
        metavar="LINE",
        help='let `delivery_run(..., crash="everywhere")` replay the one plan that a failure printed',
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that one plan stands for all."""
    line = config.getoption(OPTION)
    return f'delivery: crash="everywhere" is only the plan {line}' if line else None


@pytest.fixture
def delivery_run(request: pytest.FixtureRequest) -> Callable[..., RunResult]:
    """`delivery.testing.run`, whose failures name the pytest command that replays them."""
    from delivery.testing.trials import (  # noqa: PLC0415 - paid for by those who use it
        EVERYWHERE,
        PlanFailed,
        StoppedInPlanError,
        run,
    )

    line = request.config.getoption(OPTION)

    def delivery_run(
        stage: Any, records: Any, crash: str | None = None, **options: Any
    ) -> RunResult:
        if line and crash == EVERYWHERE:
            crash = line
        try:
            return run(stage, records, crash, **options)
        except (PlanFailed, StoppedInPlanError) as failure:
            if failure.plan and not line:
                test, plan = shlex.quote(request.node.nodeid), shlex.quote(failure.plan)
                failure.add_note(f"Or with: pytest {test} {OPTION} {plan}")
            raise

    return delivery_run
