"""What an instance is: its id, its servers, their ports, written beside their data.

What it is: `State` and its file, and the lock that lets one command at a time change an instance.
What it must not know: how servers are started or asked.

Invariants:
    The file is written before the first server starts and changes by rename, so whatever runs
    can be found by reading it, whenever the command that wrote it was killed.
    Node counts and ports never change during an instance's life: data and clients depend on them.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from dedup.errors import Corrupt, InvalidUsage
from delivery.services import ports
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from delivery.services.process import Process
from delivery.services.standalone import SERVERS, Standalone

__all__ = ["Cluster", "Request", "State", "locked"]

Cluster = Kafka | Cassandra | Standalone

#: Changes when an older `delivery` could not read the file.
FORMAT = 1

#: Nodes of each kind: none, one, or a cluster whose majority survives a crash.
NODES = (0, 1, 3)

HOME_NAME = ".delivery"
STATE_NAME = "instance.json"
LOCK_NAME = "instance.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `up` was asked for; None leaves it to the existing instance, or to the default."""

    kafka: int | None = None
    cassandra: int | None = None
    kafka_port: int | None = None
    cassandra_port: int | None = None
    spark: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One instance.

    Attributes:
        id: a UUID; ports are reserved for it.
        up: whether its servers are meant to run; one that does not is dead, or else stopped.
        kafka: the brokers, if any.
        cassandra: the nodes, if any.
        spark: the standalone cluster, if any.
    """

    id: str
    up: bool
    kafka: Kafka | None
    cassandra: Cassandra | None
    spark: Standalone | None = None

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The kinds of servers it has."""
        every: tuple[Cluster | None, ...] = (self.kafka, self.cassandra, self.spark)
        return tuple(cluster for cluster in every if cluster is not None)

    @classmethod
    def load(cls, home: Path) -> State | None:
        """Read the state of the instance whose files are in `home`; None if there is none."""
        path = home / STATE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return _parse(json.loads(text), path)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "read an instance's state",
                str(path),
                f"{type(error).__name__}: {error}; its servers' data is untouched; restore the "
                f"file, or end its servers and remove {home}",
            ) from error

    def save(self, home: Path) -> None:
        """Write the state of the instance whose files are in `home`."""
        document = {"format": FORMAT} | asdict(self)
        draft = home / f"{STATE_NAME}.new"
        draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        draft.replace(home / STATE_NAME)

    def renew(self, home: Path) -> State:
        """Reserve the instance's ports again and mark it as meant to run."""
        taken = {port for c in self.clusters for i in range(1, c.nodes + 1) for port in c.ports(i)}
        ports.renew(_owner(self.id, home, ephemeral=False), sorted(taken))
        state = replace(self, up=True)
        state.save(home)
        return state


def _parse(document: dict[str, Any], path: Path) -> State:
    if document["format"] != FORMAT:
        raise InvalidUsage(
            "read an instance's state",
            str(path),
            f"format {document['format']} belongs to another version of delivery; use that one, "
            "or another directory",
        )
    kafka, cassandra = document["kafka"], document["cassandra"]
    spark = document.get("spark")  # instances from before there was one
    if cassandra is not None:
        cassandra["jmx_ports"] = tuple(cassandra["jmx_ports"])
    return State(
        id=document["id"],
        up=document["up"],
        kafka=None if kafka is None else Kafka(**kafka),
        cassandra=None if cassandra is None else Cassandra(**cassandra),
        spark=None if spark is None else Standalone(**spark),
    )


def _owner(instance: str, home: Path, *, ephemeral: bool) -> ports.Owner:
    return ports.Owner(
        instance=instance,
        state=str(home / STATE_NAME),
        process=Process.current(),
        ephemeral=ephemeral,
    )


