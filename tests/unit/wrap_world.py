"""A wrapped job without Spark: the real runner of its lane over a plan that is made up.

What it is: `World`, a broker in memory with two partitions of input, a catalog, and a plan that passes
records on.
What it must not know: any single test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from connectors.memory import MemoryReader
from dedup.arrays import pack
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Store
from dedup.ids import named
from dedup.index import ExactIndex
from dedup.model import Frontier, RecordId, Source
from delivery.broker import MemoryBroker
from delivery.host.clock import SystemClock
from delivery.judge import Judge
from delivery.naming import id_from, per_topic, said_of
from delivery.protocol import messages as m
from delivery.protocol.state import Limits
from delivery.records import Record
from delivery.stage import Policy, stage_of
from delivery.verdicts import EXTERNAL
from delivery.wrap.pieces import Piece
from delivery.wrap.positions import state_source
from delivery.wrap.runner import Result, StageLaneRunner
from delivery.wrap.token import Token
from sinks.memory import MemoryEmitter

LANE = "p/report/all"
STATE = state_source("00000000-0000-0000-0000-00000000002a")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)


class World:
    """A broker with two partitions of input, a catalog, and plans that pass records on."""

    def __init__(self, store: Store | None = None) -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", 2)
        self.broker.create("out", 2)
        self.catalog = Catalog(store or MemoryStore())
        self.state = STATE
        self.tokens: list[Token] = []
        #: What happens to the results of the next runs.
        self.faults: list[Callable[[Result], Result]] = []
        self.before_append: Callable[[], object] | None = None

    def write(self, partition: int, *names: str) -> None:
        source = self.broker.sources("in")[partition]
        for name in names:
            self.broker.append(source, Record(value=name.encode(), key=name.encode()))

    def runner(self, *, state: bool = False, policy: Policy | None = None) -> StageLaneRunner:
        sources = self.broker.sources("in")
        naming = per_topic(id_from("value"))
        judge = Judge(self.catalog, ExactIndex(self.catalog, LANE, 1000), naming, tuple)
        made = StageLaneRunner(
            LANE,
            topics={"in": self.broker.names["in"]},
            outputs=("out",),
            run_plan=self.run_plan,
            judge_range=self.judge_range,
            state=self.state.topic if state else b"",
            catalog=self.catalog,
            judge=judge,
            reader=MemoryReader(self.broker, "in", sources),
            stage=stage_of(lambda _: None),
            emitter=MemoryEmitter(self.broker, ["out"]),
            clock=SystemClock(threading.Event()),
            policy=policy or Policy(named=said_of("value", by_topic=True)),
            limits=Limits(pending_max=1),
        )
        start = [(source, 0) for source in sources] + ([(self.state, 0)] if state else [])
        made.tell(m.Opened(Frontier.of(start)))
        made.drain()
        return made

    def batch(self, runner: StageLaneRunner, number: int | None = None) -> None:
        """Run a batch over all there is."""
        head = runner.state.lane.known.frontier
        start = {source: head.at(source) or 0 for source in self.broker.sources("in")}
        end = dict(self.broker.high(list(start)))
        if number is not None:
            start[self.state], end[self.state] = number, number + 1
        runner.offer(m.Polled(Frontier.of(start.items()), Frontier.of(end.items())), [])
        runner.drain()

    def run_plan(self, token: Token) -> Result:
        self.tokens.append(token)
        drops = {(r.source, o) for r in token.drops for o in range(r.offset, r.offset + r.count)}
        pieces, values = {}, []
        for source in token.ranges:
            piece = self.judge_range(token, source)
            if piece.read:
                pieces[source] = piece
            read = self.broker.read(source, *token.ranges[source])
            values += [r.value for r in read if (source, r.offset) not in drops]
        columns = {name: [None] * len(values) for name in SCHEMA.names} | {"value": values}
        result = Result(table=pa.table(columns, schema=SCHEMA), pieces=pieces)
        return self.faults.pop(0)(result) if self.faults else result

    def judge_range(self, token: Token, source: Source) -> Piece:
        """Take every record for fresh."""
        read = self.broker.read(source, *token.ranges[source])
        return Piece(
            read=len(read),
            offsets=np.array([record.offset for record in read], dtype=np.int64),
            ids=pack([self.id_of(record.value or b"") for record in read]),
            buckets=np.full(len(read), EXTERNAL, dtype=np.int64),
            mark_of=np.full(len(read), -1, dtype=np.intp),
        )

    def id_of(self, value: bytes) -> RecordId:
        """Return the id of a record of the input: a name is one within its topic."""
        return named(self.broker.names["in"] + value)

    def sent(self) -> list[bytes | None]:
        logs = [self.broker.partitions[source] for source in self.broker.sources("out")]
        return sorted(record.value for log in logs for record in log if record is not None)
