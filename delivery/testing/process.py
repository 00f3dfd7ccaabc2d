"""The processes of a world: a lane's runner as it is between two instructions, and collectors.

What it is: values that copy themselves, and the clock and user code that a process is given.
What it must not know: what a process does next.

Invariants:
    Two processes that hash alike have the same future in the same world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from connectors.memory import memory_logs
from dedup.catalog.catalog import Catalog
from dedup.frozen import replace
from dedup.index import ExactIndex, Ids, Memo
from dedup.steps import Step
from delivery.broker import MemoryBroker
from delivery.judge import Judge, Memory
from delivery.lateness import Trust
from delivery.protocol import messages as m
from delivery.records import Output, Record
from delivery.testing.scenario import NOW_MS, LaneSpec, UserCode
from delivery.verdicts import Verdicts
from delivery.work import State

_T = TypeVar("_T")


@dataclass(slots=True)
class Process:
    """One process that runs one lane."""

    name: str
    spec: LaneSpec
    generation: int
    state: State
    minted: int = 0
    #: Emissions and acknowledgements that were put aside, in their order.
    aside: tuple[m.Emit | m.Acknowledge, ...] = ()
    #: Where its reader stands by itself; None: wherever the lane is.
    position: int | None = None
    #: What it remembers of senders.
    senders: Memory = field(default_factory=Memory)
    #: Hash of everything above, once it was asked for.
    mark: int | None = None

    def copy(self) -> Process:
        """Return a snapshot, about to change."""
        senders = replace(self.senders, rows=dict(self.senders.rows))
        return replace(self, state=self.state.copy(), senders=senders, mark=None)

    def hashed(self) -> int:
        """Return the hash of all that the future depends on."""
        if self.mark is None:
            self.mark = hash(picture(self))
        return self.mark


@dataclass(slots=True)
class Collector:
    """A collector that has read a lane and has steps left to do."""

    name: str
    #: What it read when it planned: its steps are a function of that.
    read: object
    steps: tuple[Step, ...]


class StillClock:
    """A clock that stands, and identities that name who took them."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        """Return the only time there is in this process."""
        return turn(self._process.spec.clocks_ms or (NOW_MS,), self._process.generation)

    def fresh(self) -> bytes:
        """Return an identity that says whose it is."""
        self._process.minted += 1
        return f"{self._process.name}:{self._process.minted}".encode().ljust(16, b".")[:16]

    def back_off(self, losses: int) -> None:
        """Interleaving is the explorer's."""


class Code:
    """User code that never makes the same thing twice."""

    def __init__(self, clock: StillClock, call: UserCode, code: str = "v1") -> None:
        self._clock = clock
        self._call = call
        self.code = code

    def run(self, record: Record) -> list[Output]:
        """Call user code with something new."""
        return self._call(self._clock.fresh(), record)


def picture(process: Process) -> object:
    """Return all of a process that its future depends on."""
    state = process.state
    work = tuple(
        (
            ticket,
            held.attempt,
            tuple(held.rows.values),
            held.verdicts.ids.tobytes(),
            held.verdicts.learned,
            held.verdicts.named_ms,
            held.delivered,
            _aside(held.verdicts) if process.spec.time_from else (),
        )
        for ticket, held in sorted(state.work.items())
    )
    rows = tuple((batch.source, batch.offsets.tobytes()) for batch in state.rows)
    return (
        state.lane,
        tuple(state.todo),
        rows,
        work,
        state.dead,
        process.aside,
        (process.minted, process.position, frozenset(process.senders.rows.items())),
        (process.senders.rekeyed, process.senders.horizon),
    )


def _aside(verdicts: Verdicts) -> object:
    """Return what a trusted time has said of a bundle."""
    aside = [(*pick.batch.offsets[list(pick.letters)].tolist(),) for pick in verdicts.picks]
    return verdicts.time_ms, tuple(aside)


def copy_memo(memo: Memo) -> Memo:
    """Return a snapshot of a host's index."""
    buckets = {key: Ids(set(ids.ids), dict(ids.seen)) for key, ids in memo.buckets.items()}
    return Memo(memo.tag, buckets)


def memo_picture(memo: Memo) -> object:
    """Return a hashable picture of a host's index."""
    return (
        memo.tag,
        frozenset(
            (bucket, frozenset(ids.ids), frozenset(ids.seen.items()))
            for bucket, ids in memo.buckets.items()
        ),
    )


def judge_of(
    process: Process, catalog: Catalog, index: ExactIndex, broker: MemoryBroker, window_ms: int
) -> Judge:
    """Return who gives a process its verdicts."""
    spec = process.spec
    return Judge(
        catalog,
        index,
        spec.id_from,
        lambda: spec.senders,
        process.senders,
        logs=partial(memory_logs, broker),
        letters=spec.dead_letters is not None,
        trust=None if spec.time_from is None else Trust(spec.time_from, window_ms),
    )


def turn(per_generation: tuple[_T, ...], generation: int) -> _T:
    """Return what a scenario says for a generation; its last word serves all later ones."""
    return per_generation[min(generation, len(per_generation) - 1)]
