"""Three nodes of which one is killed or stopped at any moment, and writers that are killed too.

A majority stays, so whoever lives goes on; what was acknowledged is there; no position has two
winners; whoever lost learned who won.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.cassandra import CassandraStore
from delivery.services.ephemeral import Services, ephemeral
from tests.conformance import test_processes
from tests.conformance.cassandra_kit import cassandra_url
from tests.conformance.patient_writer import open_patiently
from tests.conformance.test_processes import RACERS, check, said, start_lane, writers

pytestmark = pytest.mark.slow

KILLS = 50
RACE_SEQ_MAX = 200
WAIT_SECONDS = 120
#: Catalogs that are made by several at once, and by how many.
NEW, AT_ONCE = 6, 8
#: How long a node stays stopped: longer than a request, about as long as the driver needs to see it.
STOPPED_SECONDS_MAX = 8.0


@pytest.fixture(scope="module")
def three() -> Iterator[Services]:
    with ephemeral(kafka=0, cassandra=3, report=print) as services:
        yield services


@pytest.fixture(scope="module")
def three_url(three) -> str:
    """Give the URL of a catalog that was made while all nodes were well."""
    url = cassandra_url(three.cassandra, "conformance")
    CassandraStore.open(url).close()
    return url


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Use the writer that tries again, and read patiently too."""
    monkeypatch.setattr(test_processes, "WRITER", Path(__file__).with_name("patient_writer.py"))
    monkeypatch.setattr(test_processes, "open_catalog", open_patiently)


class Saboteur(threading.Thread):
    """Hurts one node after another until it is told to stop, and leaves all of them running."""

    def __init__(self, services: Services, seed: int) -> None:
        super().__init__(name="saboteur")
        self._servers = [services.servers[f"cassandra-{index}"] for index in (1, 2, 3)]
        self._rng = random.Random(seed)
        self._end = threading.Event()
        self.done: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._hurt()
        except BaseException as error:  # raised by `stop`, in the test's own thread
            self.error = error
            raise

    def _hurt(self) -> None:
        server = self._rng.choice(self._servers)
        if self._rng.random() < 0.7:
            server.pause()
            self._end.wait(self._rng.uniform(0.1, STOPPED_SECONDS_MAX))
            server.resume()
            self.done.append(f"paused {server.node.name}")
        else:
            server.kill()
            self._end.wait(self._rng.uniform(0.1, STOPPED_SECONDS_MAX))
            server.restart()
            self.done.append(f"killed {server.node.name}")
        self._end.wait(self._rng.uniform(0.5, 3.0))

    def stop(self) -> None:
        self._end.set()
        self.join(WAIT_SECONDS)
        assert self.error is None
        assert not self.is_alive()


@pytest.fixture
def saboteur(three) -> Iterator[Saboteur]:
    thread = Saboteur(three, random.randrange(1 << 32))
    thread.start()
    yield thread
    thread.stop()


def test_a_cluster_keeps_three_copies(three_url):
    with closing(CassandraStore.open(three_url)) as store:
        assert store.check() == []


def test_catalogs_that_several_make_at_once_are_made_once(three):
    """Nodes learn of tables one after another, and everybody may ask another node."""
    for number in range(NEW):
        url = cassandra_url(three.cassandra, f"new{number}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            opened = list(pool.map(CassandraStore.open, [url] * AT_ONCE))
        for store in opened:
            store.close()


def test_eight_processes_race_while_nodes_come_and_go(three_url, saboteur, lane):
    catalog = test_processes.open_catalog(three_url)
    owner = start_lane(catalog, lane).ref.incarnation
    with writers(RACERS, three_url, lane, RACE_SEQ_MAX, 6000) as running:
        codes = [writer.rest() for writer in running]
    assert codes == [0] * RACERS
    saboteur.stop()
    winners = check(catalog, lane, owner, 0)
    for word, others in (("sealed", said(running, "sealed")), ("lost", said(running, "lost"))):
        for seq, names in others.items():
            assert {winners[seq].hex()} == set(names), f"{word} at {seq}, {saboteur.done}"
    assert all(len(names) == 1 for names in said(running, "sealed").values())
    assert saboteur.done, "no node was hurt"
    catalog.store.close()


def test_kill_9_of_writers_while_nodes_come_and_go(three_url, saboteur, lane):
    test_processes.kill_rounds(three_url, lane, KILLS, random.randrange(1 << 32))
    saboteur.stop()
    assert any(line.startswith("paused") for line in saboteur.done)
    assert any(line.startswith("killed") for line in saboteur.done)
