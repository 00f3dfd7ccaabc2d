"""Latency of any contestant at a steady rate, from a record's publication to its output.

What it is: `steady`, a turn of one contestant behind a publisher in a process of its own.
What it must not know: how any way works.

Invariants:
    What a driver needs to start is not latency: it has done a second's work before the rest is
    published, and what comes in the first seconds after that does not count either.
    Where an output is visible when it is appended, the broker's stamp ends its latency, and nobody
    reads meanwhile; only where a commit makes it visible later, a reader of committed records does.
"""

from __future__ import annotations

import json
import uuid

import numpy as np

from bench.cluster import Cluster, Way
from bench.harness import Turn
from bench.publisher import PER_SECOND, publishing

#: For how long, how long when it must be quick, and for how long before that.
SECONDS, SECONDS_QUICK, SETTLING_SECONDS = 12, 5, 3
#: A stamp is cut to whole milliseconds: half of one is what it lacks on average.
CUT_MS = 0.5


def steady(cluster: Cluster, way: Way, seconds: int) -> Turn:
    """Do the job at a steady rate; time every record from its publication to its output."""
    settled = (1 + SETTLING_SECONDS) * PER_SECOND
    last = settled + seconds * PER_SECOND
    with (
        cluster.topic(f"steady-{uuid.uuid4().hex[:8]}") as source,
        cluster.place(way, source, way.commit_ms[1]) as place,
        publishing(cluster.bootstrap, source.name) as publisher,
    ):
        with place.driver() as driver:
            publisher.begin(PER_SECOND)
            publisher.await_end()
            place.until(PER_SECOND)
            publisher.begin(last)
            if way.transactional:
                came = place.read(keep=True, until=last)
            else:
                place.until(last)
            publisher.await_end()
            driver.curve.look()
        if not way.transactional:
            came = place.read(keep=True)
    assert np.array_equal(came.counts(last), np.ones(last)), "every order came out, and not twice"
    made = np.array([json.loads(value)["made_ms"] for value in came.values])
    ended = came.seen_ms if way.transactional else came.stamps_ms + CUT_MS
    late = np.maximum(ended - made, 0)[came.orders >= settled]
    return Turn(seconds=tuple((late / 1000).tolist()), facts={"memory MB": driver.curve.memory_mb})
