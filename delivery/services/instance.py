"""A directory's servers: `up`, `down`, `status` and the logs.

What it is: `Instance`, everything the command line and the tests do with servers.
What it must not know: the command line, terminals, JSON.

Invariants:
    One instance per directory; all its files are in `.delivery` there.
    `up` starts exactly what is missing, and may be killed and repeated at any point.
    `down` ends what this directory started and nothing else.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dedup.errors import InvalidUsage, Unavailable
from delivery.services import ports, state
from delivery.services.jars import Tree, jars
from delivery.services.java import find_java
from delivery.services.node import POLL_SECONDS, Health, Launcher, Node, await_ready
from delivery.services.process import Lifeline
from delivery.services.standalone import Standalone
from delivery.services.state import Request, State

__all__ = ["Instance", "Request", "Started", "Status"]

#: Told what is going on, one line at a time.
Report = Callable[[str], None]

T = TypeVar("T")

#: How long the nodes of a cluster may take to see each other once each of them answers.
TOGETHER_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A node after `up`: `seconds` is None if it ran already."""

    name: str
    address: str
    pid: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A node as it is; `detail` says what is wrong with it."""

    name: str
    address: str
    pid: int | None
    health: Health
    detail: str


class Instance:
    """The servers of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.home = self.directory / state.HOME_NAME

    def state(self) -> State | None:
        """What is known about this directory's servers; None if it never had any."""
        return State.load(self.home)

    def nodes(self, known: State | None = None) -> list[Node]:
        """All nodes, running or not, in order."""
        known = known or self.state()
        return [
            Node(cluster=cluster, index=index, home=self.home)
            for cluster in (known.clusters if known else ())
            for index in range(1, cluster.nodes + 1)
        ]

    def up(
        self, request: Request, report: Report, lifeline: Lifeline | None = None
    ) -> list[Started]:
        """Start what is missing and wait until everything answers. May be called again.

        Raises:
            InvalidUsage: the request contradicts the instance that exists here.
            Unavailable: a server does not start; the others keep running.
        """
        if self.state() is None:
            state.refuse_nonsense(request, self.home)
        with state.locked(self.home, report):
            known = self.state()
            if known is None:
                (self.home / ".gitignore").write_text("*\n", encoding="utf-8")
                known = state.create(self.home, request, ephemeral=lifeline is not None)
            else:
                state.refuse_changes(known, request, self.home)
                known = known.renew(self.home)
            nodes = self.nodes(known)
            missing = [node for node in nodes if node.process() is None]
            launcher = self.launcher(missing, report, lifeline)
            started = _start(nodes, missing, launcher, report)
            if missing:
                for cluster in known.clusters:
                    _until_together(cluster, report)
            return started

    @staticmethod
    def launcher(
        missing: Iterable[Node], report: Report, lifeline: Lifeline | None = None
    ) -> Launcher:
        """Gather what starting these nodes takes, downloading what is not there."""
        kinds = {node.cluster.kind for node in missing}
        if not kinds:
            return Launcher(java=Path(), lifeline=lifeline)
        return Launcher(
            java=find_java().executable,
            # Spark's own jars are inside the PySpark package.
            jars={
                kind: [] if kind == Standalone.kind else jars(Tree(kind), report=report)
                for kind in sorted(kinds)
            },
            lifeline=lifeline,
        )

    def down(self, report: Report, *, delete: bool = False) -> list[str]:
        """End this directory's servers; name those that ran. May be called again.

        Args:
            report: told of every node that ends.
            delete: remove their data and give their ports back as well.
        """
        if not self.home.exists():
            return []
        with state.locked(self.home, report):
            known = self.state()
            if known is None:
                return []
            replace(known, up=False).save(self.home)
            running = [node for node in self.nodes(known) if node.process() is not None]
            _side_by_side(running, lambda node: _stop(node, report))
            if delete:
                shutil.rmtree(self.home)
                ports.release(known.id)
            return [node.name for node in running]

    def status(self) -> list[Status]:
        """Ask every node how it is."""
        known = self.state()
        if known is None:
            return []
        wanted = known.up

        def ask(node: Node) -> Status:
            health, running, detail = node.health(wanted=wanted)
            return Status(
                name=node.name,
                address=node.address,
                pid=running.pid if running else None,
                health=health,
                detail=detail,
            )

        return _side_by_side(self.nodes(known), ask)

    def node(self, name: str) -> Node:
        """Find a node by name."""
        nodes = self.nodes()
        for node in nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in nodes) or "none; `delivery up` makes some"
        raise InvalidUsage(
            "find a node", name, f"the nodes in {self.directory} are: {names}; name one of them"
        )


def _start(
    nodes: Sequence[Node], missing: Sequence[Node], launcher: Launcher, report: Report
) -> list[Started]:
    """Start the missing nodes side by side and wait until every node answers."""
    began = time.monotonic()
    for node in missing:
        report(f"{node.name}: starting on {node.address}")
    processes = _side_by_side(nodes, lambda node: node.start(launcher))
    seconds: dict[str, float] = {}
    for node in await_ready(list(zip(nodes, processes, strict=True))):
        if node in missing:
            seconds[node.name] = round(time.monotonic() - began, 1)
            report(f"{node.name}: ready after {seconds[node.name]} s")
    return [
        Started(
            name=node.name, address=node.address, pid=process.pid, seconds=seconds.get(node.name)
        )
        for node, process in zip(nodes, processes, strict=True)
    ]


def _stop(node: Node, report: Report) -> None:
    clean = node.stop()
    report(f"{node.name}: {'stopped' if clean else 'did not end in time and was killed'}")


def _side_by_side(nodes: Sequence[Node], action: Callable[[Node], T]) -> list[T]:
    """Do something short with all nodes at once; results in order."""
    with ThreadPoolExecutor(max_workers=max(len(nodes), 1)) as pool:
        return list(pool.map(action, nodes))


def _until_together(cluster: state.Cluster, report: Report) -> None:
    if cluster.nodes > 1:
        report(f"{cluster.kind}: waiting until its nodes see each other")
    deadline = time.monotonic() + TOGETHER_SECONDS_MAX
    pause = threading.Event()
    while True:
        try:
            cluster.check_together()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            pause.wait(POLL_SECONDS)
        else:
            return
