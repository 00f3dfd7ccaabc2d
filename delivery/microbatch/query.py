"""What `Delivery.start(engine="micro-batch")` returns.

What it is: `MicroBatchQuery`, which looks like a StreamingQuery over the queries of all stages.
What it must not know: how a batch is run.

Invariants:
    The first stage that fails ends the others, and its error is the query's.
    A bounded run takes the stages one after the other, each behind those that write what it reads.
    A progress is a plain dict, one for each batch of a stage, and one whenever a stage begins to wait.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from delivery.host.counters import Counters
from delivery.host.progress import LaneProgress, Progress
from delivery.host.spec import Plan, StageSpec
from delivery.microbatch.options import RECENT_MAX, Options
from delivery.microbatch.stream import News, StageStream, alone
from delivery.query import Others, interruptible
from delivery.resident.caught_up import downstream, wait_until_delivered
from delivery.resident.line import Beat, Line, ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["MicroBatchQuery", "StoppedError"]

LOG = logging.getLogger(__name__)


class StoppedError(Exception):
    """A query was stopped while somebody waited for it to deliver everything."""


class MicroBatchQuery:
    """A pipeline that runs as streaming queries, one a stage.

    Args:
        plan: what runs.
        spark: where.
        options: how.
    """

    def __init__(self, plan: Plan, spark: SparkSession, options: Options) -> None:
        from pyspark import InheritableThread  # noqa: PLC0415 - Spark is not needed before

        self.id = str(uuid.uuid5(uuid.NAMESPACE_URL, "".join(s.prefix for s in plan.stages)))
        self.runId = str(uuid.uuid4())
        self.name = str(options.name)
        self._plan = plan
        self._home = tempfile.mkdtemp(prefix="delivery-home-") if plan.home is None else None
        home = str(self._home) if plan.home is None else plan.home
        self._streams = [
            StageStream(alone(plan, spec, home), spark, options, self._told)
            for spec in downstream(plan.stages)
        ]
        self._turn = threading.Lock()
        self._others = Others(self.name)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._lanes: dict[str, LaneProgress] = {}
        self._counters = {spec.name: Counters() for spec in plan.stages}
        self._moments = dict.fromkeys(self._counters, time.monotonic())
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._line = Line(self.name, wanted=options.live)
        self._beat = Beat(self._line, self._seen)
        groups = [self._streams] if options.bounded else [[one] for one in self._streams]
        self._threads = [
            InheritableThread(target=self._run, args=(group,), name="delivery-stage", daemon=True)
            for group in groups
        ]
        self._running = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _run(self, streams: Sequence[StageStream]) -> None:
        """Run stages one after the other; whoever is last cleans up."""
        try:
            for stream in streams:
                stream.run()
        except Exception as error:  # noqa: BLE001 - it is told to whoever waits for the query
            self._failure = self._failure or error
            self._stop_streams()
        finally:
            with self._turn:
                self._running -= 1
                last = not self._running
            if last:
                if self._home is not None:
                    shutil.rmtree(self._home, ignore_errors=True)
                self._beat.end()
                self._line.say(ended(self._total().document()), live=True)
                self._ended.set()

    def _stop_streams(self) -> None:
        for stream in self._streams:
            stream.stop()

    # As Spark's -------------------------------------------------------------------------------

    @property
    def queries(self) -> list[StreamingQuery]:
        """Spark's own queries that run now: their ids are what a StreamingQueryListener sees."""
        return [stream.query for stream in self._streams if stream.query is not None]

    @property
    def isActive(self) -> bool:  # noqa: N802 - as PySpark spells it
        """Whether it runs."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing just now, in words and numbers."""
        with self._turn:
            lags = [lane.lag for lane in self._lanes.values()]
        return {
            "message": self._message,
            "isDataAvailable": any(lag is None or lag > 0 for lag in lags),
            "isTriggerActive": self.isActive and any(query.isActive for query in self.queries),
            "waitingFor": self._troubles,
        }

    @property
    def _troubles(self) -> list[str]:
        return [stream.trouble for stream in self._streams if stream.trouble and self.isActive]

    @property
    def _message(self) -> str:
        if not self.isActive:
            return "stopped" if self._failure is None else f"failed: {self._failure}"
        if troubles := self._troubles:
            return f"waiting: {troubles[0]}"
        return "; ".join(f"{stream.spec.name}: {stream.message}" for stream in self._streams)

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
            ended = self._ended.wait(timeout)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def exception(self) -> BaseException | None:
        """Return what it failed with, or None."""
        return self._failure if self._ended.is_set() else None

    def stop(self) -> None:
        """End it: let the batches under way come to their end, and return. May be called twice."""
        self._stop_streams()
        self._ended.wait()

    def processAllAvailable(self) -> None:  # noqa: N802 - as PySpark spells it
        """Wait until everything that is in the input topics now is delivered, through all stages.

        Raises:
            Exception: what the query failed with.
        """
        with interruptible(self.name, self.stop):
            wait_until_delivered(self._plan, self._still_running)

    def _still_running(self) -> None:
        if self._ended.is_set():
            self.awaitTermination(0)
            raise StoppedError(f"pipeline {self.name} ended before everything was delivered")

    # Progress ---------------------------------------------------------------------------------

    def _told(self, spec: StageSpec, news: News) -> None:
        """Take what the lanes of one batch have done, or that a stage waits."""
        batch = Counters()
        with self._turn:
            for report in news.reports:
                batch.add(Counters(**report["done"]["counters"]))
                end = news.ends.get(report["partition"])
                done = LaneProgress(**report["done"] | {"end": end})
                self._lanes[done.lane] = done
                LOG.debug("%s", done.words)
            self._counters[spec.name].add(batch)
            self._others.look(batch.lost)
            named = {"stage": spec.name, "query": news.query, "batchId": news.number}
            self._recent.append(self._document(named, batch))

    def _seen(self) -> dict[str, Any]:
        """Return what the live line shows; the lag is unknown until every stage was heard of."""
        with self._turn:
            lanes = list(self._lanes.values())
            total = self._total()
        lags = [lane.lag for lane in lanes if lane.lag is not None]
        heard = len({lane.stage for lane in lanes}) == len(self._streams)
        return {
            "counters": total.document(),
            "lag": sum(lags) if heard and len(lags) == len(lanes) else None,
            "message": self._message,
        }

    def _total(self) -> Counters:
        total = Counters()
        for counters in self._counters.values():
            total.add(counters)
        return total

    def _document(self, named: dict[str, Any], batch: Counters) -> dict[str, Any]:
        now, stage = time.monotonic(), named["stage"]
        seconds = max(now - self._moments[stage], 1e-3)
        self._moments[stage] = now
        progress = Progress(lanes=tuple(self._lanes.values()), counters=self._total().document())
        document = progress.document()
        lags = [lane.lag for lane in progress.lanes]
        for lane, lag in zip(document["lanes"], lags, strict=True):
            lane["lag"] = lag
        known = [lag for lag in lags if lag is not None]
        return {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            **named,
            "timestamp": datetime.now(UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "durationMs": {"sinceLast": round(seconds * 1000)},
            "numInputRows": batch.read,
            "inputRowsPerSecond": batch.read / seconds,
            "processedRowsPerSecond": batch.read / seconds,
            "message": self._message,
            "batch": batch.document(),
            **document,
            "lag": sum(known) if len(known) == len(lags) else None,
        }
