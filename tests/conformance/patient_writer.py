"""writer.py on a cluster whose nodes come and go: `python patient_writer.py URL LANE SEQ_MAX BYTES_MAX`.

What it is: the same writer over a store that tries again what did not happen, as every host of a
lane does.
What it must not know: who hurts the nodes.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.catalog import Catalog
from dedup.errors import Indeterminate, Unavailable
from tests.conformance import writer

#: A request to a node that hangs ends after so long; the driver notices in about ten seconds.
REQUEST_SECONDS = 2.0
TRIES_MAX = 60
PAUSE_SECONDS = 0.2
#: Repeating these changes nothing, so an unknown outcome is no reason to stop.
REPEATABLE = ("put", "delete")


class Patient:
    """A store that tries again."""

    def __init__(self, store: CassandraStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return (
            (lambda *args, **named: self._again(name, found, *args, **named))
            if callable(found)
            else found
        )

    @staticmethod
    def _again(name: str, method: Any, *args: Any, **named: Any) -> Any:
        pause = threading.Event()
        for _ in range(TRIES_MAX):
            try:
                return method(*args, **named)
            except Unavailable:
                pause.wait(PAUSE_SECONDS)
            except Indeterminate:
                if name == "acknowledge":
                    return False  # whoever is not sure reads it again
                if name not in REPEATABLE:
                    raise
                pause.wait(PAUSE_SECONDS)
        raise SystemExit(f"{name} did not happen in {TRIES_MAX} tries")


def open_patiently(url: str) -> Catalog:
    """Open a catalog that tries again; opening too may be repeated."""
    pause = threading.Event()
    for _ in range(TRIES_MAX):
        try:
            return Catalog(Patient(CassandraStore.open(url, request_seconds=REQUEST_SECONDS)))
        except (Unavailable, Indeterminate):
            pause.wait(PAUSE_SECONDS)
    raise SystemExit(f"it did not open in {TRIES_MAX} tries")


if __name__ == "__main__":
    writer.open_catalog = open_patiently
    writer.main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
