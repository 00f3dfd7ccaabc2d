"""How long a pipeline says nothing after a kill -9, whatever it is.

What it is: `recovered`, a turn in which one process of a contestant is killed under a steady load,
and the driver, if it was that, started again at once.
What it must not know: how any way works.

Invariants:
    The time goes from the kill to the broker's stamp of new output, and counts for the input
    partition that took longest, so that a lane that nobody took over is no recovery.
    What a dead process had sent may still be appended for a moment; that is never taken for new.
    Nothing is lost, or the turn is an error and no figure; and where repeats are dropped, nobody's
    order has two versions.
"""

from __future__ import annotations

import enum
import json
import threading
import time
import uuid

import numpy as np

from bench.cluster import Cluster, Place, Way
from bench.driving import Driver, gone
from bench.harness import Turn
from bench.output import Came, Numbers
from bench.publisher import PARTITIONS, PER_SECOND, Publisher, publishing
from delivery.operate.dying import PYTHON_WORKER, below

#: How much is made before the kill, behind what the start needed, and after output is there again.
BEFORE, AFTER = 3 * PER_SECOND, 2 * PER_SECOND
#: How long what a driver and its workers had sent may take to be appended when all of them are gone.
#: No Spark starts in so little.
LANDING_MS = 250.0
#: How often the log is read while its last records are waited for, and for how long at most.
LOOK_SECONDS, WHOLE_SECONDS_MAX = 0.5, 120.0


class Victim(enum.Enum):
    """Who is killed."""

    DRIVER = "driver"
    WORKER = "worker"


def recovered(cluster: Cluster, way: Way, victim: Victim) -> Turn:
    """Kill somebody; time how long it takes until there is new output."""
    with (
        cluster.topic(f"killed-{uuid.uuid4().hex[:8]}") as source,
        cluster.place(way, source, way.commit_ms[1]) as place,
        publishing(cluster.bootstrap, source.name) as publisher,
    ):
        publisher.begin(PER_SECOND)
        publisher.await_end()
        kill = _worker if victim is Victim.WORKER else _driver
        killed_ms, silent_ms, count = kill(place, publisher)
        came = place.read(keep=True)
    _judge(came, count, way)
    new = _made_after(came, killed_ms) if victim is Victim.WORKER else _unseen(came, silent_ms)
    late_ms = _first_of_each(came, new) - killed_ms
    facts = {"quickest partition ms": float(late_ms.min())}
    return Turn(seconds=(float(late_ms.max()) / 1000,), facts=facts)


def _worker(place: Place, publisher: Publisher) -> tuple[float, float, int]:
    """Kill one worker; return when, when it was gone, and how many records were published."""
    with place.driver() as driver:
        _flow(place, publisher)
        victim, *_ = below(driver.pid, PYTHON_WORKER)
        killed_ms = time.time() * 1000
        victim.kill()
        silent_ms = gone([victim])
        return killed_ms, silent_ms, _ending(place, publisher)


def _driver(place: Place, publisher: Publisher) -> tuple[float, float, int]:
    """Kill the driver and start another; return when, when nobody of it was left, how many."""
    with place.driver() as first:
        _flow(place, publisher)
        every = first.below()
        killed_ms = first.kill()
        again = Driver(place.way.command, place.order)
        try:
            silent_ms = gone(every) + LANDING_MS
            again.await_started()
            return killed_ms, silent_ms, _ending(place, publisher)
        except AssertionError as error:
            error.add_note(again.last_words)
            raise
        finally:
            again.close()


def _flow(place: Place, publisher: Publisher) -> None:
    """Wait for the first output, then let records flow."""
    place.until(PER_SECOND)
    publisher.begin()
    place.until(PER_SECOND + BEFORE)


def _ending(place: Place, publisher: Publisher) -> int:
    """Go on until everything that was made is there; return how much that is."""
    place.until(place.reach + AFTER)
    count = publisher.halt()
    place.until(count)
    # What came twice counts at the end of the log, so it may be that far too soon.
    deadline, pause = time.monotonic() + WHOLE_SECONDS_MAX, threading.Event()
    while not (place.read().counts(count) > 0).all():
        assert time.monotonic() < deadline, f"not all of {count} orders came out"
        pause.wait(LOOK_SECONDS)
    return count


def _judge(came: Came, count: int, way: Way) -> None:
    counts = came.counts(count)
    assert (counts[:count] > 0).all(), f"{(counts[:count] == 0).sum()} of {count} orders were lost"
    if way.deduplicates:
        versions = len(set(came.values))
        assert versions == count, f"{count} orders came out in {versions} versions"


def _made_after(came: Came, at_ms: float) -> Numbers:
    """Tell which outputs are of records that were made after a moment."""
    made = np.array([json.loads(value)["made_ms"] for value in came.values])
    return np.flatnonzero(made > at_ms)


def _unseen(came: Came, at_ms: float) -> Numbers:
    """Tell which outputs are of records that had not come out before a moment."""
    before = np.unique(came.orders[came.stamps_ms <= at_ms])
    return np.flatnonzero(~np.isin(came.orders, before))


def _first_of_each(came: Came, rows: Numbers) -> Numbers:
    """Return for each input partition when the first of these outputs was appended."""
    partitions, stamps = came.orders[rows] % PARTITIONS, came.stamps_ms[rows]
    return np.array([stamps[partitions == one].min() for one in range(PARTITIONS)])
