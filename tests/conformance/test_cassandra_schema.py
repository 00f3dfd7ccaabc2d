"""Opening a Cassandra catalog: the schema it makes, and everything it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import UUID

import pytest
from cassandra.cluster import Session
from cassandra.connection import DefaultEndPoint
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from dedup.catalog.cassandra import CassandraStore, schema, servers
from dedup.catalog.cassandra.session import Connection
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage, Unavailable
from tests.conformance.cassandra_kit import contents, keyspace_of, run
from tests.conformance.values import first, following, raw_lane, slot

#: The data centre of a single node.
DATACENTER = "datacenter1"
KEYSPACE = (
    "CREATE KEYSPACE KS WITH replication ="
    " {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
)


def test_a_new_keyspace_is_made_as_the_design_says(fresh_url, admin):
    CassandraStore.open(fresh_url).close()
    tables = {
        row.table_name: row
        for row in admin.execute(
            "SELECT * FROM system_schema.tables WHERE keyspace_name = %s", (keyspace_of(fresh_url),)
        )
    }
    assert set(tables) == {table.name for table in schema.TABLES}
    assert {row.default_time_to_live for row in tables.values()} == {0}
    for name in ("outputs", "segments"):
        assert tables[name].compression["enabled"] == "false"
        assert tables[name].compaction["class"].endswith("UnifiedCompactionStrategy")
    made = admin.execute(
        "SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s", (keyspace_of(fresh_url),)
    ).one()
    assert made.durable_writes
    assert made.replication[DATACENTER] == "1", "as many copies as there are nodes, up to three"
    before = contents(admin, fresh_url)
    CassandraStore.open(fresh_url).close()
    assert contents(admin, fresh_url) == before


def test_eight_at_once_open_a_new_keyspace(fresh_url):
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: CassandraStore.open(fresh_url), range(8)))
    row = raw_lane()
    assert opened[0].create("lane", row, b"entry")
    assert [store.read("lane") for store in opened] == [row] * 8
    for store in opened:
        store.close()


def test_a_schema_is_made_through_a_node_that_is_there(fresh_url, monkeypatch):
    """The driver may hold one for up that it has just lost."""
    hosts = Connection.hosts
    gone = Host(DefaultEndPoint("127.0.0.9", 1), SimpleConvictionPolicy, host_id=UUID(int=9))
    monkeypatch.setattr(Connection, "hosts", lambda self: [gone, *hosts(self)])
    with closing(CassandraStore.open(fresh_url)) as store:
        assert store.create("lane", raw_lane(), b"entry")
    monkeypatch.setattr(Connection, "hosts", lambda _: [gone])
    with pytest.raises(Unavailable, match="create the schema"):
        CassandraStore.open(f"{fresh_url}2")


def test_an_interrupted_creation_is_completed(fresh_url, admin):
    run(admin, fresh_url, KEYSPACE)
    for table in schema.TABLES[:3]:
        run(admin, fresh_url, table.statement("KS"))
    with closing(CassandraStore.open(fresh_url)) as store:
        assert store.create("lane", raw_lane(), b"entry")


def spoil_version(admin: Session, url: str) -> None:
    run(admin, url, "UPDATE KS.settings SET value = '2' WHERE name = 'schema' IF EXISTS")


def spoil_table(admin: Session, url: str) -> None:
    run(admin, url, "ALTER TABLE KS.lanes RENAME entry_seq TO entry_number")


def lose_table(admin: Session, url: str) -> None:
    run(admin, url, "DROP TABLE KS.lists")


def spoil_durability(admin: Session, url: str) -> None:
    run(admin, url, "ALTER KEYSPACE KS WITH durable_writes = false")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_version, "version 2, and this release knows version 1.*install the release"),
        (spoil_table, "table lanes is not as this release made it"),
        (lose_table, "table lists is not as this release made it"),
        (spoil_durability, "durable_writes = false"),
    ],
)
def test_what_this_release_did_not_make_is_refused(fresh_url, admin, spoil, words):
    CassandraStore.open(fresh_url).close()
    spoil(admin, fresh_url)
    before = contents(admin, fresh_url)
    with pytest.raises(InvalidUsage, match=words) as refused:
        CassandraStore.open(fresh_url)
    assert "nothing was written" in str(refused.value)
    assert contents(admin, fresh_url) == before


def test_a_keyspace_of_somebody_else_is_refused(fresh_url, admin):
    run(admin, fresh_url, KEYSPACE)
    run(admin, fresh_url, "CREATE TABLE KS.users (name text PRIMARY KEY)")
    before = contents(admin, fresh_url)
    with pytest.raises(InvalidUsage, match=r"holds other tables \(users\)"):
        CassandraStore.open(fresh_url)
    assert contents(admin, fresh_url) == before


LOCAL = f"consistency=local_serial&dc={DATACENTER}"


@pytest.mark.parametrize(
    ("stored", "asked", "remedy"),
    [("", LOCAL, "consistency=serial"), (LOCAL, "", "consistency=local_serial&dc=datacenter1")],
)
def test_another_consistency_is_refused(fresh_url, admin, stored, asked, remedy):
    CassandraStore.open(f"{fresh_url}?{stored}").close()
    before = contents(admin, fresh_url)
    with pytest.raises(InvalidUsage, match=remedy):
        CassandraStore.open(f"{fresh_url}?{asked}")
    assert contents(admin, fresh_url) == before
    CassandraStore.open(f"{fresh_url}?{stored}").close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("dc=nowhere", "no data centre nowhere"),
        ("consistency=local_serial&dc=nowhere", "no data centre nowhere"),
        ("replication=nowhere:3", "no data centre nowhere"),
    ],
)
def test_an_unknown_data_centre_is_refused(fresh_url, admin, options, words):
    with pytest.raises(InvalidUsage, match=words):
        CassandraStore.open(f"{fresh_url}?{options}")
    assert contents(admin, fresh_url) == ([], {})


def test_replication_is_what_the_url_says(fresh_url):
    CassandraStore.open(f"{fresh_url}?replication={DATACENTER}:1").close()
    CassandraStore.open(f"{fresh_url}?replication=1").close()
    with pytest.raises(InvalidUsage, match="replicated as"):
        CassandraStore.open(f"{fresh_url}?replication=2")


def test_a_catalog_in_one_data_centre_works_alike(fresh_url):
    with closing(CassandraStore.open(f"{fresh_url}?{LOCAL}")) as store:
        catalog = Catalog(store)
        head, seal = first()
        assert catalog.create("lane", head, seal)
        after, sealed = following(head, [b"x" * 9000])
        catalog.put(Blob.OUTPUTS, slot("lane", sealed.ref), [b"x" * 9000], 10)
        assert catalog.append("lane", head.ref, after, sealed)
        assert catalog.load("lane").head == after
        assert catalog.get(Blob.OUTPUTS, "lane", sealed) == [b"x" * 9000]


def test_no_node_means_nothing_happened():
    with pytest.raises(Unavailable, match="nothing was read or written"):
        CassandraStore.open("cassandra://127.0.0.1:1/shop")


def test_settings_that_lose_writes_are_found(cluster_url):
    """The node of the tests is configured well; its single copy is all there is to say."""
    with closing(CassandraStore.open(cluster_url)) as store:
        (copies,) = store.check()
    assert "keeps 1 copies" in copies
    said = servers.node_findings("n:1", {"commitlog_sync": "periodic", "paxos_variant": "v1"})
    assert ["commitlog_sync: batch" in said[0], "paxos_variant: v2" in said[1]] == [True, True]
    assert len(servers.node_findings("n:1", {})) == 2
    assert servers.node_findings("n:1", {"commitlog_sync": "group", "paxos_variant": "v2"}) == []


def test_whoever_only_looks_makes_no_keyspace(fresh_url, admin):
    with pytest.raises(InvalidUsage, match="there is no catalog in this keyspace"):
        open_store(fresh_url, create=False)
    found = admin.execute(
        "SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s", (keyspace_of(fresh_url),)
    )
    assert list(found) == []
    CassandraStore.open(fresh_url).close()
    open_store(fresh_url, create=False).close()
