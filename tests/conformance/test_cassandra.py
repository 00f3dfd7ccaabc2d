"""What only the Cassandra store promises: sessions, unknown outcomes, chunks in bounded bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from dedup.catalog.cassandra import CassandraStore, cql, session
from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from delivery.services.ephemeral import Server
from tests.conformance.cassandra_kit import run
from tests.conformance.values import (
    attempt,
    first,
    following,
    incarnation,
    raw_lane,
    slot,
    successor,
)

WAIT_SECONDS = 60


@pytest.fixture
def store(cluster_url) -> Iterator[CassandraStore]:
    with closing(CassandraStore.open(cluster_url)) as opened:
        yield opened


@pytest.fixture
def node(cassandra_services) -> Iterator[Server]:
    """Give the node, running again afterwards."""
    server = cassandra_services.servers["cassandra-1"]
    yield server
    server.resume()


@pytest.fixture
def hasty(cluster_url) -> Iterator[CassandraStore]:
    """Give a store that waits a second for an answer, warmed up."""
    with closing(CassandraStore.open(cluster_url, request_seconds=1.0)) as opened:
        row = raw_lane()
        name = f"warm/{row.ref.attempt.hex()}"
        opened.create(name, row, b"entry")
        opened.append(name, row.ref, successor(row.ref), b"head", b"entry")
        opened.entries(name, row.ref.incarnation, 0, 1)
        opened.put(Blob.OUTPUTS, slot(name, row.ref), [b"x"])
        opened.read(name)
        yield opened


# Sessions ---------------------------------------------------------------------------------------


def test_a_forked_process_makes_its_own_session(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry")
    mine = store._connection._here().session
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            same = store.read(lane) == row and store._connection._here().session is not mine
            os.write(writing, b"good" if same else b"bad")
            store.close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"good"
    assert os.waitpid(child, 0) == (child, 0)
    assert store._connection._here().session is mine
    assert store.read(lane) == row


SCRIPT = """
import os, sys
from dedup.catalog.cassandra import CassandraStore
store = CassandraStore.open(sys.argv[1])
list(store.lanes())
if sys.argv[2] == "fork":
    child = os.fork()
    list(store.lanes())
    if child:
        assert os.waitpid(child, 0)[1] == 0
    sys.exit(0)
if sys.argv[2] == "close":
    store.close()
    store.close()