def create(home: Path, request: Request, *, ephemeral: bool) -> State:
    """Reserve ports for a new instance and write its state."""
    kafka, cassandra = _counts(request)
    instance = str(uuid.uuid4())
    servers = SERVERS if request.spark else 0
    hosts = [f"127.0.0.{index}" for index in range(1, max(kafka, cassandra, servers) + 1)]
    given = {
        name: port
        for name, port, count in (
            ("kafka", request.kafka_port, kafka),
            ("cassandra", request.cassandra_port, cassandra),
        )
        if port is not None and count
    }
    names = (["kafka", "controller"] if kafka else []) + (
        ["cassandra", "storage", *(f"jmx-{i}" for i in range(cassandra))] if cassandra else []
    )
    names += ["spark", "spark-ui"] if servers else []
    rest = [name for name in names if name not in given]
    reserved = ports.reserve(
        _owner(instance, home, ephemeral=ephemeral), len(names), hosts, list(given.values())
    )
    port = dict(zip([*given, *rest], reserved, strict=True))
    state = State(
        id=instance,
        up=True,
        kafka=Kafka(
            nodes=kafka,
            port=port["kafka"],
            controller_port=port["controller"],
            cluster_id=_cluster_id(),
        )
        if kafka
        else None,
        cassandra=Cassandra(
            nodes=cassandra,
            port=port["cassandra"],
            storage_port=port["storage"],
            jmx_ports=tuple(port[f"jmx-{i}"] for i in range(cassandra)),
        )
        if cassandra
        else None,
        spark=Standalone(nodes=servers, port=port["spark"], ui_port=port["spark-ui"])
        if servers
        else None,
    )
    state.save(home)
    return state


def _counts(request: Request) -> tuple[int, int]:
    return (
        1 if request.kafka is None else request.kafka,
        1 if request.cassandra is None else request.cassandra,
    )


def refuse_nonsense(request: Request, home: Path) -> None:
    """Refuse what no instance can be."""
    kafka, cassandra = _counts(request)
    none = not (kafka or cassandra or request.spark)
    if kafka not in NODES or cassandra not in NODES or none:
        raise InvalidUsage(
            "bring servers up",
            str(home.parent),
            f"kafka={kafka} cassandra={cassandra}: each is 0, 1 or 3, and not both are 0 without Spark; "
            "nothing was started",
        )


def refuse_changes(state: State, request: Request, home: Path) -> None:
    """Refuse what would change an existing instance."""
    kafka, cassandra = state.kafka, state.cassandra
    wanted_has = (
        ("--kafka", request.kafka, kafka.nodes if kafka else 0),
        ("--cassandra", request.cassandra, cassandra.nodes if cassandra else 0),
        ("--kafka-port", request.kafka_port, kafka.port if kafka else None),
        ("--cassandra-port", request.cassandra_port, cassandra.port if cassandra else None),
        ("--spark", request.spark, state.spark is not None),
    )
    for option, wanted, has in wanted_has:
        if wanted is not None and wanted != has:
            raise InvalidUsage(
                "bring servers up",
                f"{option} {wanted}",
                f"the instance in {home.parent} was made with {option} {has}, and its data "
                "depends on that; nothing was changed; take another directory with --dir, or "
                "remove this instance and its data with `delivery down --delete`",
            )


def _cluster_id() -> str:
    """Mint a cluster id that no command line takes for an option."""
    return "D" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


@contextlib.contextmanager
def locked(home: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Be the only command that changes this instance; wait for another one, and say so."""
    while True:
        with _lock_file(home) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another `delivery` command in {home.parent}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _same(lock.fileno(), home / LOCK_NAME):
                yield
                return


def _lock_file(home: Path) -> TextIO:
    try:
        home.mkdir(parents=True, exist_ok=True)
        return (home / LOCK_NAME).open("a")
    except OSError as error:
        raise InvalidUsage(
            "use a directory for servers",
            str(home.parent),
            f"it cannot be written to ({error.strerror}: {error.filename}); nothing was started or "
            "stopped: take another one with --dir, or let this user write there",
        ) from None


def _same(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one at `path`: `down --delete` removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
