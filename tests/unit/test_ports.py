"""No two instances share a port, and nobody keeps one that nobody needs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.errors import InvalidUsage, Unavailable
from delivery.services import ports
from delivery.services.ports import Owner
from delivery.services.process import Process

LOCAL = ["127.0.0.1"]


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def dead() -> Process:
    """A process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Process(pid=child.pid, started="once")
    child.communicate(b"\n")
    return started


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def owner(path: Path, instance: str = "a", *, ephemeral: bool = False) -> Owner:
    home = path / instance / ".delivery"
    home.mkdir(parents=True, exist_ok=True)
    return Owner(
        instance=instance,
        state=str(home / "instance.json"),
        process=Process.current(),
        ephemeral=ephemeral,
    )


def write_state(owned: Owner, instance: str) -> None:
    Path(owned.state).write_text(json.dumps({"id": instance}))


def test_ports_are_below_the_ephemeral_range_and_distinct(tmp_path: Path) -> None:
    found = ports.reserve(owner(tmp_path), 5, LOCAL)
    assert len(set(found)) == 5
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(ports.PORT_MIN <= port < first_ephemeral for port in found)


def test_many_at_once_get_different_ports(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def one(index: int) -> list[int]:
        start.wait()
        return ports.reserve(owner(tmp_path, f"i{index}"), 3, LOCAL)

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = [port for several in pool.map(one, range(8)) for port in several]
    assert len(set(found)) == 24


def test_another_instances_port_is_refused_and_its_directory_named(tmp_path: Path) -> None:
    port = ports.reserve(owner(tmp_path, "a"), 1, LOCAL)[0]
    with pytest.raises(InvalidUsage, match=str(tmp_path / "a")):
        ports.reserve(owner(tmp_path, "b"), 1, LOCAL, [port])
    with pytest.raises(InvalidUsage, match="belongs to the instance"):
        ports.renew(owner(tmp_path, "b"), [port])


def test_a_port_somebody_listens_on_is_refused_when_given_and_seen_by_busy(
    tmp_path: Path, taken: int
) -> None:
    assert ports.busy(taken, LOCAL) == "127.0.0.1"
    with pytest.raises(InvalidUsage, match="another program listens"):
        ports.reserve(owner(tmp_path), 1, LOCAL, [taken])


def test_a_port_somebody_listens_on_is_not_chosen(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_candidates", lambda: [taken])
    with pytest.raises(Unavailable, match="none is free"):
        ports.reserve(owner(tmp_path), 1, LOCAL)


def test_a_reservation_outlives_its_process_while_the_instance_exists(
    tmp_path: Path, dead: Process
) -> None:
    owned = replace(owner(tmp_path), process=dead)
    port = ports.reserve(owned, 1, LOCAL)[0]
    write_state(owned, "a")
    assert ports.holder(port) == owned
    with pytest.raises(InvalidUsage):
        ports.reserve(owner(tmp_path, "b"), 1, LOCAL, [port])


@pytest.mark.parametrize("state", ["absent", "another", "torn"])
def test_a_reservation_whose_instance_is_gone_is_stale(
    tmp_path: Path, dead: Process, state: str
) -> None:
    owned = replace(owner(tmp_path), process=dead)
    port = ports.reserve(owned, 1, LOCAL)[0]
    if state == "another":
        write_state(owned, "b")
    if state == "torn":
        Path(owned.state).write_text("{")
    assert ports.holder(port) is None
    assert ports.reserve(owner(tmp_path, "b"), 1, LOCAL, [port]) == [port]


def test_a_reservation_made_before_the_state_was_written_holds(tmp_path: Path) -> None:
    owned = owner(tmp_path)
    assert not Path(owned.state).exists()
    assert ports.holder(ports.reserve(owned, 1, LOCAL)[0]) == owned


def test_a_tests_reservation_ends_with_the_test(tmp_path: Path, dead: Process) -> None:
    owned = replace(owner(tmp_path, ephemeral=True), process=dead)
    port = ports.reserve(owned, 1, LOCAL)[0]
    write_state(owned, "a")
    assert ports.holder(port) is None


def test_the_registry_forgets_what_nobody_needs(tmp_path: Path, dead: Process) -> None:
    ports.reserve(replace(owner(tmp_path, ephemeral=True), process=dead), 4, LOCAL)
    kept = ports.reserve(owner(tmp_path, "b"), 1, LOCAL)[0]
    entries = [path.name for path in tmp_path.glob("delivery-ports-*/*") if path.name.isdigit()]
    assert entries == [str(kept)]


def test_release_gives_back_an_instances_ports_only(tmp_path: Path) -> None:
    mine = ports.reserve(owner(tmp_path, "a"), 2, LOCAL)
    other = ports.reserve(owner(tmp_path, "b"), 1, LOCAL)
    ports.release("a")
    ports.release("a")
    assert [ports.holder(port) for port in mine] == [None, None]
    assert ports.holder(other[0]) is not None


def test_renew_brings_back_what_a_clean_up_of_the_temporary_directory_took(tmp_path: Path) -> None:
    owned = owner(tmp_path)
    reserved = ports.reserve(owned, 2, LOCAL)
    ports.release("a")
    ports.renew(owned, reserved)
    assert [ports.holder(port) for port in reserved] == [owned, owned]


def test_an_address_this_machine_lacks_is_explained() -> None:
    with pytest.raises(InvalidUsage, match="lo0 alias"):
        ports.busy(0, ["192.0.2.1"])
