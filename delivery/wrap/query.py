"""What `d.wrap_sink(...).start()` returns: Spark's own query, and what delivery adds to it.

What it is: `WrappedQuery`.
What it must not know: how a batch is sealed.

Invariants:
    It fails with what really happened, not with what Spark made of it.
    `stop` lets the batch under way come to its end; what is sealed by then is delivered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dedup.errors import DeliveryError
from delivery.host.counters import Counters
from delivery.query import interruptible
from delivery.resident.failures import TaskFailedError
from delivery.stage import StoppedByRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from delivery.wrap.driver import StageDriver

__all__ = ["Batches", "WrappedQuery"]

#: How long `stop` waits for the batch that is under way; then Spark cancels it.
DRAIN_SECONDS = 60.0
#: Batches of which counts are kept, as Spark keeps progresses.
RECENT_MAX = 100
_OURS = (DeliveryError, StoppedByRecordError, TaskFailedError)


class _BatchFailedError(Exception):
    """What Spark is told of a batch that failed, or was not begun."""


class Batches:
    """What Spark calls for each micro-batch.

    Args:
        driver: of the stage.
        finished: called when no batch comes any more.
    """

    def __init__(self, driver: StageDriver, finished: Callable[[], None]) -> None:
        self._driver = driver
        self._finished = finished
        self._closed = False
        self.turn = threading.Lock()
        self.stopping = threading.Event()
        self.error: Exception | None = None
        #: By the number of the batch.
        self.counted: OrderedDict[int, Counters] = OrderedDict()

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Run one micro-batch."""
        with self.turn:
            if self.stopping.is_set() or self.error is not None:
                # It must not be noted as done: its records are not sealed.
                raise _BatchFailedError("the query is ending")
            try:
                counters = self._driver.batch(frame, number)
            except Exception as error:  # noqa: BLE001 - it is kept, and raised where it is waited for
                self.error = error
                # SUBTLE: Spark takes the text apart with a regular expression that overflows the
                # stack of its thread where the text is long.
                raise _BatchFailedError(type(error).__name__) from None
            self.counted[number] = counters
            while len(self.counted) > RECENT_MAX:
                self.counted.popitem(last=False)

    def end(self) -> None:
        """Let go of everything once no batch comes any more. May be called twice."""
        with self.turn:
            if not self._closed:
                self._closed = True
                self._driver.close()
                self._finished()


class WrappedQuery:
    """A running wrapped job; whatever is not here is Spark's own StreamingQuery's.

    Args:
        query: Spark's.
        batches: what it calls.
    """

    def __init__(self, query: StreamingQuery, batches: Batches) -> None:
        self._query = query
        self._batches = batches
        self._watcher = threading.Thread(target=self._watch, name="delivery-wrapped", daemon=True)
        self._watcher.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802 - as PySpark spells it
        """Whether it runs."""
        return bool(self._query.isActive)

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing just now."""
        return dict(self._query.status)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - as PySpark spells it
        """Spark's latest progress, with what became of the records as "delivery"."""
        found = self._query.lastProgress
        return None if found is None else self._told(found)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - as PySpark spells it
        """Spark's latest progresses, oldest first, each with "delivery"."""
        return [self._told(found) for found in self._query.recentProgress]

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - as PySpark's
        """Wait until it has ended; True if it has.

        Raises:
            Exception: what it failed with.
        """
        try:
            with interruptible(str(self._query.name or "the query"), self.stop):
                if timeout is None:
                    self._query.awaitTermination()
                    ended = True
                else:
                    # Spark takes fractions of a second, whatever the type says.
                    ended = bool(self._query.awaitTermination(timeout))  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - Py4J and Spark raise what they like; ours is raised
            failure = self.exception()
            if failure is None:
                return True
            raise failure from None
        if ended:
            self._watcher.join()
        return ended

    def exception(self) -> BaseException | None:
        """Return what it failed with, or None."""
        if isinstance(self._batches.error, _OURS):
            return self._batches.error
        if self._batches.stopping.is_set():
            return None
        return self._batches.error or self._query.exception()

    def processAllAvailable(self) -> None:  # noqa: N802 - as PySpark spells it
        """Wait until everything that is in the input topics now is delivered.

        Raises:
            Exception: what the query failed with.
        """
        try:
            with interruptible(str(self._query.name or "the query"), self.stop):
                self._query.processAllAvailable()
        except Exception:
            failure = self.exception()
            if failure is None:
                raise
            raise failure from None

    def stop(self) -> None:
        """End it: let the batch under way come to its end, and return. May be called twice."""
        self._batches.stopping.set()
        # SUBTLE: not held on: Spark's thread may wait for it, and could not be stopped then.
        if self._batches.turn.acquire(timeout=DRAIN_SECONDS):
            self._batches.turn.release()
        self._query.stop()
        self._watcher.join()

    # Inside -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Let go of everything when Spark's query has ended, however it did."""
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - comes with Spark

        try:
            self._query.awaitTermination()
        except (PySparkException, Py4JError):
            pass  # it is told to whoever asks
        finally:
            self._batches.end()

    def _told(self, progress: Any) -> dict[str, Any]:
        document: dict[str, Any] = dict(progress)
        counted = self._batches.counted.get(int(document["batchId"]))
        return document | {"delivery": None if counted is None else counted.document()}
