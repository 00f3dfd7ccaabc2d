"""Ports that no two instances on this machine share.

What it is: a registry in the temporary directory, one small file per port naming the instance
it belongs to, changed under a lock; and a bind test, which also sees everybody else's servers.
What it must not know: what listens on a port.

Invariants:
    A port belongs to an instance from its reservation until the instance is deleted, running or
    not: `up` after a crash finds its ports free, and clients keep their addresses.
    A reservation is stale only if the process that made it is dead AND the instance's state
    file is gone or (instances of a test) nobody could use it any more.
    Ports lie below the kernel's ephemeral range, so no outgoing connection sits on one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dedup.errors import InvalidUsage, Unavailable
from delivery.services.process import Process

__all__ = ["Owner", "busy", "holder", "release", "renew", "reserve"]

#: Where free ports are looked for. The upper end is lowered to the ephemeral range's start.
PORT_MIN = 20_000
PORT_MAX = 32_767

#: First ephemeral port where the kernel does not tell (macOS, BSD: IANA's 49152).
_EPHEMERAL_DEFAULT = 49_152
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a reservation.

    Attributes:
        instance: the instance's id.
        state: its state file; a reservation whose file names another instance is stale.
        process: who reserved.
        ephemeral: the reservation ends with that process.
    """

    instance: str
    state: str
    process: Process
    ephemeral: bool

    def stale(self) -> bool:
        """Whether nobody can need this reservation any more."""
        if self.process.alive():
            return False
        if self.ephemeral:
            return True
        try:
            state = json.loads(Path(self.state).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return True
        return bool(state.get("id") != self.instance)


def _registry() -> Path:
    directory = Path(tempfile.gettempdir()) / f"delivery-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    registry = _registry()
    with (registry / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield registry


def _read(registry: Path, port: int) -> Owner | None:
    try:
        entry = json.loads((registry / str(port)).read_text(encoding="utf-8"))
        return Owner(**{**entry, "process": Process(**entry["process"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # absent, or torn by a crash of this machine: nobody's


def holder(port: int) -> Owner | None:
    """Name the instance a port is reserved for, if any."""
    with _locked() as registry:
        owner = _read(registry, port)
    return None if owner is None or owner.stale() else owner


def busy(port: int, addresses: Sequence[str]) -> str | None:
    """Name the first address on which something listens on this port, by trying to."""
    for address in addresses:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return address
                raise _unusable(address, error) from error
    return None


def _unusable(address: str, error: OSError) -> InvalidUsage:
    return InvalidUsage(
        "listen on a loopback address",
        address,
        f"{error.strerror}; clusters need 127.0.0.1 to 127.0.0.3; where the system has only the "
        f"first (macOS), add the others: `sudo ifconfig lo0 alias {address} up`",
    )


def _candidates() -> list[int]:
    try:
        ephemeral = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except FileNotFoundError:
        ephemeral = _EPHEMERAL_DEFAULT
    ports = list(range(PORT_MIN, min(PORT_MAX + 1, max(ephemeral, PORT_MIN))))
    # Users with a registry of their own (another uid, another TMPDIR) see each other's ports only
    # once a server listens; starting anywhere makes meeting before that improbable.
    random.SystemRandom().shuffle(ports)
    return ports


def reserve(
    owner: Owner, count: int, addresses: Sequence[str], given: Sequence[int] = ()
) -> list[int]:
    """Reserve the given ports, and free ones up to `count`, each on all of the addresses.

    Raises `InvalidUsage` if a given port belongs to another instance or somebody listens there.
    """
    with _locked() as registry:
        _sweep(registry)
        ports: list[int] = []
        for port in given:
            _refuse_reserved(registry, port, owner)
            address = busy(port, addresses)
            if address is not None:
                raise InvalidUsage(
                    "reserve a port",
                    f"{address}:{port}",
                    "another program listens on it; choose another port or leave the choice to us",
                )
            ports.append(port)
        for port in _candidates():
            if len(ports) >= count:
                break
            if port in ports or _read(registry, port) is not None:
                continue
            if busy(port, addresses) is None:
                ports.append(port)
        if len(ports) < count:
            raise Unavailable(
                "reserve ports",
                f"{PORT_MIN}-{PORT_MAX}",
                "none is free; stop instances you no longer need with `delivery down --delete`",
            )
        _write(registry, ports, owner)
    return ports


def _entries(registry: Path) -> Iterator[tuple[Path, Owner | None]]:
    for entry in registry.iterdir():
        if entry.name.isdigit():
            yield entry, _read(registry, int(entry.name))


def _sweep(registry: Path) -> None:
    """Forget what nobody needs, so that the registry does not grow with every killed test."""
    for entry, owner in list(_entries(registry)):
        if owner is None or owner.stale():
            entry.unlink()


def _refuse_reserved(registry: Path, port: int, owner: Owner) -> None:
    current = _read(registry, port)
    if current is None or current.instance == owner.instance or current.stale():
        return  # `renew` does not sweep
    directory = Path(current.state).parent.parent
    raise InvalidUsage(
        "reserve a port",
        str(port),
        f"it belongs to the instance in {directory}; choose another port, or give this one "
        f"back with `delivery down --delete --dir {directory}`",
    )


def renew(owner: Owner, ports: Sequence[int]) -> None:
    """Reserve again what an existing instance has, in case somebody cleaned the registry away.

    What listens there may be the instance's own servers, so nothing is tried.
    """
    with _locked() as registry:
        for port in ports:
            _refuse_reserved(registry, port, owner)
        _write(registry, ports, owner)


def _write(registry: Path, ports: Sequence[int], owner: Owner) -> None:
    for port in ports:
        (registry / str(port)).write_text(json.dumps(asdict(owner)), encoding="utf-8")


def release(instance: str) -> None:
    """Give back every port of an instance. May be called twice."""
    with _locked() as registry:
        for entry, owner in list(_entries(registry)):
            if owner is not None and owner.instance == instance:
                entry.unlink()
