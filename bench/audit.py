"""Benchmarks of an audit: a million records proved over columns, and the same record by record.

What it is: one stage run to its end on a real broker and SQLite, then read, and audited in three ways.
What it must not know: the rules of any proof.

Invariants:
    Every turn must call the stage exact, or the run ends.
    Records are counted in all topics that a turn has read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import numpy as np

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import ID, Job, with_nonce
from delivery import Delivery
from delivery.batch import Emissions
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.operate.auditing import Terms, audit
from delivery.operate.gathering import Gathering
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen, opened
from delivery.operate.proving import Proved, no_cycles
from delivery.operate.reporting import silent
from delivery.operate.stand import Stand
from delivery.services.ephemeral import ephemeral

PARTITIONS = 4
#: Records published; nearly as many come out.
RECORDS, RECORDS_QUICK = 500_000, 20_000
#: The checker of records holds 2 kB of each in memory, and is given fewer.
CLOSER_RECORDS_MAX = 100_000
SOURCE, TARGET = "audited-in", "audited-out"
PUBLISHED_AT_ONCE = 20_000
WORK_SECONDS_MAX = 900.0

READ, COLUMNS, CLOSER, AGAIN = "reading alone", "columns", "record by record", "what came since"
TERMS = Terms(finished=True)


@contextmanager
def _audited(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with (
        lab.directory() as directory,
        ephemeral(kafka=1, report=lab.report) as services,
        open_client(services.kafka.bootstrap, {}, "confluent") as client,
    ):
        records = RECORDS_QUICK if lab.quick else RECORDS
        url = f"sqlite:{directory}/whole.db"
        furnish(client, services.kafka.bootstrap, url, "", records)
        small = f"sqlite:{directory}/small.db"
        furnish(client, services.kafka.bootstrap, small, "-small", min(records, CLOSER_RECORDS_MAX))
        yield [
            Contestant(name=READ, turn=partial(_read, client)),
            Contestant(name=CLOSER, turn=partial(_closer, client, small)),
            Contestant(name=COLUMNS, turn=partial(_columns, client, url, None)),
            Contestant(name=AGAIN, turn=partial(_columns, client, url, _proved(client, url))),
        ]


def furnish(client: Client, bootstrap: str, url: str, suffix: str, records: int) -> None:
    """Publish records and run a stage over them to its end."""
    source = client.create(SOURCE + suffix, TopicSettings(partitions=PARTITIONS))
    client.create(TARGET + suffix, TopicSettings(partitions=PARTITIONS))
    job = Job()
    with closing(client.producer()) as producer:
        for start in range(0, records, PUBLISHED_AT_ONCE):
            rows = [job.record(at) for at in range(start, min(start + PUBLISHED_AT_ONCE, records))]
            emissions = Emissions(
                edges=[0] * len(rows),
                partitions=[int(row.headers[0][1][-4:]) % PARTITIONS for row in rows],
                keys=[None] * len(rows),
                values=[row.value for row in rows],
                headers=[row.headers for row in rows],
                ids=np.zeros((len(rows), 2), dtype=np.uint64),
            )
            producer.emit([source], emissions)
    d = Delivery(catalog=url, kafka=bootstrap)
    d.stage(reads=SOURCE + suffix, writes=TARGET + suffix, name="nonce", id_from=f"header:{ID}")(
        with_nonce
    )
    topics = prepare(d.plan)
    with closing(Worker(d.plan)) as worker:
        for spec in d.stages:
            worker.open(spec, range(topics[spec.reads].partitions), {})
        deadline = time.monotonic() + WORK_SECONDS_MAX
        while worker.turn() or not _is_done(worker):
            assert time.monotonic() < deadline, worker.progress()


def _is_done(worker: Worker) -> bool:
    lanes = worker.progress().lanes
    idle = all(lane.idle for lane in worker.lanes)
    return idle and all(lane.end is not None and lane.frontier >= lane.end for lane in lanes)


def _proved(client: Client, url: str) -> Proved:
    with opened(url) as catalog:
        return audit(catalog, Cluster(client), chosen(catalog), TERMS).next


def _columns(client: Client, url: str, proved: Proved | None) -> Turn:
    began = time.perf_counter()
    with opened(url) as catalog:
        found = audit(catalog, Cluster(client), chosen(catalog), TERMS, proved=proved)
    seconds = time.perf_counter() - began
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {}), found.document()
    # What came since is nothing here: a turn of it is one operation.
    return Turn(seconds=(seconds,), amount=found.records if proved is None else None)


def _read(client: Client) -> Turn:
    """Read the same topics as an audit reads them, and do nothing with them."""
    began, cluster, count = time.perf_counter(), Cluster(client), 0
    with no_cycles():
        for name in (SOURCE, TARGET):
            topic = cluster.topic(name)
            bounds = cluster.bounds(topic)
            count += sum(len(batch) for batch in cluster.read(topic, bounds.low, bounds.high))
    return Turn(seconds=(time.perf_counter() - began,), amount=count)


def _closer(client: Client, url: str) -> Turn:
    began = time.perf_counter()
    with opened(url) as catalog:
        gathering = Gathering(Stand(catalog, Cluster(client)), TERMS, silent)
        assert gathering.findings(chosen(catalog)) == [], "nothing is damaged"
    return Turn(seconds=(time.perf_counter() - began,), amount=sum(gathering.records.values()))


BENCHMARKS = (
    Benchmark(
        name="audit",
        says=f"{RECORDS} records of 150 bytes and what one stage made of them, 5% repeats, four "
        "partitions, SQLite, read from a broker and proved; what came since is an audit that finds "
        "nothing new, and counts as one record",
        unit="record",
        staged=_audited,
        baseline=READ,
        rounds=(3, 1),
        goals=(
            Goal(
                says="CPU of an audit, 200,000 records a second of one core",
                contestant=COLUMNS,
                measure="cpu_ms",
                unit="ms",
                at_most=0.005,
            ),
        ),
    ),
)
