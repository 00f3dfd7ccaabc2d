"""A broker dies under a client: the process lives, the error says try again, and again works."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from delivery import Indeterminate, Unavailable
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.ports import Frontier
from delivery.services.ephemeral import Services, ephemeral
from delivery.services.process import until
from sinks.kafka import KafkaEmitter
from tests.integration.kafka_kit import (
    ARRIVAL_SECONDS_MAX,
    LEAVES_SOCKETS,
    NEVER,
    Sent,
    drain,
    emissions,
)

pytestmark = pytest.mark.filterwarnings(LEAVES_SOCKETS)

#: Enough that an emission is under way when the broker dies.
RECORDS = 30_000
#: Short, so that a dead broker is told soon; by default a client tries for half a minute itself.
IMPATIENT = {"delivery.timeout.ms": "4000"}
#: Of the broker, under somebody who tells offsets all the while.
KILLS = 4


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    """A broker of this module's own."""
    with ephemeral(kafka=1, report=print) as services:
        yield services


@pytest.fixture(autouse=True)
def _sockets_are_collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect here, where it is expected, what kafka-python left."""
    caplog.set_level(NEVER, "kafka")
    yield
    gc.collect()


@pytest.fixture(params=LIBRARIES)
def client(
    request: pytest.FixtureRequest, services: Services, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    for library in ("confluent", "kafka_python"):
        monkeypatch.setattr(f"delivery.kafka.{library}.client.ANSWER_SECONDS_MAX", 3.0)
    with open_client(services.kafka.bootstrap, IMPATIENT, request.param) as client:
        yield client


def test_a_broker_killed_while_emitting_is_an_error_to_retry(
    client: Client, services: Services
) -> None:
    broker = services.servers["kafka-1"]
    topic = client.create(f"killed-{client.library}", TopicSettings(partitions=2))
    emitter, consumer = KafkaEmitter(client, [topic.name]), client.consumer()
    rows = [Sent(n % 2, b"%d" % n, b"x" * 150) for n in range(RECORDS)]
    half = RECORDS // 2
    assert emitter.emit(emissions(rows)) == Frontier.of((s, half) for s in topic.sources)
    consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
    drain(consumer, dict.fromkeys(topic.sources, 100))

    killer = threading.Timer(0.05, broker.kill)
    killer.start()
    with pytest.raises((Indeterminate, Unavailable), match="emit the same again"):
        emit_on(emitter, rows)
    killer.join()
    # Nobody is there, and it says so again.
    with pytest.raises((Indeterminate, Unavailable)):
        emitter.emit(emissions(rows[:10]))

    broker.restart()
    frontier = again(emitter, rows)
    assert all(offset >= 2 * half for _, offset in frontier)
    drained = drain(consumer, dict(frontier), max_records=20_000)
    for source in topic.sources:
        assert drained.positions[source] == dict(frontier)[source]
        keys = [row[1] for row in drained.rows[source][-half:]]
        assert keys == [row.key for row in rows if row.partition == source.partition]
    emitter.close()
    consumer.close()


def emit_on(emitter: KafkaEmitter, rows: list[Sent]) -> None:
    """Emit until it fails; the broker dies at a moment of its own."""
    while True:
        emitter.emit(emissions(rows))


def again(emitter: KafkaEmitter, rows: list[Sent]) -> Frontier:
    """Emit the same until it is delivered, as a lane does."""
    for _ in range(int(ARRIVAL_SECONDS_MAX)):
        try:
            return emitter.emit(emissions(rows))
        except (Indeterminate, Unavailable) as error:
            last = error
    raise last


#: Tells a group's offsets for as long as it is asked to, and how often that was taken down.
TELLING = """
import select
import sys
from contextlib import suppress

from dedup.errors import DeliveryError
from delivery.kafka.opening import open_client

bootstrap, library, topic = sys.argv[1:]
with open_client(bootstrap, {}, library) as client:
    told = 0
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        with suppress(DeliveryError):
            told += client.commit("told-" + library, topic, {0: told + 1})
    print(told, flush=True)
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_regression_a_broker_killed_under_what_monitors_are_told_ends_no_process(
    library: str, services: Services, request: pytest.FixtureRequest
) -> None:
    """With the admin API of librdkafka it stood still, or failed an assertion and was ended."""
    broker = services.servers["kafka-1"]
    with open_client(services.kafka.bootstrap) as client:
        topic = client.create(f"told-{library}", TopicSettings(partitions=1))
        command = [sys.executable, "-c", TELLING]
        teller = subprocess.Popen(
            [*command, services.kafka.bootstrap, library, topic.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        request.addfinalizer(teller.kill)
        assert teller.stdout is not None
        assert teller.stdout.readline() == "begun\n"
        offsets = partial(committed, services.kafka.bootstrap, f"told-{library}")

        def goes_on(before: int) -> bool:
            return until(
                lambda: offsets() > before or teller.poll() is not None, ARRIVAL_SECONDS_MAX
            )

        for _ in range(KILLS):
            assert goes_on(offsets())
            broker.kill()
            broker.restart()
        assert goes_on(offsets())
        told, said = teller.communicate("enough\n", timeout=ARRIVAL_SECONDS_MAX)
    assert teller.returncode == 0, said
    assert int(told) > 0


def committed(bootstrap: str, group: str) -> int:
    """Return the offset that monitors see of a group; -1 where there is none."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = admin.list_group_offsets(group)[group]
    except KafkaError:
        return -1
    finally:
        admin.close()
    return max((one.offset for one in found.values()), default=-1)
