"""Servers for a test or an example: they die with the process that asked for them.

What it is: `ephemeral()`, a context manager around an instance in a temporary directory, and the
means to hurt its nodes.
What it must not know: pytest.

Invariants:
    Whatever ends this process (SIGKILL included), its servers end and their files go.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import InvalidUsage
from delivery.services import ports
from delivery.services.cassandra import Cassandra
from delivery.services.instance import Instance, Started
from delivery.services.kafka import Kafka
from delivery.services.node import Launcher, Node, await_ready
from delivery.services.process import Lifeline
from delivery.services.standalone import Standalone
from delivery.services.state import Request, State

__all__ = ["Server", "Services", "ephemeral"]


def _silent(_line: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server, and what a crash test does to it."""

    node: Node
    launcher: Launcher

    def kill(self) -> None:
        """Kill it (SIGKILL); its data stays. May be called twice."""
        running = self.node.process()
        if running is not None:
            running.kill()

    def pause(self) -> None:
        """Stop it from running (SIGSTOP): connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again after `pause`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs, start it on its data and wait until it answers."""
        self.kill()
        running = self.node.start(self.launcher)
        for _ in await_ready([(self.node, running)]):
            pass

    def _signal(self, number: signal.Signals) -> None:
        running = self.node.process()
        if running is None or not running.signal(number):
            raise InvalidUsage(
                f"send {number.name}", self.node.name, "it does not run; restart() starts it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The servers of one `ephemeral()`.

    Attributes:
        state: the instance they are.
        started: what starting each took.
        servers: kafka-1, cassandra-1, ... by name.
    """

    state: State
    started: list[Started]
    servers: dict[str, Server]

    @property
    def kafka(self) -> Kafka:
        """The brokers; `kafka.bootstrap` is what clients want."""
        if self.state.kafka is None:
            raise InvalidUsage("use Kafka", "ephemeral()", "ask for it: ephemeral(kafka=1)")
        return self.state.kafka

    @property
    def cassandra(self) -> Cassandra:
        """The nodes; `cassandra.contact_points` and `cassandra.port` are what drivers want."""
        if self.state.cassandra is None:
            raise InvalidUsage("use Cassandra", "ephemeral()", "ask for it: ephemeral(cassandra=1)")
        return self.state.cassandra

    @property
    def spark(self) -> Standalone:
        """The Spark cluster; `spark.master` is what sessions want."""
        if self.state.spark is None:
            raise InvalidUsage("use Spark", "ephemeral()", "ask for it: ephemeral(spark=True)")
        return self.state.spark


@contextlib.contextmanager
def ephemeral(
    *,
    kafka: int = 1,
    cassandra: int = 0,
    spark: bool = False,
    report: Callable[[str], None] = _silent,
) -> Iterator[Services]:
    """Run servers for the time of a `with` block, or until this process dies.

    Args:
        kafka: how many brokers: 0, 1 or 3.
        cassandra: how many nodes: 0, 1 or 3.
        spark: whether there is a Spark cluster, of a master and two workers.
        report: told of downloads and starts, line by line.
    """
    root = Path(tempfile.mkdtemp(prefix="delivery-"))
    lifeline = Lifeline(root)
    instance = Instance(root)
    try:
        request = Request(kafka=kafka, cassandra=cassandra, spark=spark)
        started = instance.up(request, report, lifeline)
        known = instance.state()
        assert known is not None, "`up` writes the state"
        nodes = instance.nodes(known)
        launcher = instance.launcher(nodes, report, lifeline)
        yield Services(
            state=known,
            started=started,
            servers={node.name: Server(node=node, launcher=launcher) for node in nodes},
        )
    finally:
        _end(instance, lifeline)
        shutil.rmtree(root, ignore_errors=True)


def _end(instance: Instance, lifeline: Lifeline) -> None:
    """Kill the servers, whose data goes anyway, and give their ports back."""
    known = instance.state()
    lifeline.close()
    for node in instance.nodes(known):
        running = node.process()
        if running is not None:
            running.kill()
    if known is not None:
        ports.release(known.id)
