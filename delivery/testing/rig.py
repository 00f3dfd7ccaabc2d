"""One plan, carried out: the real core, runner, judge, index and checker over memory.

What it is: processes that run one lane one after the other, or one while another sleeps, until one
of them has succeeded; and everything that can be seen of it afterwards.
What it must not know: which plans there are, what users see of a result.

Invariants:
    Everything that leaves a process is one call over its wire, and every call is counted once.
    A process that dies leaves nothing behind but what it wrote; user code's own side effects stay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from connectors.memory import MemoryReader
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.errors import Corrupt, Indeterminate, InvalidUsage, Unavailable
from dedup.index import ExactIndex
from dedup.model import Frontier, Source
from delivery.broker import MemoryBroker
from delivery.judge import Judge
from delivery.naming import IdFrom
from delivery.ports import Stage
from delivery.protocol import messages as m
from delivery.protocol.state import Lane
from delivery.records import Output, Record
from delivery.runner import LaneRunner
from delivery.stage import Policy, StoppedByRecordError
from delivery.testing.explore import Violation
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Request, Wire
from delivery.testing.faulty_ports import FaultyEmitter, FaultyReader
from delivery.testing.plan import ZOMBIE, Plan
from delivery.testing.source import Death, Script
from sinks.memory import MemoryEmitter

#: The lane's name, as it stands in what goes wrong.
LANE = "test/stage/0"
#: Name of the topic that is read.
INPUT = "in"
#: What time it is, unless a record was written later. The clock decides nothing.
NOW_MS = 2_000_000_000_000
#: How long ids are held: a test's timestamps may be anything, and no repeat is forgotten.
FOR_EVER_MS = 1 << 62
#: Processes beyond those that a plan and the markers let die. One that begins anew without a reason
#: is a livelock.
SPARE_PROCESSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run."""

    stage: Stage
    script: Script
    id_from: IdFrom
    #: Outputs of the stage; the dead letters, if it has any, come behind them.
    edges: int
    dead_letters: bool
    #: Nothing of its outputs is stored; whoever must send them again makes them again.
    deterministic: bool
    #: Per process, in the order they start, the offsets at which it cuts its bundles.
    cuts: tuple[tuple[int, ...], ...]

    @property
    def topics(self) -> list[str]:
        """The topics that are written, by edge."""
        return [f"out{edge}" for edge in range(self.edges + self.dead_letters)]


@dataclass(frozen=True, slots=True)
class Execution:
    """One time that user code returned."""

    offset: int
    outputs: tuple[Output, ...]


class _Clock:
    """A clock that stands, and identities that name who took them."""

    def __init__(self, process: int, now_ms: int) -> None:
        self._process = process
        self._now_ms = now_ms
        self._minted = 0

    def now_ms(self) -> int:
        return self._now_ms

    def fresh(self) -> bytes:
        self._minted += 1
        return f"{self._process}:{self._minted}".encode().ljust(16, b".")

    def back_off(self, losses: int) -> None:
        """Whoever else runs has finished, or sleeps until this one has."""


class Unfit(BaseException):
    """The stage was run with fewer outputs than it has: the test's fault, and no record's."""


