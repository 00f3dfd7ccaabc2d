"""Metrics of a process of the user's own: what it runs, and the catalog that it runs on.

What it is: `Serving`, what `Delivery(metrics=...)` begins.
What it must not know: engines; whoever runs something says how to ask for its progress.

Invariants:
    Until `begin` nothing listens and nothing is opened.
    Whoever asks often costs as much as whoever asks once a second.
    Metrics never stop a job: but for an address that cannot be listened on, which is said at once,
    nothing of them is raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dedup.catalog.open import open_catalog
from delivery.host.spec import Plan
from delivery.kafka.opening import open_client
from delivery.watch.collector import Collector
from delivery.watch.endpoint import Endpoint, address_in
from delivery.watch.exposition import Samples
from delivery.watch.tally import VERDICTS

if TYPE_CHECKING:
    from delivery.query import Query

__all__ = ["Run", "Serving", "collector_of"]

#: Whoever asks again sooner is told the same: several scrapers cost as much as one.
AGAIN_SECONDS = 1.0
#: Runs that are shown, the newest: a process that starts one after the other has no end of them.
RUNS_MAX = 16


@dataclass(frozen=True, slots=True)
class Run:
    """Something that this process runs: its name, and how to ask how it is."""

    name: str
    active: Callable[[], bool]
    #: The numbers of `delivery.host.counters.Counters`, and `tasks`; None: not known yet.
    counters: Callable[[], Mapping[str, int] | None]


class Serving:
    """Metrics of this process.

    Args:
        address: "host:port", or a port that this machine alone can reach.

    Raises:
        InvalidUsage: the address is none.
    """

    def __init__(self, address: str | int) -> None:
        self._address = address_in(address)
        self._turn = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._collector: Collector | None = None
        self._runs: list[Run] = []
        self._told: tuple[float, str] | None = None

    def __getstate__(self) -> tuple[str, int]:
        """A function that is sent to executors may mention its pipeline; metrics stay here."""
        return self._address

    def __setstate__(self, address: tuple[str, int]) -> None:
        self.__init__(f"{address[0]}:{address[1]}")  # type: ignore[misc]  # made anew, not begun

    @property
    def url(self) -> str | None:
        """What Prometheus is told; None: nothing listens."""
        return None if self._endpoint is None else self._endpoint.url

    def begin(self, plan: Plan) -> None:
        """Listen, if nothing listens yet.

        Raises:
            InvalidUsage: the address cannot be listened on.
        """
        with self._turn:
            if self._endpoint is None:
                # A memory catalog is its process's own, and another look would open another one.
                own = plan.catalog.startswith("memory:")
                self._collector = None if own else collector_of(plan)
                self._endpoint = Endpoint(self._address, self._text)

    def follow(self, run: Run) -> None:
        """Show a run, in place of an earlier one of its name."""
        with self._turn:
            others = [one for one in self._runs if one.name != run.name]
            self._runs = [*others, run][-RUNS_MAX:]

    def follow_query(self, name: str, query: Query) -> None:
        """Show a query."""

        def counters() -> Mapping[str, int] | None:
            progress = query.lastProgress
            if progress is None or "counters" not in progress:
                return None
            tasks = {"tasks": progress["tasks"]} if "tasks" in progress else {}
            return {**progress["counters"], **tasks}

        self.follow(Run(name, lambda: query.isActive, counters))

    def close(self) -> None:
        """Listen no more. May be called twice."""
        with self._turn:
            endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _text(self) -> str:
        now = time.monotonic()
        if self._told is None or now - self._told[0] >= AGAIN_SECONDS:
            found = Samples() if self._collector is None else self._collector.look()
            for run in self._runs:
                _add_run(found, run)
            self._told = (time.monotonic(), found.text())
        return self._told[1]


def collector_of(plan: Plan) -> Collector:
    """Return a collector for a pipeline's catalog and cluster."""
    return Collector(
        partial(open_catalog, plan.catalog, create=False),
        partial(open_client, plan.kafka, plan.options, plan.client),
        lambda: time.time_ns() // 1_000_000,
    )


def _add_run(found: Samples, run: Run) -> None:
    found.add("delivery_run_active", int(run.active()), run=run.name)
    counted = run.counters()
    if counted is None:
        return
    if "tasks" in counted:
        found.add("delivery_run_tasks", counted["tasks"], run=run.name)
    for verdict in VERDICTS:
        count = counted.get(verdict, 0)
        found.add("delivery_run_records_total", count, run=run.name, verdict=verdict)
    for name, key in (
        ("delivery_run_seals_total", "seals"),
        ("delivery_run_lost_races_total", "lost"),
        ("delivery_run_read_bytes_total", "bytes_read"),
        ("delivery_run_filter_probes_total", "probes"),
        ("delivery_run_filter_positives_total", "positives"),
        ("delivery_run_filter_false_positives_total", "false_positives"),
        ("delivery_run_filter_saturations_total", "saturated"),
    ):
        found.add(name, counted.get(key, 0), run=run.name)
