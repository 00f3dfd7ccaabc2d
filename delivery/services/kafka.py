"""Kafka brokers: their settings, how one is formatted and started, and when it is well.

What it is: `Kafka`, one broker or a cluster of three on 127.0.0.1-3, each broker its own
controller (KRaft); no ZooKeeper.
What it must not know: processes, state files, Cassandra. kafka-python is imported when a broker
is asked something, not before.

Invariants:
    Every address has the same ports.
    A topic exists only because somebody created it: a consumer that lingers must not bring back,
    under a new identity, a topic that was deleted.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import InvalidUsage, Unavailable

__all__ = ["Kafka", "settings"]

#: Enough for a development broker; three fit a laptop.
HEAP = "512m"

#: Partitions of Kafka's own topics. The default of 50 costs seconds at the first consumer group
#: and file handles for nothing on one machine.
INTERNAL_PARTITIONS = 8

#: How long a broker may take to answer a health check.
CHECK_SECONDS_MAX = 5.0

#: How long formatting a log directory may take (1.1 s on two idle cores).
FORMAT_SECONDS_MAX = 60.0

FILE_NAME = "server.properties"
DATA_NAME = "data"


def settings(nodes: int) -> dict[str, str]:
    """The settings that do not depend on where a broker runs; docker-compose.yml has the same."""
    replicas = str(nodes)
    in_sync = str(nodes // 2 + 1)
    partitions = str(INTERNAL_PARTITIONS)
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": partitions,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": partitions,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": partitions,
        "group.initial.rebalance.delay.ms": "0",
        # A broker that comes back after kill -9 is let in when its old session has ended.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The brokers of one instance."""

    nodes: int
    port: int
    controller_port: int
    cluster_id: str

    kind = "kafka"
    jars = "kafka"

    def host(self, index: int) -> str:
        """The loopback address of broker `index`, counted from 1."""
        assert 1 <= index <= self.nodes
        return f"127.0.0.{index}"

    def address(self, index: int) -> str:
        """Where clients reach broker `index`."""
        return f"{self.host(index)}:{self.port}"

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""
        return ",".join(self.address(index) for index in range(1, self.nodes + 1))

    def ports(self, index: int) -> dict[int, str]:
        """What broker `index` listens on: port to address."""
        return {self.port: self.host(index), self.controller_port: self.host(index)}

    def properties(self, index: int, directory: Path) -> dict[str, str]:
        """All settings of broker `index` whose files live in `directory`."""
        host = self.host(index)
        voters = (f"{i}@{self.host(i)}:{self.controller_port}" for i in range(1, self.nodes + 1))
        return settings(self.nodes) | {
            "node.id": str(index),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"PLAINTEXT://{host}:{self.port},CONTROLLER://{host}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{host}:{self.port}",
            "log.dirs": str(directory / DATA_NAME),
        }

    def prepare(self, index: int, directory: Path, java: Path, jars: Sequence[Path]) -> None:
        """Write the settings and format the log directory once. May be called again."""
        lines = (f"{key}={value}" for key, value in self.properties(index, directory).items())
        (directory / FILE_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if (directory / DATA_NAME / "meta.properties").exists():
            return
        done = subprocess.run(
            [
                *self._java(java, jars, "-Xmx128m"),
                "kafka.tools.StorageTool",
                "format",
                "--ignore-formatted",  # whoever was killed between its files and its end
                *("-t", self.cluster_id, "-c", str(directory / FILE_NAME)),
            ],
            capture_output=True,
            text=True,
            timeout=FORMAT_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise InvalidUsage(
                "format a Kafka log directory",
                str(directory / DATA_NAME),
                f"{(done.stderr or done.stdout).strip()}; nothing was written to it",
            )

    def command(self, _index: int, directory: Path, java: Path, jars: Sequence[Path]) -> list[str]:
        """The command line of a broker."""
        java_command = self._java(java, jars, f"-Xmx{HEAP}", f"-Xms{HEAP}")
        return [*java_command, "kafka.Kafka", str(directory / FILE_NAME)]

    @staticmethod
    def _java(java: Path, jars: Sequence[Path], *options: str) -> list[str]:
        return [
            str(java),
            *options,
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",  # no files in the shared temporary directory
            "-XX:+ExitOnOutOfMemoryError",  # a broker that lost a thread is worse than none
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-cp",
            ":".join(map(str, jars)),
        ]

    def check(self, index: int) -> None:
        """Ask broker `index` for the cluster's metadata; `Unavailable` says what went wrong."""
        brokers = self._brokers(index)
        if index not in brokers:
            raise Unavailable(
                "check a broker", self.address(index), "it answers but has not joined its cluster"
            )

    def check_together(self) -> None:
        """Ask every broker whether it sees all the others."""
        for index in range(1, self.nodes + 1):
            missing = set(range(1, self.nodes + 1)) - self._brokers(index)
            if missing:
                raise Unavailable(
                    "check a cluster", self.address(index), f"it does not see brokers {missing}"
                )

    def _brokers(self, index: int) -> set[int]:
        from kafka import KafkaAdminClient  # noqa: PLC0415  drivers are imported when used
        from kafka.errors import KafkaError  # noqa: PLC0415  see above

        milliseconds = int(CHECK_SECONDS_MAX * 1000)
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.address(index),
                bootstrap_timeout_ms=milliseconds,
                request_timeout_ms=milliseconds,
            )
            try:
                cluster = admin.describe_cluster()
            finally:
                admin.close()
        except (KafkaError, OSError) as error:
            raise Unavailable(
                "check a broker",
                self.address(index),
                f"{type(error).__name__}: {error}; what it holds is untouched",
            ) from error
        return {int(b["broker_id"]) for b in cluster["brokers"] if not b.get("is_fenced")}
