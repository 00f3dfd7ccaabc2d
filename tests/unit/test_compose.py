"""docker-compose.yml runs the same servers as `delivery up`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from delivery.services import cassandra, kafka
from delivery.services.jars import Tree, pins

FILE = Path(__file__).resolve().parent.parent.parent / "docker-compose.yml"
COMPOSE_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document = yaml.safe_load(FILE.read_text())
    assert isinstance(document, dict)
    return document


def version(tree: Tree, artifact: str) -> str:
    return next(pin.version for pin in pins(tree) if pin.artifact == artifact)


def test_the_images_are_of_the_versions_that_the_jars_are(compose: dict[str, Any]) -> None:
    services = compose["services"]
    expected_kafka = f"apache/kafka:{version(Tree.KAFKA, 'kafka_2.13')}"
    expected_cassandra = f"cassandra:{version(Tree.CASSANDRA, 'cassandra-all')}"
    assert services["kafka"]["image"] == expected_kafka
    assert services["cassandra"]["image"] == expected_cassandra


def test_kafka_has_the_settings_of_a_single_broker(compose: dict[str, Any]) -> None:
    environment = compose["services"]["kafka"]["environment"]
    settings = {
        "KAFKA_" + key.upper().replace(".", "_"): value for key, value in kafka.settings(1).items()
    }
    of_a_place = {
        "KAFKA_HEAP_OPTS",
        "KAFKA_NODE_ID",
        "KAFKA_CONTROLLER_QUORUM_VOTERS",
        "KAFKA_LISTENERS",
        "KAFKA_ADVERTISED_LISTENERS",
        "KAFKA_LOG_DIRS",
    }
    assert {key: environment[key] for key in environment.keys() - of_a_place} == settings
    assert environment["KAFKA_HEAP_OPTS"] == f"-Xmx{kafka.HEAP} -Xms{kafka.HEAP}"


def test_kafka_listens_where_it_says(compose: dict[str, Any]) -> None:
    service = compose["services"]["kafka"]
    environment = service["environment"]
    port = "${KAFKA_PORT:-9092}"
    assert environment["KAFKA_LISTENERS"].startswith(f"PLAINTEXT://:{port},")
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://127.0.0.1:{port}"
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert service["healthcheck"]["test"][-1] == f"127.0.0.1:{port}"


def test_cassandra_has_the_settings_of_a_single_node(compose: dict[str, Any]) -> None:
    ours = cassandra.Cassandra(nodes=1, port=9042, storage_port=7000, jmx_ports=(7199,))
    theirs = yaml.safe_load(compose["configs"]["cassandra"]["content"])
    differ = {
        "rpc_address": "0.0.0.0",  # noqa: S104  inside the container; published on 127.0.0.1 only
        "broadcast_rpc_address": "127.0.0.1",
    }
    data = Path("/var/lib/cassandra")
    expected = ours.config(1, data.parent / "x") | differ
    moved = {
        key: _moved(value, str(data.parent / "x" / cassandra.DATA_NAME), str(data))
        for key, value in expected.items()
    }
    assert theirs == moved


def _moved(value: object, old: str, new: str) -> object:
    if isinstance(value, list):
        return [_moved(each, old, new) for each in value]
    return value.replace(old, new) if isinstance(value, str) else value


def test_cassandra_starts_with_the_same_options(compose: dict[str, Any]) -> None:
    service = compose["services"]["cassandra"]
    environment = service["environment"]
    ours = cassandra.Cassandra(nodes=1, port=9042, storage_port=7000, jmx_ports=(7199,))
    command = ours.command(1, Path("/x"), Path("java"), [Path("jamm-0.jar")])
    options = environment["JVM_EXTRA_OPTS"].split()
    mounted = {f"file://{each['target']}" for each in service["configs"]}
    assert options.pop(0).removeprefix("-Dcassandra.config=") in mounted
    assert set(options) <= set(command)
    megabytes = {re.sub(r"\D", "", environment[key]) for key in ("MAX_HEAP_SIZE", "HEAP_NEWSIZE")}
    assert {f"-Xmx{max(megabytes, key=int)}m", f"-Xmn{min(megabytes, key=int)}m"} <= set(command)


@pytest.mark.parametrize("name", ["kafka", "cassandra"])
def test_a_service_is_checked_kept_and_bounded(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= service["healthcheck"].keys()
    volume = service["volumes"][0].partition(":")[0]
    assert volume in compose["volumes"]
    assert service["logging"]["options"] == {"max-size": "16m", "max-file": "2"}
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_docker_reads_the_file_where_there_is_docker() -> None:
    """Where there is none, the structure above has been checked all the same."""
    assert FILE.exists()
    docker = shutil.which("docker")
    if docker is None or not _runs([docker, "compose", "version"]):
        return
    assert _runs([docker, "compose", "--file", str(FILE), "config", "--quiet"])


def _runs(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=COMPOSE_SECONDS_MAX, check=False)
    return done.returncode == 0
