"""Brokers and nodes of the catalog are killed and stand still under a pipeline that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from delivery import Indeterminate, Unavailable
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.ephemeral import Server, Services, ephemeral
from tests.acceptance.kit import Trial, answered, prove, publish, shares, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.worker import AWAY

MIB = 1024 * 1024
RECORDS = 600
#: Parts in which records come, so that something is under way whenever a server dies.
PARTS = 12
PAUSE_SECONDS = 30.0
#: How long a pipeline may take to come back once its servers are back; measured: seconds.
RECOVERY_SECONDS_MAX = 180.0
#: A publisher waits as long for a broker. Sent again by a test, a record would be one more repeat.
PUBLISHER = {"delivery.timeout.ms": int(RECOVERY_SECONDS_MAX * 1000)}
#: What a worker may grow by while it cannot write: its buffers, and what clients hold.
GROWTH_BYTES_MAX = 256 * MIB
#: What a worker that gives up says of what it tried: one of them, always.
MEANINGS = ("did not happen", "may have happened", "nothing was read or written")
#: How often that is looked at.
LOOK_SECONDS = 0.2
#: How long bounds are asked for under a broker that comes back.
ASKED_SECONDS_MAX = 120.0
ANSWERS = 40
#: Each asks one broker of three, whichever: it is unlikely that none asks the one that dies.
CLIENTS = 10
#: How long questions may go unanswered once a broker is gone: the others take ten seconds to notice.
UNANSWERED_SECONDS_MAX = 60.0


def test_regression_bounds_of_a_broker_that_just_came_back() -> None:
    """It says -1 for a log whose end it does not know yet, without an error."""
    with ephemeral(kafka=1) as services:
        broker = services.servers["kafka-1"]
        with open_client(services.kafka.bootstrap) as client:
            topics = [
                client.create(f"bounds-{number}", TopicSettings(partitions=8))
                for number in range(4)
            ]
            with comes_back(broker):
                answered = 0
                deadline = time.monotonic() + ASKED_SECONDS_MAX
                while answered < ANSWERS and time.monotonic() < deadline:
                    for topic in topics:
                        with suppress(Unavailable, Indeterminate):
                            client.bounds(topic.name, topic.sources)
                            answered += 1
            assert answered >= ANSWERS, "it came back"


@pytest.mark.slow
def test_regression_questions_of_clients_that_knew_a_broker_that_is_gone(
    cluster: Services, unique: Callable[[str], str]
) -> None:
    """They went on waiting for it, up to five minutes, while two others were there."""
    broker, topic = cluster.servers["kafka-2"], unique("questions")
    with ExitStack() as opened:
        clients = [
            opened.enter_context(open_client(cluster.kafka.bootstrap)) for _ in range(CLIENTS)
        ]
        clients[0].create(topic, TopicSettings(partitions=1))
        for client in clients:
            assert answered(partial(client.describe, [topic]))
        broker.kill()
        try:
            deadline = time.monotonic() + UNANSWERED_SECONDS_MAX
            with ThreadPoolExecutor(CLIENTS) as side:
                asked = [side.submit(answered, partial(one.describe, [topic])) for one in clients]
                assert all(one.result() for one in asked)
            assert time.monotonic() < deadline
        finally:
            broker.restart()


@contextmanager
def comes_back(broker: Server) -> Iterator[None]:
    """Kill a broker, and let it come back while the block runs."""
    broker.kill()
    back = threading.Thread(target=broker.restart)
    back.start()
    try:
        yield
    finally:
        back.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Services]:
    """Three brokers and three nodes: what may lose one of either."""
    with ephemeral(kafka=3, cassandra=3, report=print) as services:
        yield services


@pytest.fixture
def trial(cluster: Services, unique: Callable[[str], str], tmp_path: Path) -> Trial:
    """A pipeline on all of them."""
    hosts = ",".join(
        f"{host}:{cluster.cassandra.port}" for host in cluster.cassandra.contact_points
    )
    pipeline = Pipeline(
        name=unique("shop"),
        kafka=cluster.kafka.bootstrap,
        catalog=f"cassandra://{hosts}/servers",
        home=str(tmp_path / "home"),
    )
    return Trial.of(pipeline, tmp_path, seed=53, count=RECORDS)


class Patient:
    """A worker that is started again when it gives up because a server is away."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.worker = trial.start()
        self.said: list[str] = []

    def look(self) -> bool:
        """Start it again if it gave up; tell whether it has come to its end."""
        code = self.worker.process.poll()
        if code == AWAY:
            self.said.append(self.worker.said.read_text())
            self.worker = self._trial.start()
        elif code is not None:
            assert code == 0, self.worker.said.read_text()[-4000:]
        return code == 0


