"""What the tests of watching share: two stages in a file, and their log taken for Kafka.

What it is: `shop`, a house whose catalog is a file, with the verbs pointed at its log.
What it must not know: any single verb.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from dedup.filters import Filters
from dedup.local import Home, LaneIndex
from dedup.local.limits import Limits
from dedup.model import Source
from delivery.broker import MemoryBroker
from delivery.operate.opening import opened
from delivery.watch.lag import Lag, lag
from delivery.watch.observed import Observed, observe
from delivery.watch.rows import read_rows
from delivery.watch.waiting import Doors
from tests.unit.house import LANE, WINDOW_MS, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained, housed

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


def busy(house: House, rounds: int = 40) -> None:
    """Run two stages for some hours: more and fewer records, repeats that come soon and late."""
    house.broker.create("end")
    dice = random.Random(7)
    names: list[str] = []
    for number in range(rounds):
        house.now += 240_000
        fresh = [f"{number}-{at}" for at in range(8 + int(20 * math.sin(number / 6) ** 2))]
        repeats = dice.sample(names, min(len(names), dice.randrange(4)))
        names += fresh
        house.write(*fresh, *repeats, timestamp_ms=house.now - dice.randrange(20, 3_000))
        house.done(house.runner(), cut=dice.choice((3, 8, 20)))
        house.done(
            house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)),
            topic="out",
            cut=12,
        )


def indexed(house: House, home: Path) -> None:
    """Let each lane of a house keep its ids in a home, in filters that are small enough to be full."""
    limits = Limits(overlay_ids_min=8, overlay_ids_max=8, first_ids=64)
    catalog = house.catalog()
    for lane in catalog.lanes():
        index = LaneIndex(
            catalog,
            lane,
            window_ms=WINDOW_MS,
            home=Home(home),
            filters=Filters(key=bytes(16)),
            limits=limits,
        )
        index.catch_up(catalog.load(lane).head)
        index.close()


def observed(house: House, *, kafka: bool = True, home: Path | None = None) -> Observed:
    """Look at all of a house."""
    client = Cluster(house.broker) if kafka else None
    return observe(house.catalog(), client, house.now + 90_000, home=home)


def drawings(text: str) -> list[Element]:
    """The charts of a page that are drawn."""
    return [
        fromstring(one)  # noqa: S314  it is our own page
        for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    ]


def told(chart: Element) -> list[str]:
    """What the marks of a chart say when they are pointed at."""
    return [title.text or "" for title in chart.iter("title")]
