"""A process that seals bundles on a lane until it has enough or is killed.

What it is: `python writer.py URL LANE SEQ_MAX BYTES_MAX`, run by the conformance tests. It waits
for a line on its standard input, and then says what it does, a line at a time:
    ready | sealing SEQ ATTEMPT | sealed SEQ ATTEMPT | lost SEQ WINNER | acknowledged SEQ
What it must not know: who kills it, and when.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob, Store
from dedup.errors import Indeterminate, Unavailable
from dedup.model import Attempt, Head, Seal
from tests.conformance.values import acknowledged, following, slot

#: How often the same attempt is appended before the process gives up.
APPENDS_MAX = 20
#: How often a call that did not happen is made again, and how long it waits before.
TRIES_MAX = 60
PAUSE_SECONDS = 0.2
#: Repeating these changes nothing, so an unknown outcome is no reason to stop.
REPEATABLE = ("put", "delete")


class Patient:
    """A store that tries again what did not happen, as every host of a lane does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found
        return lambda *args, **named: again(name, lambda: found(*args, **named))


def again(name: str, call: Callable[[], Any]) -> Any:
    """Make a call until it has happened."""
    pause = threading.Event()
    for _ in range(TRIES_MAX):
        try:
            return call()
        except Unavailable:
            pause.wait(PAUSE_SECONDS)
        except Indeterminate:
            if name == "acknowledge":
                return False  # whoever is not sure reads it again
            if name not in REPEATABLE:
                raise
            pause.wait(PAUSE_SECONDS)
    raise SystemExit(f"{name} did not happen in {TRIES_MAX} tries")


def say(*words: object) -> None:
    """Write one line, in one piece."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def append(catalog: Catalog, lane: str, head: Head, after: Head, seal: Seal) -> Attempt:
    """Append the same attempt until its outcome is known; return who is at its position."""
    for _ in range(APPENDS_MAX):
        try:
            if catalog.append(lane, head.ref, after, seal):
                return seal.ref.attempt
        except Indeterminate as unknown:
            say("unknown", unknown)
        winner = catalog.resolve(lane, seal.ref.incarnation, seal.ref.seq).seal
        if winner is not None:
            return winner.ref.attempt
    raise SystemExit("the outcome stayed unknown")


def acknowledge(catalog: Catalog, lane: str, head: Head) -> None:
    """Acknowledge up to `head`, unless somebody has acknowledged further."""
    row = catalog.load(lane)
    assert row is not None, "the lane was there"
    ack = acknowledged(head)
    if row.ack.seq < ack.seq and catalog.acknowledge(lane, row.ack, ack):
        say("acknowledged", ack.seq)


def main(
    url: str, lane: str, seq_max: int, bytes_max: int, opened: Callable[[str], Store] = open_store
) -> None:
    """Seal up to `seq_max`."""
    catalog = Catalog(Patient(again("open", lambda: opened(url))))
    say("ready")
    sys.stdin.readline()
    while (row := catalog.load(lane)) is not None and row.head.ref.seq < seq_max:
        size = random.randint(0, bytes_max)
        chunks = [random.randbytes(size), random.randbytes(100)]
        after, seal = following(row.head, chunks)
        seq, attempt = seal.ref.seq, seal.ref.attempt
        catalog.put(Blob.OUTPUTS, slot(lane, seal.ref), chunks, 10)
        say("sealing", seq, attempt.hex())
        winner = append(catalog, lane, row.head, after, seal)
        if winner == attempt:
            say("sealed", seq, attempt.hex())
            acknowledge(catalog, lane, after)
        else:
            say("lost", seq, winner.hex())
            catalog.store.delete(Blob.OUTPUTS, [slot(lane, seal.ref)])
    catalog.store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
