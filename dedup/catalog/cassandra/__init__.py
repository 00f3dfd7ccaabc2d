"""The Cassandra store: a catalog for clusters."""

from dedup.catalog.cassandra.store import CassandraStore

__all__ = ["CassandraStore"]
