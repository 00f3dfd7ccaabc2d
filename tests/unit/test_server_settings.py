"""What brokers and nodes are told, and how an instance remembers itself."""

from __future__ import annotations

import base64
import itertools
import json
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dedup.errors import Corrupt, InvalidUsage, Unavailable
from delivery.services import cql, ports, state
from delivery.services.cassandra import Cassandra, variants
from delivery.services.doctor import fits
from delivery.services.kafka import Kafka
from delivery.services.state import Request, State

SECONDS = 5.0


def a_kafka(nodes: int) -> Kafka:
    return Kafka(nodes=nodes, port=20001, controller_port=20002, cluster_id="D")


def a_cassandra(nodes: int) -> Cassandra:
    jmx = tuple(range(20005, 20005 + nodes))
    return Cassandra(nodes=nodes, port=20003, storage_port=20004, jmx_ports=jmx)


@pytest.mark.parametrize(("nodes", "replicas", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_what_kafka_keeps_survives_the_loss_of_a_minority(
    nodes: int, replicas: str, in_sync: str
) -> None:
    settings = a_kafka(nodes).properties(1, Path("/x"))
    factors = {key: value for key, value in settings.items() if "replication.factor" in key}
    assert set(factors) == {
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
    }
    assert set(factors.values()) == {replicas}
    quorums = {value for key, value in settings.items() if "isr" in key or "insync" in key}
    assert quorums == {in_sync}


def test_brokers_of_a_cluster_share_ports_and_differ_in_address() -> None:
    second = a_kafka(3).properties(2, Path("/x"))
    assert second["node.id"] == "2"
    assert second["listeners"] == "PLAINTEXT://127.0.0.2:20001,CONTROLLER://127.0.0.2:20002"
    assert second["controller.quorum.voters"] == (
        "1@127.0.0.1:20002,2@127.0.0.2:20002,3@127.0.0.3:20002"
    )
    assert a_kafka(3).bootstrap == "127.0.0.1:20001,127.0.0.2:20001,127.0.0.3:20001"


def test_nodes_of_a_cluster_divide_the_ring_evenly() -> None:
    tokens = [int(str(a_cassandra(3).config(i, Path("/x"))["initial_token"])) for i in (1, 2, 3)]
    assert tokens[0] == -(2**63)
    gaps = {after - before for before, after in itertools.pairwise(tokens)}
    assert all(abs(gap - 2**64 // 3) <= 1 for gap in gaps)
    assert [a_cassandra(1).config(1, Path("/x"))["initial_token"]] == ["0"]


def test_nodes_of_a_cluster_have_jmx_ports_of_their_own() -> None:
    cluster = a_cassandra(3)
    used = [cluster.ports(index) for index in (1, 2, 3)]
    jmx = [port for ports_ in used for port, host in ports_.items() if port >= 20005]
    assert jmx == [20005, 20006, 20007]
    assert [ports_[20003] for ports_ in used] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert cluster.url == "cassandra://127.0.0.1,127.0.0.2,127.0.0.3:20003"


def test_three_nodes_take_less_memory_each() -> None:
    def heap(nodes: int) -> int:
        command = a_cassandra(nodes).command(1, Path("/x"), Path("java"), [Path("jamm-1.jar")])
        return next(int(o[4:-1]) for o in command if o.startswith("-Xmx"))

    assert heap(1) == 768
    assert 384 <= heap(3) <= 512


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "project" / state.HOME_NAME
    path.mkdir(parents=True)
    return path


def test_an_instance_remembers_itself(home: Path) -> None:
    made = state.create(home, Request(kafka=3, cassandra=1), ephemeral=False)
    assert State.load(home) == made
    assert made.kafka is not None
    assert len(base64.urlsafe_b64decode(made.kafka.cluster_id + "==")) == 16
    taken = {port for c in made.clusters for i in range(1, c.nodes + 1) for port in c.ports(i)}
    assert len(taken) == 5, "client and controller; client, storage and JMX"
    assert all(ports.holder(port) is not None for port in taken)


def test_given_ports_are_used(home: Path) -> None:
    kafka_port, cassandra_port = ports._candidates()[:2]
    request = Request(kafka_port=kafka_port, cassandra_port=cassandra_port)
    made = state.create(home, request, ephemeral=False)
    assert made.kafka is not None
    assert made.cassandra is not None
    assert (made.kafka.port, made.cassandra.port) == (kafka_port, cassandra_port)


@pytest.mark.parametrize(
    "request_", [Request(kafka=2), Request(kafka=0, cassandra=0), Request(cassandra=-1)]
)
def test_counts_that_make_no_sense_are_refused(home: Path, request_: Request) -> None:
    with pytest.raises(InvalidUsage, match="nothing was started"):
        state.refuse_nonsense(request_, home)


@pytest.mark.parametrize(
    "request_",
    [Request(kafka=3), Request(cassandra=1), Request(kafka_port=1), Request(cassandra_port=1)],
)
def test_an_instance_cannot_be_changed(home: Path, request_: Request) -> None:
    made = state.create(home, Request(kafka=1, cassandra=0), ephemeral=False)
    with pytest.raises(InvalidUsage, match="delivery down --delete"):
        state.refuse_changes(made, request_, home)
    state.refuse_changes(made, Request(kafka=1, cassandra=0), home)
    state.refuse_changes(made, Request(), home)


def test_a_state_of_another_version_is_refused(home: Path) -> None:
    state.create(home, Request(), ephemeral=False)
    path = home / state.STATE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(InvalidUsage, match="another version"):
        State.load(home)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}'])
def test_a_damaged_state_is_named(home: Path, text: str) -> None:
    (home / state.STATE_NAME).write_text(text)
    with pytest.raises(Corrupt, match=state.STATE_NAME):
        State.load(home)


def test_one_command_at_a_time_and_the_other_says_that_it_waits(home: Path) -> None:
    said = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with state.locked(home, lambda _: said.set()):
            entered.set()

    other = threading.Thread(target=second)
    with state.locked(home, lambda _: None):
        other.start()
        assert said.wait(SECONDS)
        assert not entered.is_set()
    assert entered.wait(SECONDS)
    other.join()


def test_whoever_waited_for_a_deletion_starts_anew(home: Path) -> None:
    said = threading.Event()
    seen: list[bool] = []

    def second() -> None:
        with state.locked(home, lambda _: said.set()):
            seen.append((home / state.LOCK_NAME).exists())

    other = threading.Thread(target=second)
    with state.locked(home, lambda _: None):
        other.start()
        assert said.wait(SECONDS)
        (home / state.LOCK_NAME).unlink()
        home.rmdir()
    other.join()
    assert seen == [True]


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("3.30.1", ">=3.30.1", True),
        ("3.29.9", ">=3.30.1", False),
        ("2.3.3", "<3,>=2.2", True),
        ("3.0.0", "<3,>=2.2", False),
        ("4.2.0", "<4.3,>=4.2.0", True),
        ("2.9.post0", ">=2.7", True),
        ("17.0.9.2", "==17.0.9.2", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, expected: bool) -> None:  # noqa: FBT001  a table
    assert fits(version, bounds) is expected


def answering(replies: list[bytes]) -> Callable[[], int]:
    """Make a server that answers each request with the next reply, then closes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, server:
            for reply in replies:
                connection.recv(4096)
                connection.sendall(reply)
            # Closing with a request unread would reset the connection instead of ending it.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return lambda: int(server.getsockname()[1])


def frame(opcode: int, body: bytes) -> bytes:
    return bytes([0x84, 0, 0, 0, opcode]) + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([b""], "closed in the middle"),
        ([frame(0x02, b"")], "closed in the middle"),
        ([frame(0x00, b"\0\0\x10\0\0\x04down")], "error 0x1000: down"),
        ([frame(0x02, b"")[:5] + b"\x7f\xff\xff\xff"], "no answer to a health check"),
        ([frame(0x02, b""), frame(0x08, b"\0\0\0\x02\0")], "shorter than it says"),
    ],
)
def test_a_broken_answer_is_an_unhealthy_node(replies: list[bytes], message: str) -> None:
    port = answering(replies)()
    with pytest.raises(Unavailable, match=message):
        cql.query("127.0.0.1", port, "SELECT 1", seconds=SECONDS)


def test_a_silent_node_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Unavailable, match="timed out"),
    ):
        cql.query("127.0.0.1", silent.getsockname()[1], "SELECT 1", seconds=0.1)


def test_a_login_is_asked_for_in_words() -> None:
    port = answering([frame(0x03, b"")])()
    with pytest.raises(InvalidUsage, match="login"):
        variants("127.0.0.1", port)
