"""What of the servers' settings could lose an acknowledged write.

What it is: `findings`, sentences for whoever runs the cluster.
What it must not know: tables, rows, who opens a catalog.

Invariants:
    It reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dedup.catalog.cassandra.schema import REPLICAS_DEFAULT, copies_of, keyspace_of
from dedup.catalog.cassandra.session import Connection

#: `commitlog_sync` that acknowledges a write only when it is on the disk.
SYNCED = ("batch", "group")
PAXOS = "v2"


def findings(connection: Connection) -> list[str]:
    """Say in sentences what of the servers' settings could lose an acknowledged write."""
    found: list[str] = []
    for host in connection.hosts():
        name = str(host.endpoint)
        rows = connection.ask_node(
            "read the settings of a node",
            "SELECT name, value FROM system_views.settings"
            " WHERE name IN ('commitlog_sync', 'paxos_variant')",
            host,
        )
        if rows is None:
            found.append(
                f"node {name} does not answer, so its settings are unknown; look at it with "
                "`nodetool status`, and check again"
            )
            continue
        found += node_findings(name, {row.name: row.value for row in rows})
    copies = copies_of(keyspace_of(connection))
    if copies and min(copies.values()) < REPLICAS_DEFAULT:
        found.append(
            f"keyspace {connection.address.keyspace} keeps {min(copies.values())} copies: fewer "
            f"than {REPLICAS_DEFAULT} do not survive the loss of a node without a pause; once "
            "there are nodes for it, ALTER KEYSPACE and run `nodetool repair --full`"
        )
    return found


def node_findings(node: str, settings: Mapping[str, str]) -> list[str]:
    """Say what of one node's settings could lose an acknowledged write."""
    found: list[str] = []
    sync, paxos = settings.get("commitlog_sync"), settings.get("paxos_variant")
    if sync not in SYNCED:
        found.append(
            f"node {node} has commitlog_sync: {sync}, which acknowledges a write before it is on "
            "the disk: a power cut or kill -9 can lose seals that were acknowledged; set "
            "commitlog_sync: batch (or group) in cassandra.yaml and restart the node"
        )
    if paxos != PAXOS:
        found.append(
            f"node {node} has paxos_variant: {paxos}, which is not linearizable while nodes join "
            f"or leave, and slower; set paxos_variant: {PAXOS} in cassandra.yaml on every node and "
            "restart them one by one"
        )
    return found
