"""Keeps the long job of a pipeline running: submits it, watches it, shares lanes out anew, ends it.

What it is: `Supervisor`, a thread in the driver.
What it must not know: what a lane is, what users see of a query.

Invariants:
    One submission at a time; the next begins when the one before has ended, or has been given up
    after `CANCEL_SECONDS`: its tasks are then strangers, and the append fences them.
    A failure of Spark's is tried again with growing pauses; a failure of user code, of the
    configuration or of the catalog's bytes ends the query.
    It ends, whatever happens: every wait has a bound.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dedup.errors import DeliveryError, InvalidUsage, Unavailable
from delivery.host.reminding import warn_grown
from delivery.host.spec import Plan
from delivery.kafka.opening import open_client
from delivery.resident import cluster
from delivery.resident.control import Control
from delivery.resident.failures import TaskFailedError
from delivery.resident.lanes import count
from delivery.resident.options import (
    CANCEL_SECONDS,
    GROWTH_SECONDS,
    REBALANCE_SECONDS,
    RESUBMIT_SECONDS,
    RESUBMIT_SECONDS_MAX,
    RETURN_SECONDS,
    SILENT_FAILURES_MAX,
    Options,
)
from delivery.resident.task import PROGRESS_SECONDS, Setup, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Supervisor"]

LOG = logging.getLogger(__name__)


class Supervisor:
    """Runs a pipeline's job until it is told to stop or cannot go on.

    Args:
        plan: the pipeline.
        spark: the session.
        options: what the user said.
        partitions: of the topic each stage reads, by the stage's name.
        progressed: called about once a second, and at the end.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        options: Options,
        partitions: Mapping[str, int],
        progressed: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._options = options
        self._partitions = dict(partitions)
        self._progressed = progressed
        self._wake = threading.Event()
        self._stop = threading.Event()
        host, bind = cluster.driver_address(spark)
        self.control = Control(host, bind=bind, port=options.control_port, changed=self._wake.set)
        #: How it stands, in words.
        self.message = "starting"
        self.tasks = 0
        self.failure: Exception | None = None
        #: Whether nothing more comes; `ended` is set once that was told.
        self.over = False
        self.ended = threading.Event()
        self._runs = 0
        self._silent = 0
        self._failures = 0
        #: Since when another number of tasks would be right.
        self._uneven: float | None = None

    @property
    def lanes(self) -> int:
        """How many lanes there are, heard of or not."""
        return count(self._partitions)

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="delivery-supervisor", daemon=True).start()
        threading.Thread(target=self._watch_topics, name="delivery-topics", daemon=True).start()

    def stop(self) -> None:
        """Ask for the end; `ended` says when it has come."""
        self._stop.set()
        self._wake.set()

    # The job ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                self._submission()
        except Exception as error:  # noqa: BLE001 - it is raised where the query is waited for
            gone = cluster.stopped(self._spark)  # and answers nothing any more
            self.failure = self.failure or (self._session_gone() if gone else error)
        finally:
            self.failure = self.failure or self.control.failure
            self.control.close()
            self.message = "stopped" if self.failure is None else f"failed: {self.failure}"
            self._stop.set()
            self.over = True
            self._progressed()
            self.ended.set()

    @property
    def _over(self) -> bool:
        return self._stop.is_set() or self.failure is not None or self.control.failure is not None

    def _submission(self) -> None:
        """Run the job once, until it ends or is to end."""
        if not self.tasks or self._uneven is not None:
            self.tasks, self._uneven = self._wanted(0), None
        self._runs += 1
        self.control.begin(self._runs, self._partitions)
        setup = Setup(
            plan=self._plan,
            run=self._runs,
            tasks=self.tasks,
            address=self.control.address,
            key=self.control.key,
            beat=bytes(cluster.buffer_bytes(self._spark)),
        )
        name = f"delivery: {self._options.name}"
        self.message = f"waiting for {self.tasks} tasks to start"
        began = time.monotonic()
        job = cluster.Job(self._spark, name, self.tasks, partial(run, setup), self._wake.set)
        self._watch(job)
        if not job.ended.is_set():
            self._end(job)
        elif not self._over:
            self._again(job, time.monotonic() - began)

    def _watch(self, job: cluster.Job) -> None:
        """Wait until the job has ended or is to end, and report on the way."""
        told = 0.0
        while not (job.ended.is_set() or self._over or self._rebalance()):
            self._wake.wait(PROGRESS_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            if now - told >= PROGRESS_SECONDS:
                told = now
                self._describe()
                self._progressed()

    def _describe(self) -> None:
        troubles, running = self.control.troubles, self.control.running
        if troubles:
            self.message = f"waiting: {troubles[0]}"
        elif running < self.tasks:
            self.message = (
                f"{running} of {self.tasks} tasks run; Spark starts the others when it has slots"
            )
        else:
            self.message = f"{running} tasks run"

    def _end(self, job: cluster.Job) -> None:
        """Let the tasks finish what is under way; cancel the job if that takes too long."""
        self.message = "finishing what is under way"
        self.control.end()
        now = heard = time.monotonic()
        deadline = now + self._options.drain_seconds
        # Tasks that wait for a slot are not waited for: they have nothing under way.
        while not job.ended.is_set() and now < deadline and now - heard < RETURN_SECONDS:
            self._wake.wait(PROGRESS_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            heard = now if self.control.running else heard
        if not job.ended.is_set():
            LOG.warning("tasks did not finish in time, and are cancelled; nothing is lost")
            if not job.cancel(CANCEL_SECONDS):
                LOG.warning("Spark did not end the job; what is left of it is fenced")

    def _again(self, job: cluster.Job, seconds: float) -> None:
        """Wait before the next submission, or give up."""
        self.control.end()
        if cluster.stopped(self._spark):
            self.failure = self._session_gone()
            return
        self._silent = 0 if self.control.greeted else self._silent + 1
        if self._silent >= SILENT_FAILURES_MAX:
            self.failure = TaskFailedError(
                f"no task could be started, {self._silent} times in a row; nothing was read or "
                f"written: mend what Spark says: {job.error}"
            )
            self.failure.__cause__ = job.error
            return
        self._failures = 0 if seconds > RESUBMIT_SECONDS_MAX else self._failures + 1
        pause = min(RESUBMIT_SECONDS_MAX, RESUBMIT_SECONDS * 2 ** max(0, self._failures - 1))
        said = str(job.error).splitlines()[0] if job.error else "its tasks returned"
        self.message = f"the job ended ({said}); submitted again in {pause:.1f} s"
        LOG.warning("%s", self.message)
        self._stop.wait(pause)

    def _session_gone(self) -> Unavailable:
        return cluster.session_gone(str(self._options.name))

    # How many ---------------------------------------------------------------------------------

    def _wanted(self, tasks: int) -> int:
        """Return how many tasks there should be, given how many there are."""
        lanes = max(1, self.lanes)
        if self._options.tasks is not None:
            return min(self._options.tasks, lanes)
        # Other jobs of the session, other pipelines above all, have slots as well.
        others = max(0, cluster.busy(self._spark) - self.control.running)
        room = cluster.slots(self._spark) - others
        if tasks and tasks <= room <= tasks + 1:
            return min(tasks, lanes)  # they fit, and more would leave nothing to others
        return min(max(1, room - 1), lanes)

    def _rebalance(self) -> bool:
        """Tell whether another number of tasks has been right for a while."""
        if self.control.running == 0 or self._wanted(self.tasks) == self.tasks:
            self._uneven = None
            return False
        now = time.monotonic()
        self._uneven = self._uneven or now
        if now - self._uneven < REBALANCE_SECONDS:
            return False
        LOG.info("lanes are shared out anew: Spark has %d slots", cluster.slots(self._spark))
        return True

    # Topics -----------------------------------------------------------------------------------

    def _watch_topics(self) -> None:
        """Notice partitions that appear, and tell the tasks."""
        plan = self._plan
        try:
            with open_client(plan.kafka, plan.options, plan.client) as client:
                level = logging.WARNING
                while not self._stop.wait(GROWTH_SECONDS):
                    try:
                        topics = client.describe([spec.reads for spec in plan.stages])
                    except InvalidUsage:
                        raise
                    except DeliveryError as error:
                        LOG.log(level, "topics could not be looked at: %s", error)
                        level = logging.DEBUG  # until they can be: once is enough
                        continue
                    level = logging.WARNING
                    self._grown(
                        {
                            spec.name: topics[spec.reads].partitions
                            for spec in plan.stages
                            if spec.reads in topics
                        }
                    )
        except DeliveryError as error:
            LOG.warning("new partitions will not be noticed before the next start: %s", error)

    def _grown(self, found: Mapping[str, int]) -> None:
        now = {name: max(had, found.get(name, 0)) for name, had in self._partitions.items()}
        if now != self._partitions:
            LOG.info("topics have more partitions now: %s", now)
            for spec in self._plan.stages:
                warn_grown(spec, range(self._partitions[spec.name]), range(now[spec.name]))
            self._partitions = now
            self.control.grow(now)
            self._wake.set()
