"""What `Delivery.start(engine="resident")` returns.

What it is: `ResidentQuery`, which looks like a StreamingQuery.
What it must not know: how tasks are kept running.

Invariants:
    `stop` may be called by anybody, any number of times, also from a signal handler's thread.
    A progress is a plain dict; rates are differences of two of them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from delivery.host.progress import Progress
from delivery.host.spec import Plan
from delivery.query import Others, interruptible
from delivery.resident.caught_up import wait_until_delivered
from delivery.resident.line import Line, Pace, ended
from delivery.resident.options import CANCEL_SECONDS, RECENT_MAX, Options
from delivery.resident.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["ResidentQuery"]


class ResidentQuery:
    """A pipeline that runs in resident tasks.

    Args:
        plan, spark, options: what runs, where and how.
        partitions: of the topic each stage reads, by the stage's name.
    """

    def __init__(
        self, plan: Plan, spark: SparkSession, options: Options, partitions: Mapping[str, int]
    ) -> None:
        self.id = str(uuid.uuid5(uuid.NAMESPACE_URL, "".join(s.prefix for s in plan.stages)))
        self.runId = str(uuid.uuid4())
        self.name = str(options.name)
        self._plan = plan
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._turn = threading.Lock()
        self._counted: tuple[float, Progress] = (time.monotonic(), Progress())
        self._line = Line(self.name, wanted=options.live)
        self._pace = Pace()
        self._others = Others(self.name)
        self._drain_seconds = options.drain_seconds
        self._supervisor = Supervisor(plan, spark, options, partitions, self._progressed)
        self._supervisor.start()

    # As Spark's -------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:  # noqa: N802 - as PySpark spells it
        """Whether it runs."""
        return not self._supervisor.ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing just now, in words and numbers."""
        control = self._supervisor.control
        lags = [lane.lag for lane in control.progress().lanes]
        return {
            "message": self._supervisor.message,
            "isDataAvailable": any(lag is None or lag > 0 for lag in lags),
            "isTriggerActive": self.isActive and control.running > 0,
            "tasks": self._supervisor.tasks,
            "running": control.running,
            "waitingFor": control.troubles,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - as PySpark spells it
        """The latest progress, or None before the first."""
        with self._turn:
            return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - as PySpark spells it
        """The latest progresses, oldest first; at most `RECENT_MAX`."""
        with self._turn:
            return list(self._recent)

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - as PySpark's
        """Wait until it has ended; True if it has.

        Raises:
            Exception: what it failed with.
        """
        with interruptible(self.name, self.stop):
            ended = self._supervisor.ended.wait(timeout)
        if ended and self._supervisor.failure is not None:
            raise self._supervisor.failure
        return ended

    def exception(self) -> BaseException | None:
        """Return what it failed with, or None."""
        return self._supervisor.failure if self._supervisor.ended.is_set() else None

    def stop(self) -> None:
        """End it: finish what is under way, deliver what is sealed, and return."""
        self._supervisor.stop()
        # Bounded: to finish, to be cancelled, and a little for the threads in between.
        self._supervisor.ended.wait(self._drain_seconds + 2 * CANCEL_SECONDS)

    def processAllAvailable(self) -> None:  # noqa: N802 - as PySpark spells it
        """Wait until everything that is in the input topics now is delivered, through all stages.

        Raises:
            Exception: what the query failed with.
        """
        with interruptible(self.name, self.stop):
            wait_until_delivered(self._plan, self._still_running)

    def _still_running(self) -> None:
        """Raise what it failed with; raise if it was stopped."""
        if self._supervisor.ended.is_set():
            self.awaitTermination(0)
            raise StoppedError(f"pipeline {self.name} was stopped before everything was delivered")

    # Progress ---------------------------------------------------------------------------------

    def _progressed(self) -> None:
        progress = self._supervisor.control.progress()
        now = time.monotonic()
        self._others.look(progress.counters["lost"])
        before, had = self._counted
        self._counted = (now, progress)
        seconds = max(now - before, 1e-3)
        rows = progress.counters["read"] - had.counters.get("read", 0)
        document = {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "timestamp": datetime.now(UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "durationMs": {"sinceLast": round(seconds * 1000)},
            "numInputRows": rows,
            "inputRowsPerSecond": rows / seconds,
            "processedRowsPerSecond": rows / seconds,
            "tasks": self._supervisor.control.running,
            "message": self._supervisor.message,
            **_document(progress, self._supervisor.lanes),
        }
        with self._turn:
            self._recent.append(document)
        over = self._supervisor.over
        rate = self._pace.of(progress.counters["read"], whole=over)
        self._line.show(document | {"processedRowsPerSecond": rate}, last=over)
        if over:
            self._line.say(ended(progress.counters), live=True)


class StoppedError(Exception):
    """A query was stopped while somebody waited for it to deliver everything."""


def _document(progress: Progress, lanes: int) -> dict[str, Any]:
    """Return lanes and numbers as plain data; what is unknown of one lane is unknown of all."""
    lags = [lane.lag for lane in progress.lanes]
    known = [lag for lag in lags if lag is not None]
    document = progress.document()
    for lane, lag in zip(document["lanes"], lags, strict=True):
        lane["lag"] = lag
    return document | {"lag": sum(known) if len(known) == lanes else None}
