"""What the suites over receivers share, and the program that they start and kill.

What it is: records into a topic, a receiver whose effect is a row for each record, and a `main`
that runs one in a process of its own and dies at a named point.
What it must not know: any single test.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.model import Frontier
from delivery import Delivery
from delivery.api import passed_on
from delivery.checker import Evidence, LaneInput, check
from delivery.host.spec import Plan, StageSpec
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.operate.databases import with_databases
from delivery.points import At, nowhere
from delivery.receiver import Bundle, Receiver
from tests.acceptance.reading import logs_of

PIPELINE = "shop"
#: Small, so that a few hundred records make many bundles.
BUNDLE_ROWS = 40
PARTITIONS = 2
#: How long a process of a test may take, on a busy machine.
PROCESS_SECONDS_MAX = 120.0


class World(NamedTuple):
    """A topic, a catalog and a user's database."""

    bootstrap: str
    topic: str
    root: Path
    #: URL of the catalog, if it is not one in a file.
    catalog: str = ""

    @property
    def database(self) -> Path:
        """The user's."""
        return self.root / "billing.db"

    @property
    def plan(self) -> Plan:
        """Catalog and cluster."""
        return self.delivery.plan

    @property
    def delivery(self) -> Delivery:
        """The pipeline."""
        catalog = self.catalog or f"sqlite:{self.root / 'catalog.db'}"
        return Delivery(catalog=catalog, kafka=self.bootstrap, pipeline=PIPELINE)

    def make(self, partitions: int = PARTITIONS) -> World:
        """Create the topic and the user's table."""
        with open_client(self.bootstrap) as client:
            client.create(self.topic, TopicSettings(partitions=partitions))
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("CREATE TABLE effect (id TEXT, place INTEGER, made BLOB)")
            connection.commit()
        return self

    def send(self, ids: Iterable[int], partitions: int = PARTITIONS) -> None:
        """Publish a record for each id; repeats of one go into one partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for one in ids:
            producer.produce(
                self.topic,
                json.dumps({"id": one}),
                partition=one % partitions,
                headers=[("id", str(one).encode())],
            )
        producer.flush()

    def send_values(self, values: Iterable[bytes]) -> None:
        """Publish records that only their places name."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(self.topic, value)
        producer.flush()

    def spec(self, group: str = "billing", **options: Any) -> StageSpec:
        """Return what a receiver of small bundles is."""
        return StageSpec(
            pipeline=PIPELINE,
            name=group,
            reads=self.topic,
            call=passed_on,
            named=options.get("named", "header:id"),
            bundle_rows=options.get("bundle_rows", BUNDLE_ROWS),
        )

    def receiver(self, group: str = "billing", *, at: At = nowhere, **options: Any) -> Receiver:
        """Return a receiver of small bundles."""
        said = {key: options.pop(key) for key in ("named", "bundle_rows") if key in options}
        return Receiver(self.plan, self.spec(group, **said), at=at, **options)

    def effects(self) -> Counter[str]:
        """Return how often each record had its effect."""
        with closing(sqlite3.connect(self.database)) as connection:
            return Counter(name for (name,) in connection.execute("SELECT id FROM effect"))

    def prove(self) -> None:
        """Hold the user's database and the catalog against the topic."""
        spec = self.spec()
        with (
            open_client(self.bootstrap) as client,
            closing(open_store(self.plan.catalog)) as store,
            with_databases(Catalog(store)) as (catalog, kept),
        ):
            logs = logs_of(client, self.topic)
            lanes = {
                spec.lane(source): LaneInput(
                    id_from=spec.id_of(), due=Frontier.of([(source, log.end)])
                )
                for source, log in logs.items()
            }
            assert [kept[lane].unread for lane in lanes] == [None] * len(lanes)
            found = check(Evidence(store=catalog.store, logs=logs, lanes=lanes, finished=True))
        assert found == []


def rows(bundle: Bundle) -> list[tuple[str, int, bytes]]:
    """Return the effect of a bundle: a row for each record, with something new in each."""
    return [(str(record.json()["id"]), record.offset, os.urandom(8)) for record in bundle.records()]


def consume(world: World, receiver: Receiver) -> int:
    """Let every record have its effect, up to the end; return how many bundles it took."""
    bundles = 0
    with closing(sqlite3.connect(world.database)) as connection:
        for bundle in receiver:
            with bundle.once(connection) as tx:
                tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
            bundles += 1
    return bundles


def once_each(ids: Iterable[int]) -> Counter[str]:
    """Return the effects that are right."""
    return Counter(str(one) for one in set(ids))


def run_out(worker: Worker) -> None:
    """Let a worker's lanes do everything that there is for them."""
    deadline = time.monotonic() + PROCESS_SECONDS_MAX
    while worker.turn() or any(lane.lag != 0 for lane in worker.progress().lanes):
        assert time.monotonic() < deadline, worker.progress()


class Killer:
    """Dies at the n-th time that a point is passed."""

    def __init__(self, point: str, passes: int) -> None:
        self._point = point
        self._left = passes

    def __call__(self, point: str) -> None:
        """Count, and die."""
        self._left -= point == self._point
        if self._point and not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def command(world: World, *words: str) -> list[str]:
    """Return how the program below is started."""
    return [
        sys.executable,
        "-m",
        "tests.integration.receiver_kit",
        *map(str, world),
        *words,
    ]


def main(arguments: Sequence[str]) -> None:
    """Consume in this process: BOOTSTRAP TOPIC ROOT CATALOG WAY BOUNDED POINT PASSES."""
    bootstrap, topic, root, catalog, way, bounded, point, passes = arguments
    world = World(bootstrap, topic, Path(root), catalog)
    receiver = world.receiver(at=Killer(point, int(passes)), bounded=bounded == "bounded")
    if way == "once":
        consume(world, receiver)
        return
    with closing(sqlite3.connect(world.database, isolation_level=None)) as connection:
        for bundle in receiver:
            # The user's own effect, idempotent or not: here it is not, so that repeats show.
            connection.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
            bundle.done()


if __name__ == "__main__":
    main(sys.argv[1:])
