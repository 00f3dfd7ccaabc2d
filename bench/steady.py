"""Latency of any contestant at a steady rate, from a record's publication to its output.

What it is: `steady`, a turn of one contestant behind a publisher in a process of its own.
What it must not know: how any way works.

Invariants:
    What a driver needs to start is not latency: it has done a second's work before the rest is
    published, and what comes in the first half minute after that does not count either. A JVM
    compiles what it runs for as long, and a job runs for days. How late its outputs are meanwhile
    stands among the facts.
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

#: For how long it is measured, after how long; and both when it must be quick.
SECONDS, SETTLING_SECONDS = 12, 30
SECONDS_QUICK, SETTLING_SECONDS_QUICK = 5, 3
#: A stamp is cut to whole milliseconds: half of one is what it lacks on average.
CUT_MS = 0.5


def steady(cluster: Cluster, way: Way, *, quick: bool) -> Turn:
    """Do the job at a steady rate; time every record from its publication to its output."""
    seconds, settling = (
        (SECONDS_QUICK, SETTLING_SECONDS_QUICK) if quick else (SECONDS, SETTLING_SECONDS)
    )
    # As soon as one who must be quick begins: what a job is like that has only just begun.
    young = (1 + SETTLING_SECONDS_QUICK) * PER_SECOND
    settled = (1 + settling) * PER_SECOND
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
    late = np.maximum(ended - made, 0)
    first = late[(came.orders >= young) & (came.orders < young + seconds * PER_SECOND)]
    return Turn(
        seconds=tuple((late[came.orders >= settled] / 1000).tolist()),
        facts={
            "memory MB": driver.curve.memory_mb,
            "median ms at first": float(np.median(first)),
            "p99 ms at first": float(np.quantile(first, 0.99)),
        },
    )
