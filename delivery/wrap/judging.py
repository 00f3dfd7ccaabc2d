"""Verdicts inside a user's plan: rows of Spark's Kafka source go in, the fresh ones come out.

What it is: `judged`, which Spark calls in the tasks that read, and `judge_range`, the same for a
range that no task reported.
What it must not know: what the user's plan does with the rows, how a run ends.

Invariants:
    A row is passed on only after its verdict; what is below the lane's frontier has none, and is
    not passed on.
    Verdicts are made against the head in the token, whatever the lane's head is by now.
    A partition is reported only when all of its rows were judged and taken by the plan.
    What goes wrong is reported, and no row passed on: the driver throws the run away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.errors import DeliveryError, InvalidUsage
from dedup.local.home import home_of
from dedup.local.index import LaneIndex
from dedup.local.stats import Asked
from dedup.model import Frontier, Source
from delivery.batch import Batch
from delivery.host.spec import Plan, StageSpec
from delivery.judge import Judge
from delivery.kafka.port import Fetched, empty
from delivery.microbatch.columns import batch_of, split
from delivery.microbatch.telling import told
from delivery.naming import per_topic
from delivery.resident.failures import document_of
from delivery.verdicts import Verdicts
from delivery.wrap.pieces import Piece, piece_of
from delivery.wrap.positions import lane_of
from delivery.wrap.token import PROPERTY, Token

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

__all__ = ["Bench", "Setup", "judge_range", "judged"]

#: Runs of queries whose index a worker process keeps; the oldest goes.
KEPT_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is fixed when a user's plan is made.

    Attributes:
        plan: catalog and cluster.
        spec: the stage, as far as verdicts go.
        query: which making of the plan it is; what a process keeps is kept under it.
        reports: where tasks report.
    """

    plan: Plan
    spec: StageSpec
    query: str
    reports: Accumulator[Any]

    def __repr__(self) -> str:
        # Spark prints closures; Kafka's options are secrets.
        return f"Setup({self.spec.name!r})"


def judged(setup: Setup, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the fresh rows of what a task reads, and report on each partition at its end."""
    text = told(PROPERTY)
    token = Token.decode(text) if text else None
    if token is None or token.lane != lane_of(setup.spec.pipeline, setup.spec.name):
        raise InvalidUsage(
            "read a wrapped source",
            setup.spec.name,
            "its rows are asked for outside of d.wrap_sink(...), where start() or save() runs them; "
            "nothing was read: end the query in a wrapped sink, or read the topic unwrapped to look at "
            "it",
        )
    desk = _Desk(token, _bench(setup))
    try:
        for table in tables:
            yield desk.passed(table)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the run thrown away
        _forget(setup.query)
        source = Source(next(iter(token.topics.values())), 0)
        failed = Piece(failed=document_of(error, token.lane))
        setup.reports.add({(token.run, source): failed})
        return
    setup.reports.add({(token.run, source): piece for source, piece in desk.pieces().items()})


class Bench:
    """What a process keeps for the verdicts of one lane."""

    def __init__(self, plan: Plan, spec: StageSpec, lane: str) -> None:
        home = home_of(plan.home)
        self.spec = spec
        self.catalog: Catalog = open_catalog(plan.catalog)
        self.index = LaneIndex(
            self.catalog, lane, window_ms=spec.window_ms, home=home, filters=plan.filters
        )

    def judge(self, senders: Callable[[], Iterable[str]] = tuple) -> Judge:
        """Return a judge; what is learned of senders the driver learns, and tasks need none."""
        return Judge(
            self.catalog,
            self.index,
            per_topic(self.spec.id_of()),
            senders,
            payloads=self.spec.conflicts != "ignore",
        )

    def close(self) -> None:
        """Let go of everything."""
        with suppress(DeliveryError):
            self.index.close()
        self.catalog.store.close()


class _Desk:
    """The verdicts of one task."""

    def __init__(self, token: Token, bench: Bench) -> None:
        self._token = token
        self._judge = bench.judge()
        self._counters = bench.index.counters
        self._asked: dict[Source, Asked] = {}
        self._saturated: Counter[Source] = Counter()
        self._drops = {
            source: np.array(
                sorted(
                    offset
                    for run in token.drops
                    if run.source == source
                    for offset in range(run.offset, run.offset + run.count)
                ),
                dtype=np.int64,
            )
            for source in {run.source for run in token.drops}
        }
        self._found: dict[Source, list[Verdicts]] = {}
        self._newest: dict[Source, int] = {}

    def passed(self, table: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that take effect."""
        keep = np.zeros(table.num_rows, dtype=np.bool_)
        row = 0
        for piece, source in split(table, self._source):
            keep[row : row + piece.num_rows] = self.effective(batch_of(piece, source))
            row += piece.num_rows
        return table if keep.all() else table.filter(pa.array(keep))

    def effective(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Tell of each record of one partition whether it takes effect."""
        source, offsets = batch.source, batch.offsets
        start, end = self._token.ranges[source]
        keep: npt.NDArray[np.bool_] = (offsets >= start) & (offsets < end)
        if self._token.judged:
            new = batch.cut(start, end)
            fresh = self._fresh(new)
            keep &= np.isin(offsets, fresh, assume_unique=True)
        drops = self._drops.get(source)
        if drops is not None:
            keep &= ~np.isin(offsets, drops, assume_unique=True)
        return keep

    def _fresh(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Return the offsets of fresh records."""
        before = self._found.setdefault(batch.source, [])
        if not len(batch):
            return np.zeros(0, dtype=np.int64)
        newest = int(batch.timestamps_ms.max())
        self._newest[batch.source] = max(newest, self._newest.get(batch.source, 0))
        earlier, saturated = self._counters.asked, self._counters.saturated
        found = self._judge.judge([batch], Frontier(), self._token.head, before)
        asked = self._counters.asked.since(earlier)
        self._asked[batch.source] = self._asked.get(batch.source, Asked()).plus(asked)
        self._saturated[batch.source] += self._counters.saturated - saturated
        before.append(found)
        rows = [pick.batch.offsets[pick.rows] for pick in found.picks]
        return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)

    def pieces(self) -> dict[Source, Piece]:
        """Return what became of the rows, by partition."""
        return {
            source: piece_of(
                found,
                self._newest.get(source, 0),
                self._asked.get(source, Asked()),
                self._saturated[source],
            )
            for source, found in self._found.items()
        }

    def _source(self, topic: str, partition: int) -> Source:
        return Source(self._token.topics[topic], partition)


def judge_range(token: Token, bench: Bench, source: Source, rows: Iterable[Fetched]) -> Piece:
    """Return the verdicts on a range that no task reported."""
    desk = _Desk(token, bench)
    desk.effective(empty(source))
    for fetched in rows:
        desk.effective(fetched.batch)
    return desk.pieces()[source]


#: What this process keeps, by the making of the plan; the newest is last.
_BENCHES: dict[str, Bench] = {}


def _bench(setup: Setup) -> Bench:
    if setup.query not in _BENCHES:
        while len(_BENCHES) >= KEPT_MAX:
            _forget(next(iter(_BENCHES)))
        _BENCHES[setup.query] = Bench(
            setup.plan, setup.spec, lane_of(setup.spec.pipeline, setup.spec.name)
        )
    return _BENCHES[setup.query]


def _forget(query: str) -> None:
    bench = _BENCHES.pop(query, None)
    if bench is not None:
        with suppress(DeliveryError):
            bench.close()
