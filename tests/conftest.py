"""Holds every suite to its seconds, and runs the suites in order, the quick ones first.

What it is: the hook behind the table "Suite seconds" in CONTRIBUTING.md. A suite is a directory
under tests/, or `lint` or `types`, which leave their seconds in .cache/seconds (see .ci/section).
What it must not know: what any suite tests.

Invariants:
    Only a suite that ran whole is compared: a selection, a stop at the first failure or a
    forgotten marker says nothing about the table.
    Inside a suite the order stays random.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from dedup.compiled import kernels
from dedup.local.home import VARIABLE
from tests.crash.proof import take_note

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "CONTRIBUTING.md"
MEASURED = ROOT / ".cache" / "seconds"
#: The order in which a failure is cheapest to learn.
SUITES = ("tidy", "unit", "property", "conformance", "crash", "integration", "acceptance")
#: Suites that are commands rather than directories.
COMMANDS = ("lint", "types")
#: A suite may take this many times its entry, and some: machines differ, and two checkouts may be
#: testing at once. Beyond that the table is no longer true.
FACTOR_MAX = 3
GRACE_SECONDS = 10
#: What `make test` selects; anything else is not a whole run.
WHOLE = "not slow"


def table(text: str) -> dict[str, int]:
    """Read the table: suite -> seconds."""
    section = text.partition("## Suite seconds")[2].partition("\n## ")[0]
    return {m[1]: int(m[2]) for m in re.finditer(r"^\| `(\w+)` \| (\d+) \|", section, re.MULTILINE)}


def complaints(expected: Mapping[str, int], measured: Mapping[str, float]) -> list[str]:
    """Say which suites took longer than the table lets them."""
    return [
        f"suite {name} took {seconds:.0f} s, and the table says {expected.get(name, 0)}: "
        f"make it faster, or change its row"
        for name, seconds in sorted(measured.items())
        if seconds > FACTOR_MAX * expected.get(name, 0) + GRACE_SECONDS
    ]


def suite_of(nodeid: str) -> str:
    """Name the suite a test belongs to."""
    parts = nodeid.split("::", maxsplit=1)[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


class SuiteSeconds:
    """Measures the suites of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.collected: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.current = ""

    def whole(self) -> dict[str, float]:
        """Give the seconds of the suites of which every test ran."""
        option = self.config.option
        narrowed = option.keyword or option.markexpr != WHOLE or option.lf or option.deselect
        if narrowed or any("::" in a or a.endswith(".py") for a in self.config.args):
            return {}
        ran = {
            name: seconds
            for name, seconds in self.seconds.items()
            if name and self.finished[name] == self.collected[name]
        }
        asked = [Path(argument).resolve() for argument in self.config.args]
        ran = {n: s for n, s in ran.items() if any(in_(ROOT / "tests" / n, a) for a in asked)}
        for name in COMMANDS:
            if (MEASURED / name).exists():
                ran[name] = float((MEASURED / name).read_text())
        return ran

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the suites in order; the sort is stable, so the random order inside them stays."""
        order = {name: place for place, name in enumerate(SUITES)}
        items.sort(key=lambda item: order.get(suite_of(item.nodeid), len(order)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what should run."""
        self.collected = Counter(suite_of(item.nodeid) for item in session.items)
        if self.config.option.markexpr == "slow":
            asked = [item.nodeid for item in session.items]
            take_note(kind="asked", tests=asked, seconds=0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Print a heading where a suite begins."""
        suite = suite_of(nodeid)
        if suite != self.current:
            self.current = suite
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(f"== {suite}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and tear-down; servers count for the suite that starts them."""
        suite = suite_of(report.nodeid)
        self.seconds[suite] = self.seconds.get(suite, 0.0) + report.duration
        if report.when == "teardown":
            self.finished[suite] += 1
        if report.when == "call" and "slow" in report.keywords:
            # For docs/proof.md, where worlds and mutants stand with figures of their own.
            figures = {"kind": "killed", "outcome": report.outcome, "test": report.nodeid}
            take_note(**figures, seconds=report.duration)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run when a suite outgrew its entry."""
        if session.exitstatus == pytest.ExitCode.OK and self.outgrown():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was measured."""
        measured = self.whole()
        if measured:
            terminalreporter.section("suite seconds")
            for name, seconds in sorted(measured.items()):
                terminalreporter.write_line(f"{name:<12} {seconds:4.0f}")
        for complaint in self.outgrown():
            terminalreporter.write_line(f"{complaint} in {TABLE.name}", red=True)

    def outgrown(self) -> list[str]:
        """Compare with the table."""
        return complaints(table(TABLE.read_text()), self.whole())


def in_(path: Path, directory: Path) -> bool:
    """Tell whether a path is a directory or lies in it."""
    return path == directory or directory in path.parents


def pytest_configure(config: pytest.Config) -> None:
    """Measure this run."""
    config.pluginmanager.register(SuiteSeconds(config), "suite-seconds")


@pytest.fixture(scope="session")
def suite_table() -> dict[str, int]:
    """Give the table of CONTRIBUTING.md as it stands."""
    return table(TABLE.read_text())


@pytest.fixture(scope="session", autouse=True)
def home_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let processes keep indexes where this run's other files are, rather than in the host's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module", params=["compiled", "arrays"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a module's tests with the compiled library, and without it."""
    with kernels.without() if request.param == "arrays" else nullcontext():
        yield
