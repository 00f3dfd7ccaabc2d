"""The settings of a Spark standalone cluster, and what an instance remembers of it."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path

import pytest

from dedup.errors import InvalidUsage, Unavailable
from delivery.services import state
from delivery.services.standalone import SERVERS, Standalone
from delivery.services.state import Request, State

CLUSTER = Standalone(nodes=SERVERS, port=21000, ui_port=21001)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "project" / state.HOME_NAME
    path.mkdir(parents=True)
    return path


def test_every_server_has_an_address_of_its_own_and_the_same_ports() -> None:
    assert CLUSTER.master == "spark://127.0.0.1:21000"
    for index in (1, 2, 3):
        host = f"127.0.0.{index}"
        assert CLUSTER.ports(index) == {21000: host, 21001: host}
        command = CLUSTER.command(index, Path("node"), Path("jvm/bin/java"), [])
        assert command[command.index("--host") + 1] == host
        assert f"SPARK_LOCAL_IP={host}" in command
        assert "JAVA_HOME=jvm" in command


def test_the_first_is_the_master_and_the_others_are_its_workers() -> None:
    first, *others = (
        CLUSTER.command(index, Path("node"), Path("jvm/bin/java"), []) for index in (1, 2, 3)
    )
    assert "org.apache.spark.deploy.master.Master" in first
    for command in others:
        assert "org.apache.spark.deploy.worker.Worker" in command
        assert command[-1] == CLUSTER.master
        assert command[command.index("--work-dir") + 1] == "node/work"


def test_an_instance_remembers_its_spark(home: Path) -> None:
    made = state.create(home, Request(kafka=0, cassandra=0, spark=True), ephemeral=False)
    assert made.spark is not None
    assert [cluster.kind for cluster in made.clusters] == ["spark"]
    assert State.load(home) == made
    with pytest.raises(InvalidUsage, match="delivery down --delete"):
        state.refuse_changes(made, Request(spark=False), home)
    state.refuse_changes(made, Request(spark=True), home)
    state.refuse_changes(made, Request(), home)


def test_an_instance_from_before_there_was_one_has_none(home: Path) -> None:
    made = state.create(home, Request(kafka=1, cassandra=0), ephemeral=False)
    path = home / state.STATE_NAME
    document = json.loads(path.read_text())
    del document["spark"]
    path.write_text(json.dumps(document))
    assert State.load(home) == made
    with pytest.raises(InvalidUsage, match="--spark True"):
        state.refuse_changes(made, Request(spark=True), home)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = Standalone(nodes=SERVERS, port=port, ui_port=port)
    with pytest.raises(Unavailable, match="applications go on without it"):
        gone.check(1)
