"""`delivery up` and its siblings on real servers, as a person or a script uses them."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cassandra.query import ConsistencyLevel
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dedup.errors import InvalidUsage, Unavailable
from delivery.services import cql, guard, ports, process
from delivery.services.ephemeral import Services
from delivery.services.instance import Instance, Request
from delivery.services.node import Health
from delivery.services.process import Process
from tests.servers import connected
from tests.unit.documented import undocumented

ANSWER_SECONDS = 30
COMMAND_SECONDS = 300

#: `--log-cli-level=info` shows what was measured.
LOG = logging.getLogger(__name__)

#: A test that starts a broker and is killed before it can stop it.
A_TEST = """
import sys
from delivery.services.ephemeral import ephemeral
with ephemeral(kafka=1) as services:
    print(services.started[0].pid, services.servers["kafka-1"].node.directory, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Cli:
    """The command, in one directory."""

    directory: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "delivery.cli", *arguments, "--dir", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        with self.start(*arguments, "--json") as command:
            stdout, stderr = command.communicate(timeout=COMMAND_SECONDS)
        assert stdout, stderr
        return command.returncode, json.loads(stdout)

    def health(self) -> dict[str, str]:
        return {node["name"]: node["health"] for node in self.run("status")[1]["nodes"]}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The command in an empty directory; what it starts ends with the test."""
    command = Cli(tmp_path)
    yield command
    instance = Instance(tmp_path)
    for node in instance.nodes():
        running = node.process()
        if running is not None:
            running.kill()
    known = instance.state()
    if known is not None:
        ports.release(known.id)


def write(bootstrap: str, topic: str, values: list[bytes], replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(ANSWER_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(ANSWER_SECONDS) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [m.value() or b"" for m in consumer.consume(count, ANSWER_SECONDS)]
    finally:
        consumer.close()


def ask(address: str, statement: str, consistency: int = cql.ONE) -> list[list[str | None]]:
    host, _, port = address.partition(":")
    return cql.query(host, int(port), statement, seconds=ANSWER_SECONDS, consistency=consistency)


def kill(cli: Cli, name: str) -> None:
    pid = {node["name"]: node["pid"] for node in cli.run("status")[1]["nodes"]}[name]
    victim = Process(pid=pid, started=guard.started(pid) or "ended")
    os.kill(pid, signal.SIGKILL)
    assert victim.wait(ANSWER_SECONDS)


def test_an_instance_from_up_to_down(cli: Cli) -> None:
    """One long story, because each step costs a start of real servers."""
    code, up = cli.run("up")
    assert code == 0
    assert undocumented("up", up) == set()
    assert up["changed"] is True
    assert all(node["seconds"] > 0 for node in up["nodes"])
    assert cli.health() == {"kafka-1": "running", "cassandra-1": "running"}

    write(up["kafka"], "orders", [b"one", b"two"])
    node = up["nodes"][1]["address"]
    ask(
        node,
        "CREATE KEYSPACE shop WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}",
    )
    ask(node, "CREATE TABLE shop.seals (lane text PRIMARY KEY, head text)")
    ask(node, "INSERT INTO shop.seals (lane, head) VALUES ('a', 'first')")

    code, again = cli.run("up")
    assert (code, again["changed"]) == (0, False)
    assert [n["pid"] for n in again["nodes"]] == [n["pid"] for n in up["nodes"]]

    code, refused = cli.run("up", "--kafka", "3")
    assert code == 2
    assert "delivery down --delete" in refused["error"]["hint"]

    kill(cli, "kafka-1")
    kill(cli, "cassandra-1")
    code, status = cli.run("status")
    assert code == 3
    assert undocumented("status", status) == set()
    assert [n["health"] for n in status["nodes"]] == ["dead", "dead"]
    assert "ended with signal 9" in status["nodes"][0]["detail"]

    code, healed = cli.run("up")
    assert code == 0
    assert [n["address"] for n in healed["nodes"]] == [n["address"] for n in up["nodes"]]
    assert read(up["kafka"], "orders", 2) == [b"one", b"two"]
    assert ask(node, "SELECT head FROM shop.seals WHERE lane = 'a'") == [["first"]]

    code, doctor = cli.run("doctor")
    assert undocumented("doctor", doctor) == set()
    found = {finding["check"]: finding["found"] for finding in doctor["findings"]}
    assert found["commitlog_sync"] == "batch"
    assert found["paxos_variant"] == "v2"
    code, logs = cli.run("logs", "cassandra-1", "--lines", "3")
    assert code == 0
    assert undocumented("logs", logs) == set()
    assert len(logs["nodes"]["cassandra-1"]) == 3

    code, down = cli.run("down")
    assert undocumented("down", down) == set()
    assert (code, down["stopped"]) == (0, ["kafka-1", "cassandra-1"])
    for node in cli.run("status")[1]["nodes"]:
        assert "was told to stop, and did" in node["detail"]
    assert cli.health() == {"kafka-1": "stopped", "cassandra-1": "stopped"}
    assert cli.run("down")[1]["stopped"] == []

    code, asked = cli.run("down", "--delete")
    assert code == 2
    assert "--yes" in asked["error"]["hint"]
    assert cli.run("down", "--delete", "--yes")[1]["deleted"] is True
    assert list(cli.directory.iterdir()) == []


def test_two_at_once_start_one_instance(cli: Cli) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda _: cli.run("up", "--no-cassandra"), range(2)))
    assert [code for code, _ in results] == [0, 0]
    assert sorted(up["changed"] for _, up in results) == [False, True]
    assert len({up["nodes"][0]["pid"] for _, up in results}) == 1


def test_up_killed_half_way_is_taken_up_by_the_next(cli: Cli) -> None:
    with cli.start("up", "--no-cassandra") as first:
        record = cli.directory / ".delivery" / "kafka-1" / guard.RECORD_NAME
        assert process.until(record.exists, ANSWER_SECONDS)
        first.kill()
    orphan = process.find(record.parent)
    code, up = cli.run("up")
    assert code == 0
    assert orphan is not None
    assert up["nodes"][0]["pid"] == orphan.pid, "the server of the killed command is the one"
    assert cli.health() == {"kafka-1": "running"}


def test_down_stops_only_its_own_and_a_test_dies_with_its_servers(cli: Cli) -> None:
    command = [sys.executable, "-c", A_TEST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as test:
        assert cli.run("up", "--no-cassandra")[0] == 0
        assert test.stdout is not None
        pid, directory = test.stdout.readline().decode().split()
        other = Process(pid=int(pid), started=guard.started(int(pid)) or "ended")
        assert cli.run("down")[1]["stopped"] == ["kafka-1"]
        assert other.alive(), "the other instance's broker is none of its business"
        test.kill()
    assert other.wait(ANSWER_SECONDS)
    root = Path(directory).parent.parent
    assert process.until(lambda: not root.exists(), ANSWER_SECONDS)


def test_a_server_is_paused_resumed_killed_and_restarted(kafka_services: Services) -> None:
    server = kafka_services.servers["kafka-1"]

    def health() -> Health:
        return server.node.health(wanted=True)[0]

    assert health() is Health.RUNNING
    server.pause()
    try:
        assert health() is Health.UNHEALTHY
    finally:
        server.resume()
    # It wakes with requests before ours: on a busy machine the first answer is a while away.
    assert process.until(lambda: health() is Health.RUNNING, ANSWER_SECONDS)
    server.kill()
    server.kill()
    assert health() is Health.DEAD
    with pytest.raises(InvalidUsage, match="restart"):
        server.pause()
    server.restart()
    assert health() is Health.RUNNING


def test_a_server_that_does_not_start_shows_its_last_lines(cli: Cli) -> None:
    cli.run("up", "--no-cassandra")
    cli.run("down")
    meta = cli.directory / ".delivery" / "kafka-1" / "data" / "meta.properties"
    lines = meta.read_text().splitlines()
    meta.write_text("\n".join("node.id=7" if "node.id" in line else line for line in lines))
    code, failed = cli.run("up")
    assert code == 3
    assert failed["error"]["op"] == "start kafka-1"
    assert "it ended while starting" in failed["error"]["hint"]
    assert "Stored node id 7" in failed["error"]["hint"], "Kafka's own words"


def test_a_port_taken_while_the_server_was_down_is_named(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    try:
        instance.up(Request(kafka=1, cassandra=0), lambda _: None)
        instance.down(lambda _: None)
        known = instance.state()
        assert known is not None
        assert known.kafka is not None
        port = known.kafka.port
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(Unavailable, match="another program listens") as error,
        ):
            instance.up(Request(), lambda _: None)
        assert f"lsof -i :{port}" in error.value.hint
    finally:
        instance.down(lambda _: None, delete=True)


@pytest.mark.slow
def test_two_clusters_lose_a_broker_and_a_node_and_are_healed(cli: Cli) -> None:
    values = [str(number).encode() for number in range(100)]
    code, up = cli.run("up", "--kafka", "3", "--cassandra", "3")
    assert code == 0
    LOG.info("up: %s", {node["name"]: node["seconds"] for node in up["nodes"]})
    write(up["kafka"], "orders", values, replicas=3)
    addresses = {node["name"]: node["address"] for node in up["nodes"]}
    contact_points = [addresses[f"cassandra-{index}"].partition(":")[0] for index in (1, 2, 3)]
    port = int(addresses["cassandra-1"].partition(":")[2])
    with connected(contact_points, port) as session:
        session.execute(
            "CREATE KEYSPACE shop WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 3}",
        )
        session.execute("CREATE TABLE shop.seals (lane blob PRIMARY KEY)")
        insert = session.prepare("INSERT INTO shop.seals (lane) VALUES (?)")
        insert.consistency_level = ConsistencyLevel.QUORUM
        for value in values:
            session.execute(insert, (value,))

    kill(cli, "kafka-2")
    kill(cli, "cassandra-3")
    code, status = cli.run("status")
    assert code == 3
    dead = {node["name"] for node in status["nodes"] if node["health"] == "dead"}
    assert dead == {"kafka-2", "cassandra-3"}
    assert read(up["kafka"], "orders", len(values)) == values, "a majority goes on"

    code, healed = cli.run("up")
    assert code == 0
    LOG.info("healed: %s", {node["name"]: node["seconds"] for node in healed["nodes"]})
    assert {n["name"] for n in healed["nodes"] if n["seconds"] is not None} == dead
    assert set(cli.health().values()) == {"running"}
    assert read(up["kafka"], "orders", len(values)) == values
    rows = ask(addresses["cassandra-3"], "SELECT lane FROM shop.seals", cql.ALL)
    assert {row[0] for row in rows} == {value.decode() for value in values}
    assert len(cli.run("down", "--delete", "--yes")[1]["stopped"]) == 6
