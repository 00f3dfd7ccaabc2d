"""The alarm on filters: who looks, what is counted and logged, and where an operator sees it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from connectors.memory import MemoryReader
from dedup.catalog.open import open_catalog
from dedup.filters import Filters
from dedup.ids import named_many
from dedup.local import Home
from dedup.local.alarm import LOOK_BYTES, QUIET_SECONDS, Alarm
from dedup.local.limits import LIMITS
from dedup.local.stats import Counters
from delivery.broker import MemoryBroker
from delivery.host.clock import SystemClock
from delivery.host.lane import LaneTask
from delivery.host.spec import StageSpec
from delivery.records import Record
from delivery.watch.serving import Run, Serving
from sinks.memory import MemoryEmitter
from tests.unit.local_lanes import NAME, Lane
from tests.unit.operate_kit import called, document
from tests.unit.test_local_index import all_known, opened

#: As many as fill an overlay, so that they are written and the filter is looked at.
CROWD = 17_000
#: Which names a stranger tries, and the share that he keeps: those of one filter's first lines.
TRIED, KEPT_SHARE = 600_000, 0.03


@cache
def crowding() -> list[bytes]:
    """Names that a stranger chose: all of their ids are in the first lines of a filter without a key."""
    names = [b"%d" % number for number in range(TRIED)]
    chosen = (named_many(names)[:, 0] & np.uint64(0xFFFFFFFF)) < KEPT_SHARE * (1 << 32)
    found = [names[place] for place in np.flatnonzero(chosen)[:CROWD].tolist()]
    assert len(found) == CROWD
    return found


class Shop:
    """One lane of a stage whose publishers name their records, on a host of its own."""

    def __init__(self, directory: Path, filters: Filters) -> None:
        self.url, self.home = f"sqlite:{directory / 'shop.db'}", directory / "home"
        self.broker = MemoryBroker()
        for topic in ("in", "out"):
            self.broker.create(topic)
        (self.source,) = self.broker.sources("in")
        self.reader = MemoryReader(self.broker, "in", [self.source])
        self.catalog = open_catalog(self.url)
        self.lane = LaneTask(
            StageSpec(
                pipeline="shop",
                name="price",
                reads="in",
                writes=("out",),
                call=lambda _: None,
                named="value",
            ),
            self.source,
            catalog=self.catalog,
            home=Home(self.home),
            filters=filters,
            clock=SystemClock(threading.Event()),
            reader=self.reader,
            emitter=MemoryEmitter(self.broker, ["out"]),
        )
        self.lane.open(0)

    def run(self, names: list[bytes]) -> None:
        """Publish records and work them off."""
        first = self.broker.high([self.source])
        for name in names:
            self.broker.append(self.source, Record(value=name))
        last = self.broker.high([self.source])
        for batch in self.reader.read(first, last):
            self.lane.take(batch, last.at(self.source) or 0)
        while not self.lane.idle:
            self.lane.turn()

    def metric(self) -> float:
        """What a scraper is told."""
        serving = Serving(0)
        serving.follow(Run("shop", lambda: True, partial(counted, self.lane)))
        (line,) = [
            line
            for line in serving._text().splitlines()
            if line.startswith("delivery_run_filter_saturations_total{")
        ]
        return float(line.rpartition(" ")[2])


def counted(lane: LaneTask) -> dict[str, int]:
    return lane.counters.document()


@pytest.fixture(params=[None, b"k" * 16], ids=["no-key", "key"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, Filters(key=request.param))
    with closing(made.catalog.store), closing(made.lane):
        yield made


def test_names_that_crowd_a_filter_are_logged_counted_and_shown_unless_it_has_a_key(shop, caplog):
    shop.run([b"honest"])
    assert shop.metric() == 0
    crowd = crowding()
    for part in (crowd[: CROWD // 2], crowd[CROWD // 2 :], [b"another"]):
        shop.run(part)
    keyed = shop.lane._index.stats.alarm == ""
    filters = document("catalog", "inspect", shop.url, "--home", str(shop.home))["lanes"][0][
        "filters"
    ]
    assert filters["keyed"] == keyed
    assert [one["saturated"] for one in filters["each"]] == [not keyed]
    told = called("catalog", "inspect", shop.url, "price", "in-0", "--home", str(shop.home)).stdout
    assert ("SATURATED" in told) == (not keyed)
    assert shop.metric() == (not keyed)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * (not keyed)
    if not keyed:
        (said,) = caplog.messages
        assert said.startswith(f"{shop.lane.name}: 1 filters are saturated: verdicts stay right")
        assert "Delivery(filters=Filters(key=...))" in said
    # As many again cannot fill the overlay without another look.
    shop.run([b"later %d" % number for number in range(CROWD)])
    shop.run([b"last"])
    assert shop.metric() == 2 * (not keyed)
    assert len(caplog.records) == (not keyed), "it is logged once in a while"


def test_what_came_last_is_looked_at_when_a_process_ends(tmp_path, caplog):
    """Which may be all that it ever sees: many short runs fill a filter, too."""
    lane = Lane()
    crowd = [bytes(5) + lane.random.randbytes(7) + bytes(4) for _ in range(CROWD // 2)]
    with opened(lane, tmp_path, limits=LIMITS) as index:
        index.catch_up(lane.head)
        assert index.took(*lane.append(crowd))
        assert (index.counters.saturated, caplog.messages) == (0, [])
    assert index.counters.saturated == 1
    assert len(caplog.messages) == 1
    with opened(lane, tmp_path, limits=LIMITS) as index:
        assert all_known(index, lane)
    assert index.counters.saturated == 0, "nothing came"


class Large:
    """A group with a filter of some bytes that is saturated."""

    def __init__(self, size: int) -> None:
        self.filter = self
        self.nbytes = size
        self.saturated = True


def test_a_look_waits_until_it_costs_little_for_each_id(caplog):
    counters, alarm = Counters(), Alarm(NAME)
    groups = [Large(LOOK_BYTES * 60), Large(LOOK_BYTES * 40)]
    for _ in range(9):
        alarm.unseen += 11
        alarm.look(groups, counters)
    assert counters.saturated == 0
    alarm.unseen += 1
    alarm.look(groups, counters)
    assert counters.saturated == 2
    alarm.look(groups, counters)
    alarm.look(groups, counters, spare_bytes=1 << 30)
    assert counters.saturated == 2, "nothing came"
    alarm.unseen += 1
    alarm.look(groups, counters, spare_bytes=LOOK_BYTES * 100)
    assert counters.saturated == 4
    assert len(caplog.records) == 1


def test_it_is_logged_again_after_a_while(caplog):
    now = [100.0]
    counters, alarm = Counters(), Alarm(NAME, lambda: now[0])
    for at, logged in ((0.0, 1), (1.0, 1), (QUIET_SECONDS - 1, 1), (QUIET_SECONDS, 2)):
        now[0] = 100.0 + at
        alarm.unseen += 1
        alarm.look([Large(1)], counters)
        assert len(caplog.records) == logged
    assert counters.saturated == 4
