"""A house for lanes: a log in memory, a catalog on any store, and the real runner between them.

What it is: `House`, its clock included, and wrappers of its ports that answer otherwise.
What it must not know: any single test.

Invariants:
    User code says something new every time it is called; what it says is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from connectors.memory import MemoryReader, memory_logs
from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob, Store
from dedup.errors import DeliveryError
from dedup.index import ExactIndex
from dedup.local import Home, LaneIndex
from dedup.model import Frontier, Seal, Source
from delivery.batch import batches_of
from delivery.broker import MemoryBroker
from delivery.checker import Evidence, Finding, LaneInput, Log, check
from delivery.judge import Index, Judge
from delivery.lateness import Trust
from delivery.protocol import messages as m
from delivery.records import Output, Record
from delivery.runner import LaneRunner
from delivery.stage import Function, Policy
from delivery.testing.faulty import Fault, FaultyStore, Wire
from delivery.timing import time_from
from sinks.memory import MemoryEmitter

LANE = "shop/price/0"
WINDOW_MS = 86_400_000
#: No run here takes so many steps; one that does would never end.
STEPS_MAX = 20_000


def id_from(record: Record) -> bytes | None:
    return record.header("id")


class House:
    """A broker, a catalog, a clock.

    Args:
        store: where the catalog is.
        inline_bytes_max: what may ride in a seal.
        home: where lanes keep their ids on this host; None: each keeps them to itself, exactly.
    """

    def __init__(
        self, store: Store, *, inline_bytes_max: int = 4096, home: Home | None = None
    ) -> None:
        self.store = store
        self.home = home
        self.indexes: list[LaneIndex] = []
        self.inline_bytes_max = inline_bytes_max
        self.broker = MemoryBroker()
        self.broker.create("in")
        self.broker.create("out")
        self.random = random.Random(1)
        self.now = 1_700_000_000_000
        self.pauses: list[int] = []
        self.inputs: dict[str, LaneInput] = {}

    # The clock --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        self.now += 7
        return self.now

    def fresh(self) -> bytes:
        return self.random.randbytes(16)

    def back_off(self, losses: int) -> None:
        self.pauses.append(losses)

    # Records ----------------------------------------------------------------------------------

    def quote(self, record: Record) -> Output:
        """Say something new."""
        return Output(value=self.random.randbytes(40), key=record.key)

    def write(self, *names: str, topic: str = "in", partition: int = 0, **more: Any) -> None:
        """Write one record for each name."""
        for name in names:
            headers = (("id", name.encode()),)
            record = Record(value=name.encode(), headers=headers, **more)
            self.broker.append(self.source(topic, partition), record)

    def source(self, topic: str = "in", partition: int = 0) -> Source:
        return Source(self.broker.names[topic], partition)

    def sent(self, topic: str = "out", partition: int = 0) -> list[Record]:
        """Everything in a partition."""
        log = self.broker.partitions[self.source(topic, partition)]
        return [record for record in log if record is not None]

    # Lanes ------------------------------------------------------------------------------------

    def catalog(self, store: Any = None) -> Catalog:
        return Catalog(store or self.store, inline_bytes_max=self.inline_bytes_max)

    def runner(
        self,
        lane: str = LANE,
        *,
        reads: str = "in",
        writes: Sequence[str] = ("out",),
        call: Callable[[Record], object] | None = None,
        store: Any = None,
        senders: Sequence[str] = (),
        window_ms: int = WINDOW_MS,
        **ports: Any,
    ) -> LaneRunner:
        """Make a process's runner of a lane over partition 0 of a topic."""
        catalog = self.catalog(store)
        index = self.index(catalog, lane, window_ms)
        named = ports.pop("id_from", id_from)
        payloads = ports.pop("payloads", False)
        way = ports.pop("time_from", None)
        self.inputs[lane] = LaneInput(id_from=named, window_ms=window_ms)
        given = {
            "reader": MemoryReader(self.broker, reads, [self.source(reads)]),
            "emitter": MemoryEmitter(self.broker, writes),
            "stage": Function(call or self.quote),
            "clock": self,
            **ports,
            "policy": (policy := replace(ports.get("policy") or Policy(), window_ms=window_ms)),
        }
        logs = partial(memory_logs, self.broker)
        letters = policy.dead_letter_edge is not None
        judge = Judge(
            catalog,
            index,
            named,
            lambda: senders,
            logs=logs,
            payloads=payloads,
            letters=letters,
            repeats=policy.duplicate_edge is not None,
            trust=None if way is None else Trust(time_from(way), window_ms),
        )
        return LaneRunner(lane, catalog=catalog, judge=judge, **given)

    def index(self, catalog: Catalog, lane: str, window_ms: int) -> Index:
        """Make a process's index of a lane's ids."""
        if self.home is None:
            return ExactIndex(catalog, lane, window_ms)
        self.indexes.append(LaneIndex(catalog, lane, window_ms=window_ms, home=self.home))
        return self.indexes[-1]

    def close(self) -> None:
        """Let every process of it go."""
        for index in self.indexes:
            # A test may have closed the store under it, as a host does that dies.
            with suppress(DeliveryError):
                index.close()
        self.store.close()

    def begin(self, runner: LaneRunner, start: int = 0, topic: str = "in") -> None:
        """Open a lane whose source ends where its log ends now."""
        source = self.source(topic)
        runner.tell(m.Opened(Frontier.of([(source, start)])))
        runner.tell(m.Ending(self.broker.high([source])))

    def turn(self, runner: LaneRunner, cut: int = 100, topic: str = "in") -> bool:
        """Offer the next bundle if the lane is hungry, or perform one instruction."""
        source, lane = self.source(topic), runner.state.lane
        if lane.hungry:
            start = lane.planned.at(source) or 0
            end = min(start + cut, len(self.broker.partitions[source]))
            if start < end:
                span = (Frontier.of([(source, start)]), Frontier.of([(source, end)]))
                runner.offer(m.Polled(*span), batches_of(self.broker.read(source, start, end)))
                return True
        return runner.step()

    def run(self, runner: LaneRunner, cut: int = 100, start: int = 0, topic: str = "in") -> m.Stop:
        """Run a process to its end."""
        self.begin(runner, start, topic)
        for _ in range(STEPS_MAX):
            if runner.state.stopped is not None:
                return runner.state.stopped
            assert self.turn(runner, cut, topic), f"stuck: {runner.state.lane}"
        raise AssertionError("it never ends")

    def done(self, runner: LaneRunner | None = None, cut: int = 100, topic: str = "in") -> None:
        """Run a process that must succeed."""
        stop = self.run(runner or self.runner(), cut, topic=topic)
        assert stop.end is m.End.DONE, stop.why

    # What can be seen -------------------------------------------------------------------------

    def proved(self, *, finished: bool = True, **more: Any) -> list[Finding]:
        """What the independent checker finds."""
        logs = {
            source: Log(records, len(records)) for source, records in self.broker.partitions.items()
        }
        return check(
            Evidence(store=self.store, logs=logs, lanes=self.inputs, finished=finished, **more)
        )

    def picture(self) -> object:
        """Every row and every record."""
        return rows(self.store), dict(self.broker.partitions)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Check that nothing at all is written meanwhile."""
        before = self.picture()
        yield
        assert self.picture() == before


def rows(store: Store) -> dict[str, object]:
    """Everything that a store holds of its lanes, chunks of lanes that never were included."""
    found: dict[str, object] = {}
    for lane in {*store.lanes(), LANE}:
        row = store.read(lane)
        owners = sorted({slot.incarnation for kind in Blob for slot in store.slots(kind, lane)})
        if row is not None:
            owners = sorted({*owners, row.ref.incarnation})
        found[lane] = (
            row,
            [(owner, store.entries(lane, owner, 0, 1 << 40)) for owner in owners],
            [[(s, store.get(kind, s)) for s in sorted(store.slots(kind, lane))] for kind in Blob],
            store.read_list(lane),
            sorted(store.losers(lane)),
        )
    return found


def failing(
    store: Store, method: str, fault: Fault, times: int = 1 << 30, after: int = 0
) -> FaultyStore:
    """A store some of whose calls of one method fail."""
    made = 0

    def plan(_number: int, request: Any) -> Fault | None:
        nonlocal made
        made += request.method == method
        due = request.method == method and after < made <= after + times
        return fault if due else None

    return FaultyStore(store, Wire({}, plan))


def broken(house: House, runner: LaneRunner) -> BaseException | None:
    """Run a process that must break; return what it broke on."""
    stop = house.run(runner, cut=1)
    assert stop.end is m.End.BROKEN
    assert stop.why == str(runner.state.error)
    return runner.state.error


def sealed_upto(house: House) -> int | None:
    return house.catalog().load(LANE).head.frontier.at(house.source())


def fail_on(house: House, name: bytes, error: Exception) -> Callable[[Record], object]:
    """User code that raises on one value."""

    def call(record: Record) -> object:
        if record.value == name:
            raise error
        return house.quote(record)

    return call


def seals(house: House) -> list[Seal]:
    """Every seal of the lane, the first one included."""
    catalog = house.catalog()
    row = catalog.load(LANE)
    return catalog.seals(LANE, row.head.ref.incarnation, 0, row.head.ref.seq)


def values(house: House, topic: str = "out") -> list[bytes | None]:
    """The values in a topic."""
    return [record.value for record in house.sent(topic)]


class Moved:
    """A reader whose log has moved."""

    def __init__(self, reader: MemoryReader, **changes: Any) -> None:
        self._reader = reader
        self._changes = changes

    def log(self) -> Any:
        return replace(self._reader.log(), **self._changes)
