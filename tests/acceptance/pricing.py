"""The pipeline that the promise is tried on: two stages whose code never returns the same twice.

What it is: the user code, and the plan of its stages over topics of one's own.
What it must not know: who runs it, what is killed.

Invariants:
    One record in is one record out: a priced and shipped one, or a dead letter. Of what is priced
    there is a quote as well, in a topic of its own: both are of one call, and say so.
    What comes out names the record it was made of, so that whoever reads the topics can tell.
    Prices are asked for record by record, and what is shipped is shipped in batches of Arrow.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.catalog.catalog import Catalog
from dedup.local import LaneIndex
from delivery.host.clock import SystemClock
from delivery.host.spec import Plan, StageSpec
from delivery.records import Output, Record
from tests.unit.local_lanes import TINY

#: What records carry beyond what they say.
PAD = "pad"
#: Small, so that a hundred records are several bundles, and some of them wait for one another.
BUNDLE_ROWS = 40
#: Files of a straggler: who it is, and that it may go on.
STRAGGLER, GO_ON = "straggler", "go-on"
#: Files of the process whose clock is wrong: which it is, and that the clock was asked.
STRAY, ASKED = "stray", "asked"
POLL_SECONDS = 0.02
#: The variable that says so, and when that was, in milliseconds.
TINY_INDEXES = "ACCEPTANCE_TINY_INDEXES"
#: What rides in a seal then: the id of a single record, or a few that were dropped.
TINY_INLINE_BYTES_MAX = 48
#: A second is ten minutes then: what a lane may forget is counted in tens of minutes.
PACE = 600


def hurried(began: int) -> int:
    """Tell the time in a hurry, as it is in a trial that began then."""
    return began + PACE * (time.time_ns() // 1_000_000 - began)


def _hurried(_clock: SystemClock) -> int:
    """Tell it, the same in all processes of a trial."""
    return hurried(int(os.environ[TINY_INDEXES]))


if TINY_INDEXES in os.environ:
    # Whoever runs the stages imports this module first; no user has a reason to set either.
    LaneIndex.__init__.__kwdefaults__["limits"] = TINY
    Catalog.__init__.__kwdefaults__["inline_bytes_max"] = TINY_INLINE_BYTES_MAX
    SystemClock.now_ms = _hurried


def price(record: Record) -> list[Output]:
    """Ask somebody for a price, another one each time; it goes to who ships, and to who reckons."""
    priced = {**record.json(), "nonce": uuid.uuid4().hex, "at": time.time()}
    quote = {name: priced[name] for name in ("id", "n", "nonce")}
    return [record.replace(value=priced), record.replace(value=quote).to(1)]


def ship(records: pa.RecordBatch) -> pa.RecordBatch:
    """Ship them: each under another number each time."""
    made = [
        json.dumps({**json.loads(value), "parcel": uuid.uuid4().hex}).encode()
        for value in records.column("value").to_pylist()
    ]
    return pa.RecordBatch.from_pydict({"value": made})


def brief(record: Record) -> list[Output]:
    """Ask for a price of what is long, and keep the answer: it goes on without its padding."""
    told = {name: text for name, text in record.json().items() if name != PAD}
    return price(record._replace(value=json.dumps(told).encode()))


def answer(seconds: float, record: Record) -> list[Output]:
    """Ask somebody for a price who takes so long to answer."""
    time.sleep(seconds)
    return price(record)


def straggle(directory: str, record: Record) -> list[Output]:
    """Ask for a price; whoever asks first of all waits until it is told to go on.

    Each attempt of a task of Spark's writes down that it was here, and on which machine.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - only where Spark runs it

    context, place = TaskContext.get(), Path(directory)
    assert context is not None
    name = f"{context.stageId()}.{context.partitionId()}.{context.taskAttemptId()}"
    if not (place / name).exists():
        (place / name).write_text(os.environ.get("SPARK_LOCAL_IP", ""))
    with suppress(FileExistsError):
        with (place / STRAGGLER).open("x") as file:
            file.write(name)
        while not (place / GO_ON).exists():
            time.sleep(POLL_SECONDS)
    return price(record)


