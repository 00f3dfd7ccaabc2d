"""`python -m bench.peers`: ours, plain PySpark and the peers, the same job in one run.

What it is: the benchmarks that race other systems, over the command line of `bench`.
What it must not know: how a peer does the job, how anything is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager

from bench.__main__ import main
from bench.cluster import RECORDS, Way, drain
from bench.harness import Benchmark, Contestant, Goal, Lab
from bench.peers.environments import java, python
from bench.pipeline import SPARK, SPARK_DEDUP, SQLITE, THRIFT, WAYS, at_rate, late, raced
from bench.publisher import PER_SECOND

#: How often peers commit: often where latency counts, as seldom as their users do where it does not.
DRAIN_COMMIT_MS, STEADY_COMMIT_MS = 1_000, 100

STREAMS, STREAMS_DEDUP = "Kafka Streams", "Kafka Streams + dedup"
QUIX, QUIX_DEDUP = "Quix Streams", "Quix Streams + dedup"
FLINK, FLINK_DEDUP = "PyFlink", "PyFlink + dedup"
#: The one whose user code is not Python.
JAVA = "KafkaStreamsJob"
LOOP, LOOP_DEDUP = "transactional loop", "transactional loop + rocksdict"


def _peer(command: tuple[str, ...], *, dedup: bool) -> Way:
    return Way(
        way="dedup" if dedup else "plain",
        deduplicates=dedup,
        transactional=True,
        python=command[-1] != JAVA,
        command=command,
        commit_ms=(DRAIN_COMMIT_MS, STEADY_COMMIT_MS),
    )


def contestants() -> dict[str, Way]:
    """Return who takes part; ours comes first: it is what the others are divided by."""
    drivers = {
        (LOOP, LOOP_DEDUP): (python("confluent"), "-m", "bench.peers.confluent_loop"),
        (QUIX, QUIX_DEDUP): (python("quix"), "-m", "bench.peers.quix"),
        (FLINK, FLINK_DEDUP): (python("pyflink"), "-m", "bench.peers.pyflink_job"),
        (STREAMS, STREAMS_DEDUP): java("streams", JAVA),
    }
    own = {name: WAYS[name] for name in (SQLITE, SPARK, SPARK_DEDUP)}
    return own | {
        name: _peer(command, dedup=dedup)
        for names, command in drivers.items()
        for name, dedup in zip(names, (False, True), strict=True)
    }


def _drains(lab: Lab) -> AbstractContextManager[Sequence[Contestant]]:
    return raced(lab, contestants(), drain)


def _steadies(lab: Lab) -> AbstractContextManager[Sequence[Contestant]]:
    return raced(lab, contestants(), at_rate(lab), warm=(WAYS[SQLITE],))


def _slower(peer: str, times: float) -> Goal:
    """Say how many times as long as ours a peer takes for a record."""
    return Goal(
        says=f"throughput, ours on SQLite / {peer}",
        contestant=peer,
        measure="ratio",
        at_least=times,
    )


DRAIN = Benchmark(
    name="peers-drain",
    says=f"{RECORDS:,} records of 150 bytes, 5% of them repeats, four partitions, per-record user "
    f"code, transactions of {DRAIN_COMMIT_MS} ms: output records a second in steady state, the "
    "broker on the same cores",
    unit="record",
    staged=_drains,
    baseline=SQLITE,
    rounds=(3, 1),
    warmups=0,
    goals=(
        _slower(SPARK, 1.25),
        _slower(SPARK_DEDUP, 2.5),
        _slower(LOOP_DEDUP, 2.0),
        _slower(QUIX_DEDUP, 8.0),
        _slower(FLINK_DEDUP, 12.0),
        _slower(STREAMS, 1.3),
        _slower(STREAMS_DEDUP, 3.0),
        THRIFT,
    ),
)
STEADY = Benchmark(
    name="peers-latency",
    says=f"publication to output at {PER_SECOND} records a second over four partitions, "
    f"transactions of {STEADY_COMMIT_MS} ms",
    unit="record",
    staged=_steadies,
    baseline=SQLITE,
    rounds=(3, 1),
    warmups=0,
    goals=tuple(late("ours on SQLite", SQLITE, 8.0, 25.0)),
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], (DRAIN, STEADY), "python -m bench.peers"))
