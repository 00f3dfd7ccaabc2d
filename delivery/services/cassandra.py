"""Cassandra nodes: their settings, how one is started, and when it is well.

What it is: `Cassandra`, one node or a cluster of three on 127.0.0.1-3.
What it must not know: processes, state files, Kafka, cassandra-driver.

Invariants:
    `commitlog_sync: batch`: what a node acknowledged survives kill -9. The default, periodic,
    may lose acknowledged writes, and with them the only commit point we have.
    `paxos_variant: v2`: the variant whose conditional writes are linearizable across a change of
    the cluster, and half the round trips.
    Every address has the same ports, except for JMX, which listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import Unavailable
from delivery.services import cql

__all__ = ["COMMITLOG_SYNC", "PAXOS_VARIANT", "Cassandra", "settings", "variants"]

COMMITLOG_SYNC = "batch"
PAXOS_VARIANT = "v2"

#: Heap of a single node, and of each of three.
HEAP_ALONE_MB = 768
HEAP_TOGETHER_MB = 448

#: How long a node may take to answer a health check.
CHECK_SECONDS_MAX = 5.0

CONFIG_NAME = "cassandra.yaml"
LOGBACK_NAME = "logback.xml"
DATA_NAME = "data"

_DIRECTORIES = {
    "data_file_directories": "data",
    "commitlog_directory": "commitlog",
    "saved_caches_directory": "saved_caches",
    "hints_directory": "hints",
    "cdc_raw_directory": "cdc_raw",
}

_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)

_OPENS = (
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
    "jdk.management/com.sun.management.internal",
)

#: To standard output only: the guard bounds the log, and nothing else writes files.
_LOGBACK = """\
<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} [%thread] %-5level %logger{24} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="STDOUT"/></root>
</configuration>
"""


def settings() -> dict[str, object]:
    """The settings that do not depend on where a node runs; docker-compose.yml has the same."""
    return {
        "cluster_name": "delivery",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "num_tokens": 1,
        "commitlog_sync": COMMITLOG_SYNC,
        "commitlog_segment_size": "16MiB",
        "paxos_variant": PAXOS_VARIANT,
        "auto_snapshot": False,
        "auto_bootstrap": False,  # the nodes of a cluster start together, empty
        "memtable_allocation_type": "heap_buffers",
        "disk_access_mode": "standard",
        "concurrent_reads": 8,
        "concurrent_writes": 8,
        "write_request_timeout": "10s",
        "cas_contention_timeout": "5s",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cassandra:
    """The nodes of one instance."""

    nodes: int
    port: int
    storage_port: int
    jmx_ports: tuple[int, ...]

    kind = "cassandra"
    jars = "cassandra"

    def host(self, index: int) -> str:
        """The loopback address of node `index`, counted from 1."""
        assert 1 <= index <= self.nodes
        return f"127.0.0.{index}"

    def address(self, index: int) -> str:
        """Where clients reach node `index`."""
        return f"{self.host(index)}:{self.port}"

    @property
    def contact_points(self) -> tuple[str, ...]:
        """What drivers call contact points; the port is `port`."""
        return tuple(self.host(index) for index in range(1, self.nodes + 1))

    @property
    def url(self) -> str:
        """The address as a catalog wants it, without a keyspace."""
        return f"cassandra://{','.join(self.contact_points)}:{self.port}"

    def ports(self, index: int) -> dict[int, str]:
        """What node `index` listens on: port to address."""
        host = self.host(index)
        return {
            self.port: host,
            self.storage_port: host,
            self.jmx_ports[index - 1]: "127.0.0.1",
        }

    def config(self, index: int, directory: Path) -> dict[str, object]:
        """All settings of node `index` whose files live in `directory`."""
        host = self.host(index)
        # Every node is a seed: they start at the same moment, and none may wait for another.
        seeds = ",".join(f"{point}:{self.storage_port}" for point in self.contact_points)
        data = directory / DATA_NAME
        directories: dict[str, object] = {
            key: [str(data / name)] if key == "data_file_directories" else str(data / name)
            for key, name in _DIRECTORIES.items()
        }
        return (
            settings()
            | directories
            | {
                "initial_token": str(self._token(index)),
                "seed_provider": [
                    {
                        "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                        "parameters": [{"seeds": seeds}],
                    }
                ],
                "listen_address": host,
                "rpc_address": host,
                "storage_port": self.storage_port,
                "native_transport_port": self.port,
            }
        )

    def _token(self, index: int) -> int:
        return (index - 1) * 2**64 // self.nodes - (2**63 if self.nodes > 1 else 0)

    def prepare(self, index: int, directory: Path, _java: Path, _jars: Sequence[Path]) -> None:
        """Write the settings. May be called again."""
        (directory / "tmp").mkdir(exist_ok=True)
        # JSON is YAML, and its strings need no care.
        config = json.dumps(self.config(index, directory), indent=2)
        (directory / CONFIG_NAME).write_text(config, encoding="utf-8")
        (directory / LOGBACK_NAME).write_text(_LOGBACK, encoding="utf-8")

    def command(self, index: int, directory: Path, java: Path, jars: Sequence[Path]) -> list[str]:
        """The command line of node `index`."""
        jamm = next(jar for jar in jars if jar.name.startswith("jamm-"))
        heap = HEAP_ALONE_MB if self.nodes == 1 else HEAP_TOGETHER_MB
        return [
            str(java),
            f"-javaagent:{jamm}",
            *(f"-Xmx{heap}m", f"-Xms{heap}m", f"-Xmn{heap // 4}m"),
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",  # no files in the shared temporary directory
            "-XX:+ExitOnOutOfMemoryError",
            "-Djdk.attach.allowAttachSelf=true",
            "-Dio.netty.tryReflectionSetAccessible=true",
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            f"-Djava.io.tmpdir={directory / 'tmp'}",
            f"-Dlogback.configurationFile={directory / LOGBACK_NAME}",
            f"-Dcassandra.config={(directory / CONFIG_NAME).as_uri()}",
            f"-Dcassandra.storagedir={directory / DATA_NAME}",
            "-Dcassandra-foreground=yes",
            f"-Dcassandra.jmx.local.port={self.jmx_ports[index - 1]}",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.superuser_setup_delay_ms=0",
            "-Dcassandra.ring_delay_ms=2000",
            "-cp",
            ":".join(map(str, jars)),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def check(self, index: int) -> None:
        """Read from node `index`; `Unavailable` says what went wrong."""
        cql.query(
            self.host(index),
            self.port,
            "SELECT cluster_name FROM system.local",
            seconds=CHECK_SECONDS_MAX,
        )

    def check_together(self) -> None:
        """Read through every node from as many replicas as there are nodes."""
        # Its three replicas are the three nodes of a cluster.
        statement = "SELECT status FROM system_distributed.view_build_status LIMIT 1"
        for index in range(1, self.nodes + 1):
            level = cql.ALL if self.nodes > 1 else cql.ONE
            cql.query(
                self.host(index),
                self.port,
                statement,
                seconds=CHECK_SECONDS_MAX,
                consistency=level,
            )


def variants(host: str, port: int) -> dict[str, str]:
    """Ask a node for the two settings our guarantee stands on: `commitlog_sync`, `paxos_variant`."""
    rows = cql.query(
        host,
        port,
        "SELECT name, value FROM system_views.settings "
        "WHERE name IN ('commitlog_sync', 'paxos_variant')",
        seconds=CHECK_SECONDS_MAX,
    )
    found = {name: value for name, value in rows if name is not None and value is not None}
    if len(found) < 2:  # noqa: PLR2004  the two names asked for
        raise Unavailable(
            "ask Cassandra for its settings",
            f"{host}:{port}",
            "system_views.settings lacks them; this needs Cassandra 4.1 or later",
        )
    return found
