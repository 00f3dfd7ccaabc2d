"""A Spark standalone cluster: a master and two workers, each on a loopback address of its own.

What it is: `Standalone`, how its servers are started from the PySpark package, and when they are
well.
What it must not know: processes, state files, sessions, stages. PySpark is not imported.

Invariants:
    Server 1 is the master; the others are workers of it.
    Everything listens on the server's own address and nowhere else.
    Every address has the same ports.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dedup.errors import InvalidUsage, Unavailable

__all__ = ["SERVERS", "Standalone"]

#: A master and two workers: the least on which executors are on different addresses.
SERVERS = 3
#: What a worker gives to executors: one of a session's default size, and two tasks at once.
WORKER_CORES = 2
WORKER_MEMORY = "2g"
#: Heap of the master and of each worker themselves; executors have their own.
DAEMON_MEMORY = "256m"

#: How long a server may take to answer a health check.
CHECK_SECONDS_MAX = 5.0
#: How long a worker waits for the master: one that comes too early tries again 5 to 15 s later.
MASTER_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.1

WORK_NAME = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """The servers of one instance.

    Attributes:
        nodes: how many, the master included.
        port: where each takes calls.
        ui_port: where each shows how it is.
    """

    nodes: int
    port: int
    ui_port: int

    kind = "spark"

    def host(self, index: int) -> str:
        """The loopback address of server `index`, counted from 1."""
        assert 1 <= index <= self.nodes
        return f"127.0.0.{index}"

    def address(self, index: int) -> str:
        """Where server `index` takes calls."""
        return f"{self.host(index)}:{self.port}"

    @property
    def master(self) -> str:
        """What sessions call their master."""
        return f"spark://{self.address(1)}"

    def ports(self, index: int) -> dict[int, str]:
        """What server `index` listens on: port to address."""
        return {self.port: self.host(index), self.ui_port: self.host(index)}

    def prepare(self, index: int, directory: Path, _java: Path, _jars: Sequence[Path]) -> None:
        """Make the directory of a worker, and wait for the master. May be called again."""
        if index == 1:
            return
        (directory / WORK_NAME).mkdir(exist_ok=True)
        pause = threading.Event()
        deadline = time.monotonic() + MASTER_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self.host(1), self.port), timeout=1.0).close()
            except OSError:
                pause.wait(_POLL_SECONDS)
            else:
                return

    def command(self, index: int, directory: Path, java: Path, _jars: Sequence[Path]) -> list[str]:
        """The command line of a server."""
        home = _spark_home()
        environment = {
            "JAVA_HOME": str(java.parent.parent),
            "SPARK_HOME": str(home),
            # Also what the web pages listen on, and what executors inherit.
            "SPARK_LOCAL_IP": self.host(index),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            # Jars and archives of applications that have ended.
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
        }
        where = ["--host", self.host(index), "--port", str(self.port)]
        where += ["--webui-port", str(self.ui_port)]
        # Spark's own script knows what Java 17 has to be told, and becomes the server.
        start = ["env", *(f"{key}={value}" for key, value in environment.items())]
        start += [str(home / "bin" / "spark-class")]
        if index == 1:
            return [*start, "org.apache.spark.deploy.master.Master", *where]
        room = ["--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY]
        room += ["--work-dir", str(directory / WORK_NAME)]
        return [*start, "org.apache.spark.deploy.worker.Worker", *where, *room, self.master]

    def check(self, index: int) -> None:
        """Ask server `index` how it is; `Unavailable` says what went wrong."""
        told = self._told(index)
        well = told.get("status") == "ALIVE" if index == 1 else bool(told.get("masterurl"))
        if not well:
            raise Unavailable(
                "check a Spark server",
                self.address(index),
                "it answers but is not part of its cluster yet",
            )

    def check_together(self) -> None:
        """Ask the master whether it knows every worker."""
        workers = self._told(1).get("aliveworkers", 0)
        if workers != self.nodes - 1:
            raise Unavailable(
                "check a Spark cluster",
                self.address(1),
                f"its master knows {workers} of {self.nodes - 1} workers",
            )

    def _told(self, index: int) -> dict[str, Any]:
        connection = http.client.HTTPConnection(
            self.host(index), self.ui_port, timeout=CHECK_SECONDS_MAX
        )
        try:
            connection.request("GET", "/json/")
            told: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                "check a Spark server",
                self.address(index),
                f"{type(error).__name__}: {error}; applications go on without it",
            ) from error
        finally:
            connection.close()
        return told


def _spark_home() -> Path:
    """Return the directory of the PySpark package, which has all of Spark inside."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidUsage(
            "start a Spark cluster",
            "PySpark",
            "it is not installed; nothing was started: pip install 'exactly-once-delivery[spark]'",
        )
    return Path(next(iter(spec.submodule_search_locations)))