class _Watched:
    """User code, with every execution written down where no crash takes it away."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.code = rig.case.stage.code

    def run(self, record: Record) -> list[Output]:
        rig = self._rig
        if rig.deaths and rig.deaths[0].due_before(record.offset):
            raise Crashed(rig.deaths.pop(0))
        rig.last = record
        try:
            outputs = list(rig.case.stage.run(record))
            self._fit(outputs)
        except Exception:
            rig.failures[record.offset] = rig.failures.get(record.offset, 0) + 1
            raise
        rig.executions.append(Execution(record.offset, tuple(outputs)))
        if rig.deaths and rig.deaths[0].due_after(record.offset):
            raise Crashed(rig.deaths.pop(0))
        return outputs

    def _fit(self, outputs: list[Output]) -> None:
        edges = self._rig.case.edges
        beyond = {output.edge for output in outputs if not 0 <= output.edge < edges}
        if beyond:
            # No error of user code's: it is neither tried again nor made a dead letter.
            raise Unfit(min(beyond), max(beyond))


@dataclass(slots=True)
class Rig:
    """One plan under way, and what is there to see when it has ended."""

    case: Case
    plan: Plan = ()
    tables: Tables = field(default_factory=Tables)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    #: Every call, in order, as plans name them.
    calls: list[str] = field(default_factory=list)
    #: Place among them of the plan's last event.
    last_event: int = -1
    executions: list[Execution] = field(default_factory=list)
    #: By offset, how often user code raised.
    failures: dict[int, int] = field(default_factory=dict)
    #: The record user code was called with last.
    last: Record | None = None
    #: Markers that the source has not come to yet.
    deaths: list[Death] = field(default_factory=list)
    #: Requests that are carried out when everybody has finished.
    late: list[Callable[[], object]] = field(default_factory=list)
    started: int = 0
    done: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    _pending: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the input."""
        self.broker.create(INPUT)
        for topic in self.case.topics:
            self.broker.create(topic)
        for record in self.case.script.records:
            self.broker.append(self.source, record)
        self.deaths = list(self.case.script.deaths)
        self._pending = [(event.what, event.call) for event in self.plan]

    @property
    def source(self) -> Source:
        """The partition that is read."""
        return Source(self.broker.names[INPUT], 0)

    @property
    def misfit(self) -> str | None:
        """The call at which something should have gone wrong and which was never made."""
        return self._pending[0][1] if self._pending else None

    def go(self) -> None:
        """Start processes until one has succeeded.

        Raises:
            StoppedByRecordError: user code could not process a record.
            InvalidUsage: the records or the stage cannot be run.
            Violation: a process ended as none may.
        """
        most = len(self.plan) + len(self.case.script.deaths) + SPARE_PROCESSES
        while not self.done:
            if self.started == most:
                raise Violation(f"{most} processes have not come to the end: a livelock")
            self._live()
        for carry_out in self.late:
            carry_out()

    # Processes --------------------------------------------------------------------------------

    def _live(self) -> None:
        """Let one process live from its start to its end, or to its death."""
        number, self.started = self.started, self.started + 1
        wire = self._wire()
        catalog = Catalog(FaultyStore(MemoryStore(self.tables), wire))
        reader = FaultyReader(MemoryReader(self.broker, INPUT, [self.source]), wire)
        emitter = MemoryEmitter(self.broker, self.case.topics)
        newest = max((record.timestamp_ms for record in self.case.script.records), default=0)
        case = self.case
        runner = LaneRunner(
            LANE,
            catalog=catalog,
            judge=Judge(
                catalog,
                ExactIndex(catalog, LANE, FOR_EVER_MS),
                case.id_from,
                lambda: (),
                letters=case.dead_letters,
            ),
            reader=reader,
            stage=_Watched(self),
            emitter=FaultyEmitter(emitter, wire, one_by_one=True),
            clock=_Clock(number, max(NOW_MS, newest)),
            policy=Policy(
                dead_letter_edge=case.edges if case.dead_letters else None,
                deterministic=case.deterministic,
            ),
        )
        with suppress(Crashed):
            self._drive(runner, reader, case.cuts[min(number, len(case.cuts) - 1)])
        self.late += [partial(wire.carry_out, request) for request in wire.late]

    def _drive(self, runner: LaneRunner, reader: FaultyReader, cuts: tuple[int, ...]) -> None:
        runner.tell(m.Opened(Frontier.of([(self.source, 0)])))
        runner.tell(m.Ending(self.broker.high([self.source])))
        while runner.state.stopped is None:
            # Reading runs ahead of sealing, as in every host, so that bundles overlap.
            planned = self._next_range(runner.state.lane, cuts)
            if planned is not None:
                try:
                    records = reader.read(*planned)
                except (Unavailable, Indeterminate):
                    continue  # nothing was taken; it is planned again
                runner.offer(m.Polled(*planned), records)
            elif not runner.step():
                raise Violation(f"a process is stuck: {runner.state.lane}")
        self._ended(runner, runner.state.stopped)

    def _next_range(self, lane: Lane, cuts: tuple[int, ...]) -> tuple[Frontier, Frontier] | None:
        script = self.case.script
        if not lane.hungry:
            return None
        start, high = lane.planned.at(self.source) or 0, len(script.records)
        if start == high or (start in script.rounds and not lane.idle):
            return None
        end = min([high, *(cut for cut in (*cuts, *script.rounds) if cut > start)])
        return Frontier.of([(self.source, start)]), Frontier.of([(self.source, end)])

    def _ended(self, runner: LaneRunner, stop: m.Stop) -> None:
        error = runner.state.error
        if stop.end is m.End.DONE:
            # A marker behind the last record that user code saw: this one died as it ended.
            self.done = not self.deaths
            self.deaths.clear()
        elif isinstance(error, StoppedByRecordError | InvalidUsage):
            raise error
        elif (
            stop.end in (m.End.CORRUPT, m.End.REFUSED, m.End.FENCED)
            or isinstance(error, Corrupt)
            or not self.plan
        ):
            raise Violation(f"a process stopped as {stop.end.value}: {stop.why}") from error

    # Calls ------------------------------------------------------------------------------------

    def _wire(self) -> Wire:
        return Wire({}, self._befall)

    def _befall(self, _number: int, request: Request) -> Fault | None:
        """Count a call, let happen what is planned before it, and return its fault."""
        name = f"{request.target}.{request.method}"
        self._counts[name] = self._counts.get(name, 0) + 1
        call, place = f"{name}:{self._counts[name]}", len(self.calls)
        self.calls.append(call)
        if (ZOMBIE, call) in self._pending:
            self._pending.remove((ZOMBIE, call))
            self.last_event = place
            self._live()
        for fault in Fault:
            if (fault.value, call) in self._pending:
                self._pending.remove((fault.value, call))
                self.last_event = place
                return fault
        return None
