"""What runs in a Spark task for as long as the pipeline runs: a worker, its lanes, and the line.

What it is: `run`, which Spark calls with the number of the task and which yields small beats until
the driver says that it is enough.
What it must not know: how many attempts there were, which executor it is on, what other tasks do.

Invariants:
    Nothing that Spark numbers goes into an identity; the number only chooses lanes.
    It yields often, so that a task that was cancelled, or is dead to its executor, ends soon.
    It ends at once when the driver is gone: whoever starts next needs the lanes.
    What may go away by itself is waited for, with growing pauses, and told to the driver; what
    will not is told to it and ends the task.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dedup.errors import DeliveryError, Fenced, Indeterminate, Unavailable
from delivery.host.counters import Counters
from delivery.host.memory import let_go
from delivery.host.progress import Progress
from delivery.host.spec import Plan
from delivery.host.worker import FENCED_SECONDS, Worker
from delivery.points import At, nowhere
from delivery.resident.channel import Link, Lost
from delivery.resident.failures import document_of
from delivery.resident.lanes import share

__all__ = ["Setup", "run"]

LOG = logging.getLogger(__name__)

#: How often a task shows Spark that it lives, and learns whether it still should.
BEAT_SECONDS = 0.5
#: How often the driver is told how the lanes stand.
PROGRESS_SECONDS = 1.0
#: The pause after a failure that may pass, doubled each time up to the longest.
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 10.0
#: A worker that ran for so long has recovered: the next failure is a first one.
HEALTHY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the driver gives every task of a job.

    Attributes:
        plan: the pipeline.
        run: which submission of the job it is.
        tasks: how many there are.
        address, key: where the driver listens, and what it knows us by.
        beat: what is yielded: as large as Spark's buffer, or Spark would see it minutes later.
    """

    plan: Plan
    run: int
    tasks: int
    address: tuple[str, int]
    key: bytes
    beat: bytes

    def __repr__(self) -> str:
        # Spark prints closures; the key and Kafka's options are secrets.
        return f"Setup(run={self.run}, tasks={self.tasks})"


def run(setup: Setup, number: int) -> Iterator[bytes]:
    """Run the lanes of task `number` until the driver says that it is enough.

    Raises:
        Lost: the driver is gone, or listens to another attempt; Spark may start the task anew.
    """
    task = _Task(setup, number)
    try:
        yield from task.beats()
    finally:
        task.link.cut()


class _Task:
    def __init__(self, setup: Setup, number: int) -> None:
        self._setup = setup
        self._number = number
        self._at = _at()
        #: Set when lanes are to finish: by an order, or because nobody is there to give one.
        self._stop = threading.Event()
        self._ordered = False
        self._partitions: dict[str, int] = {}
        self._changed = threading.Event()
        #: Of workers that this task had before.
        self._before = Counters()
        self._failures = 0
        self._pause = 0.0
        self.link = Link.open(setup.address, setup.key)
        self.link.send(
            {
                "hello": {
                    "run": setup.run,
                    "task": number,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                }
            }
        )
        threading.Thread(target=self._listen, name="delivery-orders", daemon=True).start()

    # Orders -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take orders until there is nobody to give any."""
        try:
            while True:
                order = self.link.receive()
                if "lanes" in order:
                    self._partitions = order["lanes"]
                    self._changed.set()
                if "end" in order:
                    self._ordered = True
                    self._stop.set()
        except Lost:
            self._stop.set()
            self.link.close()

    # The loop ---------------------------------------------------------------------------------

    def beats(self) -> Iterator[bytes]:
        """Run a worker, and another after each failure that may pass."""
        while not self._stop.is_set():
            let_go()  # of the worker before, if there was one
            try:
                yield from self._work()
            except (Unavailable, Indeterminate, Fenced) as error:
                self._trouble(error)
                yield from self._wait(self._pause)
            except Lost:
                raise
            except Exception as error:  # noqa: BLE001 - user code may raise anything; it is told
                self._send({"failed": document_of(error, _place(error))})
                return
        if not self._ordered:
            raise Lost(
                "the driver is gone, or has another attempt run these lanes; nothing is lost"
            )

    def _work(self) -> Iterator[bytes]:
        worker = Worker(self._setup.plan, self._stop, self._at)
        try:
            began = beaten = time.monotonic()
            told = began - PROGRESS_SECONDS
            while not self._stop.is_set():
                if self._changed.is_set():
                    self._changed.clear()
                    self._open(worker)
                worker.turn()
                now = time.monotonic()
                if self._failures and now - began > HEALTHY_SECONDS:
                    self._failures = 0
                if now - told > PROGRESS_SECONDS:
                    told = now
                    self._tell(worker, "progress")
                if now - beaten > BEAT_SECONDS:
                    beaten = now
                    yield self._setup.beat
            if self._ordered:
                worker.finish()
                self._tell(worker, "ended")
        except Exception as error:
            _note_place(error, worker)
            raise
        finally:
            # The next worker opens the same lanes; those that are here may not be left half.
            self._changed.set()
            for lane in worker.lanes:
                self._before.add(lane.counters)
            worker.close()

    def _open(self, worker: Worker) -> None:
        """Open what is ours and not open yet: all of it, or partitions that appeared."""
        setup = self._setup
        mine = share(setup.plan.stages, self._partitions, setup.tasks, self._number)
        for spec, partitions in mine:
            worker.open(spec, partitions, {})

    def _trouble(self, error: DeliveryError) -> None:
        self._pause = FENCED_SECONDS
        if not isinstance(error, Fenced):
            self._pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2**self._failures)
            self._failures += 1
        document = document_of(error, _place(error))
        place = document["place"] or f"task {self._number}"
        LOG.warning("%s: again in %.1f s: %s", place, self._pause, error)
        self._send({"trouble": document | {"pause": self._pause}})

    def _wait(self, seconds: float) -> Iterator[bytes]:
        """Wait, and go on beating."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stop.wait(
            min(left, BEAT_SECONDS)
        ):
            yield self._setup.beat

    def _tell(self, worker: Worker, what: str) -> None:
        progress = worker.progress(at_once=what == "progress")
        counters = Counters(**progress.counters)
        counters.add(self._before)
        told = Progress(lanes=progress.lanes, counters=counters.document())
        self._send({what: told.document()})

    def _send(self, message: dict[str, Any]) -> None:
        """Tell the driver; who has said that it is enough need not listen any more."""
        try:
            self.link.send(message)
        except Lost:
            if not self._ordered:
                raise


def _note_place(error: Exception, worker: Worker) -> None:
    """Note on an error which lane stopped, and behind which seq; one that never loaded knows none."""
    for lane in worker.lanes:
        if lane.stopped is not None:
            where = f"behind seq {lane.seq}" if lane.seq >= 0 else "before it read anything"
            error.add_note(f"{_PLACE}{lane.name} {where}")


#: What a note of ours begins with.
_PLACE = "lane "


def _place(error: BaseException) -> str:
    notes: list[Any] = getattr(error, "__notes__", [])
    places = [str(note).removeprefix(_PLACE) for note in notes if str(note).startswith(_PLACE)]
    return ", ".join(places)


def _at() -> At:
    """Return what is told each named step: nothing but in tests."""
    if "DELIVERY_KILL_AT" not in os.environ:
        return nowhere
    from delivery.host.killing import killer  # noqa: PLC0415 - only tests of crashes load it

    return killer()