@dataclass(frozen=True, slots=True)
class Stray:
    """Asks for a price; the first process of Spark's that is handed it has a wrong clock from then on."""

    directory: str
    ahead_ms: int

    def __call__(self, record: Record) -> list[Output]:
        """Ask for a price."""
        return price(record)

    def __reduce__(self) -> tuple[Callable[..., Stray], tuple[str, int]]:
        return astray, (self.directory, self.ahead_ms)


def astray(directory: str, ahead_ms: int) -> Stray:
    """Arrive in a process."""
    from pyspark import TaskContext  # noqa: PLC0415 - only where Spark runs it

    if TaskContext.get() is not None:
        with suppress(FileExistsError), (Path(directory) / STRAY).open("x") as file:
            file.write(str(os.getpid()))
            right = SystemClock.now_ms

            def wrong(clock: SystemClock) -> int:
                (Path(directory) / ASKED).touch()
                return right(clock) + ahead_ms

            setattr(SystemClock, "now_ms", wrong)  # noqa: B010 - a method, to mypy
    return Stray(directory, ahead_ms)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One pipeline with topics of its own; travels to other processes as JSON.

    Attributes:
        name: of the pipeline, and what the names of its topics begin with.
        kafka: "host:port".
        catalog: its URL.
        home: directory for the lanes' indexes.
        bundle_rows: what ends a bundle.
        rekeyed: whether records are re-keyed by their ids first: then there are three stages, and
            repeats may come in any partition.
        answer_seconds: how long whoever is asked for a price takes to answer.
        brief: whether what is priced goes on without its padding.
        tiny: when a trial began, in milliseconds, whose indexes keep little in memory and in each
            file, and whose time hurries, so that all steps of their upkeep come soon; in processes
            that are told so by `TINY_INDEXES`. 0: none does.
        straggling: directory in which attempts of tasks say who they are; the first of them waits.
        astray: directory in which a process of Spark's says that it is the one with a wrong clock.
        ahead_ms: how wrong.
    """

    name: str
    kafka: str
    catalog: str
    home: str
    bundle_rows: int = BUNDLE_ROWS
    rekeyed: bool = False
    answer_seconds: float = 0.0
    brief: bool = False
    straggling: str = ""
    tiny: int = 0
    astray: str = ""
    ahead_ms: int = 0

    @property
    def raw(self) -> str:
        """Where records come in."""
        return f"{self.name}.raw"

    @property
    def by_id(self) -> str:
        """Where they are re-keyed into."""
        return f"{self.name}.by-id"

    @property
    def priced(self) -> str:
        """Between the stages."""
        return f"{self.name}.priced"

    @property
    def quotes(self) -> str:
        """Where prices go beside."""
        return f"{self.name}.quotes"

    @property
    def out(self) -> str:
        """Where they leave."""
        return f"{self.name}.out"

    @property
    def dead(self) -> str:
        """Where records go that cannot be priced."""
        return f"{self.name}.dead"

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic, in the order in which records travel."""
        between = (self.by_id,) if self.rekeyed else ()
        return (self.raw, *between, self.priced, self.quotes, self.out, self.dead)

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """The stages, upstream first."""
        common: dict[str, Any] = {"pipeline": self.name, "bundle_rows": self.bundle_rows}
        by_id = StageSpec(
            name="by-id",
            reads=self.raw,
            writes=(self.by_id,),
            call=lambda record: record,
            named="header:id",
            keep_ids=True,
            by_id=True,
            **common,
        )
        pricing = StageSpec(
            name="price",
            reads=self.by_id if self.rekeyed else self.raw,
            writes=(self.priced, self.quotes),
            call=self._price,
            named=None if self.rekeyed else "header:id",
            dead_letters=self.dead,
            **common,
        )
        shipping = StageSpec(
            name="ship", reads=self.priced, writes=(self.out,), call=ship, batch=True, **common
        )
        return (by_id, pricing, shipping) if self.rekeyed else (pricing, shipping)

    @property
    def _price(self) -> Callable[[Record], list[Output]]:
        if self.straggling:
            return partial(straggle, self.straggling)
        if self.astray:
            return Stray(self.astray, self.ahead_ms)
        if self.brief:
            return brief
        return partial(answer, self.answer_seconds) if self.answer_seconds else price

    @property
    def plan(self) -> Plan:
        """All that a process needs."""
        return Plan(catalog=self.catalog, kafka=self.kafka, stages=self.stages, home=self.home)