print("done")
"""


@pytest.mark.parametrize("end", ["close", "forget", "fork"])
def test_the_interpreter_ends_whatever_was_left_open(cluster_url, end):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, cluster_url, end],
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_closing_ends_the_threads(cluster_url):
    before = set(threading.enumerate())
    store = CassandraStore.open(cluster_url)
    assert set(threading.enumerate()) > before
    store.close()
    # The driver's event loop, one for all sessions of a process, is a daemon and stays.
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert left <= {"event_loop"}
    with pytest.raises(InvalidUsage, match="it is closed"):
        store.read("lane")


# Comparisons ------------------------------------------------------------------------------------


def test_an_append_carried_out_twice_was_won(store, lane):
    row = raw_lane()
    assert store.create(lane, row, b"entry 0")
    assert store.create(lane, row, b"entry 0")
    mine = successor(row.ref)
    assert store.append(lane, row.ref, mine, b"head", b"mine")
    assert store.append(lane, row.ref, mine, b"head", b"mine")
    assert store.append(lane, mine, successor(mine), b"head", b"next")
    assert store.append(lane, row.ref, mine, b"head", b"mine"), "with somebody's next on top"
    assert not store.append(lane, row.ref, successor(row.ref), b"head", b"other")
    assert [entry for _, entry in store.entries(lane, mine.incarnation, 1, 9)] == [b"mine", b"next"]
    fresh = raw_lane(replace(mine, incarnation=incarnation(), attempt=attempt()))
    head = store.read(lane).ref
    assert store.reincarnate(lane, head, fresh)
    assert store.reincarnate(lane, head, fresh)
    assert not store.reincarnate(lane, head, raw_lane())


def test_an_append_whose_answer_is_late_is_resolved_and_won_once(hasty, store, node, lane):
    """The node stops with the append in its socket, and carries it out when it goes on."""
    head, seal = first()
    mine, rival = Catalog(hasty), Catalog(store)
    assert rival.create(lane, head, seal)
    assert mine.load(lane).head == head
    (after, sealed), (other, other_seal) = following(head), following(head)
    node.pause()
    with pytest.raises(Indeterminate, match="repeat the same attempt"):
        mine.append(lane, head.ref, after, sealed)
    with pytest.raises(Unavailable, match="did not happen"):
        mine.load(lane)
    with pytest.raises(Indeterminate):
        mine.store.put(Blob.OUTPUTS, slot(lane, sealed.ref), [b"x"])
    node.resume()
    rival_won = rival.append(lane, head.ref, other, other_seal)
    found = until_resolved(mine, lane, sealed)
    mine_won = found.row.head == head and mine.append(lane, head.ref, after, sealed)
    mine_won = mine_won or (found.seal is not None and found.seal.ref == sealed.ref)
    assert mine_won != rival_won, "one winner"
    winner = sealed if mine_won else other_seal
    assert rival.seals(lane, head.ref.incarnation, 1, 9) == [winner]
    assert rival.load(lane).head.ref == winner.ref


def until_resolved(catalog: Catalog, lane: str, seal):
    """Ask until the node answers again."""
    for _ in range(WAIT_SECONDS):
        try:
            return catalog.resolve(lane, seal.ref.incarnation, seal.ref.seq)
        except Unavailable:  # it takes a moment until the connection is there again
            threading.Event().wait(1.0)
    raise AssertionError("the node went on, and did not answer")


# Chunks -----------------------------------------------------------------------------------------


def test_seals_pass_while_chunks_fill_the_socket(store, lane):
    """The driver refuses requests while its socket takes no more; nobody may notice."""
    row = raw_lane()
    store.create(lane, row, b"entry")
    chunks = [os.urandom(512 * 1024) for _ in range(64)]
    with ThreadPoolExecutor(2) as pool:
        stored = [
            pool.submit(store.put, Blob.OUTPUTS, slot(f"{lane}/{name}", row.ref), chunks)
            for name in ("a", "b")
        ]
        ref, appended = row.ref, 0
        while not all(future.done() for future in stored):
            following_ref = successor(ref)
            assert store.append(lane, ref, following_ref, b"head", b"entry")
            ref, appended = following_ref, appended + 1
        for future in stored:
            future.result()
    assert appended > 0
    for name in ("a", "b"):
        assert store.get(Blob.OUTPUTS, slot(f"{lane}/{name}", row.ref)) == chunks


def test_bytes_under_way_are_bounded_over_all_windows(store):
    made = store._connection._here()
    made.take(session.IN_FLIGHT_BYTES_MAX - 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(made.take, 2)
        assert not waiting.done()
        made.give(session.IN_FLIGHT_BYTES_MAX - 1)
        waiting.result(WAIT_SECONDS)
    made.give(2)
    made.take(10 * session.IN_FLIGHT_BYTES_MAX)  # alone, even the largest may go
    made.give(10 * session.IN_FLIGHT_BYTES_MAX)
    assert made._bytes_free == session.IN_FLIGHT_BYTES_MAX
    assert made._requests_free == session.IN_FLIGHT_REQUESTS_MAX


def test_what_fails_is_reported_after_all_have_ended(store, lane):
    """A chunk that is larger than what a server takes in one piece, between two good ones."""
    place = slot(lane, raw_lane().ref)
    with pytest.raises(InvalidUsage, match=f"store outputs: {lane}.*it did not happen"):
        store.put(Blob.OUTPUTS, place, [b"first", bytes(10 * 1024 * 1024), b"last"])
    assert store.get(Blob.OUTPUTS, place)[0] == b"first"
    assert list(store.slots(Blob.OUTPUTS, lane)) == [place]
    made = store._connection._here()
    assert made._bytes_free == session.IN_FLIGHT_BYTES_MAX


def test_chunks_that_come_after_the_deletion_are_found_by_the_next(store, lane):
    place = slot(lane, raw_lane().ref)
    store.put(Blob.OUTPUTS, place, [b"a", b"b"])
    store.delete(Blob.OUTPUTS, [place])
    assert list(store.slots(Blob.OUTPUTS, lane)) == []
    late = (lane, place.incarnation, place.seq, place.attempt, 1, b"late")
    store._connection.write(cql.CHUNKS[Blob.OUTPUTS].put, late, lane)
    assert list(store.slots(Blob.OUTPUTS, lane)) == [place]
    store.delete(Blob.OUTPUTS, store.slots(Blob.OUTPUTS, lane))
    assert list(store.slots(Blob.OUTPUTS, lane)) == []
    store.put(Blob.OUTPUTS, place, [b"again"])
    assert list(store.slots(Blob.OUTPUTS, lane)) == [place]
    assert store.get(Blob.OUTPUTS, place) == [b"again"]


PUTTING = """
import os, sys
from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.store import Blob
from dedup.model import Slot
store = CassandraStore.open(sys.argv[1])
incarnation = os.urandom(16)
for seq in range(1 << 30):
    store.put(Blob.OUTPUTS, Slot(sys.argv[2], incarnation, seq, os.urandom(16)), [b"x" * 9000] * 4)
    print(seq, flush=True)
"""


def test_every_chunk_of_a_killed_writer_is_in_a_slot_that_is_listed(
    store, cluster_url, admin, lane
):
    for number in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", PUTTING, cluster_url, lane], stdout=subprocess.PIPE, text=True
        )
        with writer:
            for _ in range(1 + number * 7):
                assert writer.stdout.readline()
            writer.kill()
    listed = set(store.slots(Blob.OUTPUTS, lane))
    stored = run(
        admin,
        cluster_url,
        "SELECT incarnation, seq, attempt FROM KS.outputs WHERE lane = %s ALLOW FILTERING",
        (lane,),
    )
    found = {(row.incarnation, row.seq, row.attempt) for row in stored}
    assert found
    assert found <= {(place.incarnation, place.seq, place.attempt) for place in listed}
    store.delete(Blob.OUTPUTS, listed)
    assert list(store.slots(Blob.OUTPUTS, lane)) == []
