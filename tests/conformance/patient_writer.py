"""writer.py on a cluster whose nodes come and go: `python patient_writer.py URL LANE SEQ_MAX BYTES_MAX`.

What it is: the same writer, whose requests end soon enough to be made again on another node.
What it must not know: who hurts the nodes.
"""

from __future__ import annotations

import sys

from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.catalog import Catalog
from dedup.errors import Indeterminate, Unavailable
from tests.conformance import writer

#: A request to a node that hangs ends after so long; the driver notices in about ten seconds.
REQUEST_SECONDS = 2.0


def opened(url: str) -> CassandraStore:
    """Open the store; opening may be repeated, so what is not known of it did not happen."""
    try:
        return CassandraStore.open(url, request_seconds=REQUEST_SECONDS)
    except Indeterminate as unknown:
        raise Unavailable(unknown.op, unknown.subject, unknown.hint) from unknown


def open_patiently(url: str) -> Catalog:
    """Open a catalog that tries again; opening it is tried again too."""
    return Catalog(writer.Patient(writer.again("open", lambda: opened(url))))


if __name__ == "__main__":
    writer.main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), opened)
