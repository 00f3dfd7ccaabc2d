"""What the tests of watching share: two stages in a file, and their log taken for Kafka.

What it is: `shop`, a house whose catalog is a file, with the verbs pointed at its log.
What it must not know: any single verb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedup.model import Source
from delivery.broker import MemoryBroker
from delivery.operate.opening import opened
from delivery.watch.lag import Lag, lag
from delivery.watch.rows import read_rows
from delivery.watch.waiting import Doors
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import chained, housed

#: When records without a time of their own were written, and a little after.
WRITTEN_MS = 1_700_000_000_000


class Cluster(MemoryClient):
    """A log that says how its topics are set."""

    def __init__(self, broker: MemoryBroker, lows: Mapping[Source, int] | None = None) -> None:
        super().__init__(broker, lows)
        self.settings: dict[str, dict[str, str]] = {}

    def settings_of(self, name: str) -> dict[str, str]:
        return self.settings.get(name, {})


@contextmanager
def shop(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Two stages that have read everything, and verbs that take their log for Kafka."""
    with housed(path, chained) as house:
        client = Cluster(house.broker)
        monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: client)
        yield house


def looked(house: House, now_ms: int, *, kafka: bool = True) -> Lag:
    """Look at a house as the verb does."""
    with opened(house.store.url) as catalog:
        rows = read_rows(catalog)
        doors = Doors(Cluster(house.broker)) if kafka else None
        return lag(catalog, rows, doors, now_ms)