def hurt(trial: Trial, hurts: dict[int, Callable[[], None]]) -> Patient:
    """Send everything in parts, do something to a server before some of them, and judge."""
    patient = Patient(trial)
    with open_client(trial.pipeline.kafka, PUBLISHER) as client:
        for number, part in enumerate(shares(trial.traffic.rows, PARTS)):
            hurts.get(number, lambda: None)()
            publish(client, trial.pipeline.raw, part)
            patient.look()
    trial.complete.touch()
    until("it comes to its end", patient.look, RECOVERY_SECONDS_MAX)
    prove(trial)
    return patient


@contextmanager
def standing_still(server: Server) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Yield what pauses a server, and what waits until it goes on, which it does by itself."""
    timer = threading.Timer(PAUSE_SECONDS, server.resume)

    def pause() -> None:
        server.pause()
        timer.start()

    try:
        yield pause, timer.join
    finally:
        if timer.ident is not None:
            timer.join()


@contextmanager
def no_catalog(cluster: Services) -> Iterator[None]:
    """Kill every node of the catalog, and let them come back together behind the block."""
    nodes = [server for name, server in cluster.servers.items() if name.startswith("cassandra")]
    for node in nodes:
        node.kill()
    try:
        yield
    finally:
        restarts = [threading.Thread(target=node.restart) for node in nodes]
        for restart in restarts:
            restart.start()
        for restart in restarts:
            restart.join()


def grown(processes: Callable[[], Iterable[psutil.Process]], seconds: float) -> dict[int, int]:
    """Return by how much each of the processes that are there grew, at most, within a time."""
    first: dict[int, int] = {}
    most: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for one in processes():
            with suppress(psutil.NoSuchProcess):
                size = one.memory_info().rss
                most[one.pid] = max(most.get(one.pid, 0), size - first.setdefault(one.pid, size))
        time.sleep(LOOK_SECONDS)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kafka-1", "kafka-2", "kafka-3", "cassandra-2", "cassandra-3"])
def test_a_server_killed_and_started_again_under_load(
    name: str, cluster: Services, trial: Trial
) -> None:
    server = cluster.servers[name]
    hurt(trial, {3: server.kill, 8: server.restart})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kafka-2", "cassandra-2"])
def test_a_server_that_stands_still(name: str, cluster: Services, trial: Trial) -> None:
    with standing_still(cluster.servers[name]) as (pause, _):
        hurt(trial, {3: pause})


@pytest.mark.slow
def test_without_any_catalog_it_waits_says_so_and_holds_no_more(
    cluster: Services, trial: Trial
) -> None:
    parts = shares(trial.traffic.rows, 2)
    patient = Patient(trial)

    def worker() -> list[psutil.Process]:
        patient.look()
        return [psutil.Process(patient.worker.process.pid)]

    def told() -> bool:
        patient.look()
        return bool(patient.said)

    trial.send(parts[0])
    with no_catalog(cluster):
        trial.send(parts[1])
        assert max(grown(worker, PAUSE_SECONDS).values()) < GROWTH_BYTES_MAX
        until("it gives up, so that somebody sees it", told, RECOVERY_SECONDS_MAX)
        assert all(any(means in said for means in MEANINGS) for said in patient.said)
    trial.complete.touch()
    until("it comes to its end", patient.look, RECOVERY_SECONDS_MAX)
    prove(trial)
