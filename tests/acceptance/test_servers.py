"""Brokers and nodes of the catalog are killed and stand still under a pipeline that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from delivery import Indeterminate, Unavailable
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.ephemeral import Server, Services, ephemeral
from tests.acceptance.growth import Processes, Sizes, watched
from tests.acceptance.kit import Trial, answered, delivered, prove, publish, shares, until
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
#: What is published while nobody can write, in records of so many bytes: several times what a worker
#: may grow by meanwhile, which is its buffers and what clients hold. Measured: 24 MiB; one that went on
#: reading, 400.
HEAVY, PAD_BYTES = 8_000, 64 * 1024
INPUT_BYTES_MIN = 448 * MIB
GROWTH_BYTES_MAX = 128 * MIB
#: Records that a worker has done, and is as large as it is when all is well; and the part of the others
#: that it has begun when the catalog stops to answer.
WARM, BEGUN = 300, 1_000
#: What a worker that gives up says of what it tried: one of them, always.
MEANINGS = ("did not happen", "may have happened", "nothing was read or written")
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
def pipeline(cluster: Services, unique: Callable[[str], str], tmp_path: Path) -> Pipeline:
    """A pipeline on all of them."""
    hosts = ",".join(
        f"{host}:{cluster.cassandra.port}" for host in cluster.cassandra.contact_points
    )
    return Pipeline(
        name=unique("shop"),
        kafka=cluster.kafka.bootstrap,
        catalog=f"cassandra://{hosts}/servers",
        home=str(tmp_path / "home"),
    )


@pytest.fixture
def trial(pipeline: Pipeline, tmp_path: Path) -> Trial:
    """It with little traffic."""
    return Trial.of(pipeline, tmp_path, seed=53, count=RECORDS)


@pytest.fixture
def heavy(pipeline: Pipeline, tmp_path: Path) -> Trial:
    """It with more traffic than any of its processes may hold."""
    trial = Trial.of(
        replace(pipeline, brief=True), tmp_path, seed=59, count=HEAVY, pad_bytes=PAD_BYTES
    )
    assert sum(len(row.value or b"") for row in trial.traffic.rows) > INPUT_BYTES_MIN
    return trial


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
def no_catalog(cluster: Services) -> Iterator[Callable[[], None]]:
    """Let every node of the catalog stand still, as machines without a network do.

    Yield what kills them; they come back together behind the block.
    """
    nodes = [server for name, server in cluster.servers.items() if name.startswith("cassandra")]

    def kill() -> None:
        for node in nodes:
            node.kill()

    for node in nodes:
        node.pause()
    try:
        yield kill
    finally:
        restarts = [threading.Thread(target=node.restart) for node in nodes]
        for restart in restarts:
            restart.start()
        for restart in restarts:
            restart.join()


@contextmanager
def swamped(trial: Trial, processes: Processes, cluster: Services) -> Iterator[None]:
    """Publish all but the first records while no node answers; hold the processes to a bound.

    Behind that, and in the block, no node is there. They have done the first records.
    """
    quiet = Sizes()
    quiet.look(processes)
    rows = trial.traffic.rows
    with watched(processes) as sizes:
        trial.send(rows[WARM:BEGUN])
        with no_catalog(cluster) as kill:
            trial.send(rows[BEGUN:])
            time.sleep(PAUSE_SECONDS)  # what could be read has been by then
            kill()
            yield
            grown = sizes.largest - quiet.largest
    assert grown < GROWTH_BYTES_MAX, f"{grown // MIB} MiB more, of {quiet.largest // MIB}"


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
    cluster: Services, heavy: Trial
) -> None:
    patient = Patient(heavy)

    def worker() -> list[psutil.Process]:
        patient.look()
        return [psutil.Process(patient.worker.process.pid)]

    def told() -> bool:
        return bool(patient.said)

    heavy.send(heavy.traffic.rows[:WARM])
    delivered(heavy, patient.worker, RECOVERY_SECONDS_MAX)
    with swamped(heavy, worker, cluster):
        until("it gives up, so that somebody sees it", told, RECOVERY_SECONDS_MAX)
        assert all(any(means in said for means in MEANINGS) for said in patient.said)
    heavy.complete.touch()
    until("it comes to its end", patient.look, RECOVERY_SECONDS_MAX)
    prove(heavy, stories=False)
