"""A world for the explorer: lanes, processes, a network, a catalog and a log, all in one value.

What it is: the REAL core, runner, judge, index, catalog and memory store, driven one instruction at
a time, with every fault, zombie, collector and restore as a choice.
What it must not know: what is right. The invariants of single steps are in
`delivery.testing.watch`, everything else is the independent checker's.

Invariants:
    Nothing in a world is shared with a copy of it, except what never changes.
    What a process does by itself, seen by nobody, is no choice: it is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from connectors.memory import MemoryReader
from dedup.catalog.catalog import INLINE_BYTES_MAX, Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.frozen import replace
from dedup.index import ExactIndex, Memo
from dedup.model import Frontier, Head, Source
from delivery.broker import MemoryBroker
from delivery.protocol import messages as m
from delivery.protocol.state import Lane
from delivery.records import Record
from delivery.runner import LaneRunner
from delivery.stage import Policy
from delivery.testing.choices import Place, alone, performable, put_aside, take
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Request, Wire
from delivery.testing.incidents import Act, incidents, step_collector
from delivery.testing.process import (
    Code,
    Collector,
    Process,
    StillClock,
    copy_memo,
    judge_of,
    memo_picture,
    turn,
)
from delivery.testing.scenario import LaneSpec, Scenario
from delivery.testing.watch import Watch
from delivery.work import State
from sinks.memory import MemoryEmitter

#: What a process does that nobody else sees: done at once, no choice.
_SILENT = (m.Run, m.Discard, m.Release, m.Stop)


@dataclass(slots=True)
class LaneWorld:
    """Everything, at one moment."""

    scenario: Scenario
    tables: Tables = field(default_factory=Tables)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    processes: dict[str, Process] = field(default_factory=dict)
    collectors: dict[str, Collector] = field(default_factory=dict)
    memos: dict[tuple[str, int], Memo] = field(default_factory=dict)
    late: tuple[Request, ...] = ()
    started: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    zombies: tuple[str, ...] = ()
    swaps: int = 0
    collections: tuple[str, ...] = ()
    compactions: tuple[str, ...] = ()
    restores: int = 0
    #: Heads that the backup has taken so far, and the backup once it is complete.
    taken: tuple[tuple[str, Head], ...] = ()
    backup: tuple[bytes, ...] | None = None
    watch: Watch = field(default_factory=Watch)
    #: Changing calls of the last step, so that each of them can be let fail.
    calls: int = 0
    #: The fault, and at which call, of the step that is being made.
    planned: tuple[Fault, int] | None = None
    restored: bool = False
    done: frozenset[str] = frozenset()

    @staticmethod
    def of(scenario: Scenario) -> LaneWorld:
        """Return the world before anything happened: the input written, one process a lane."""
        world = LaneWorld(
            scenario,
            faults=scenario.faults,
            zombies=scenario.zombies,
            swaps=scenario.swaps,
            collections=scenario.collectors,
            compactions=scenario.compactors,
            restores=scenario.restores,
        )
        for name, partitions in scenario.topics:
            world.broker.create(name, partitions)
        for topic, partition, record in scenario.records:
            source = world.broker.sources(topic)[partition]
            if record is None:
                world.broker.skip(source)
            else:
                world.broker.append(source, record)
        for spec in scenario.lanes:
            world.begin(spec)
        return world

    # The explorer's side ----------------------------------------------------------------------

    def copy(self) -> LaneWorld:
        """Return a world that shares nothing that changes."""
        return replace(
            self,
            tables=self.tables.copy(),
            broker=self.broker.copy(),
            processes=dict(self.processes),
            collectors=dict(self.collectors),
            memos=dict(self.memos),
            started=dict(self.started),
            watch=self.watch.copy(),
        )

    def successors(self) -> Iterator[tuple[str, Callable[[], LaneWorld]]]:
        """Yield every choice."""
        single = alone(self)
        for name in [single] if single else list(self.processes):
            yield from self._steps(name)
        if single:
            return
        for name in self.collectors:
            yield from self._faulted(name, partial(step_collector, name=name))
        for choice, act in incidents(self):
            yield choice, partial(self._then, act)

    def fingerprint(self) -> object:
        """Return everything the future depends on, hashed to 64 bits.

        Among two million states the chance that any two are taken for one is one in ten million;
        and bytes hash otherwise in every process, so what one run overlooked the next one sees.
        """
        picture = (
            self.tables.frozen(),
            frozenset(self.broker.partitions.items()),
            tuple((name, process.hashed()) for name, process in sorted(self.processes.items())),
            tuple((c.name, c.read, len(c.steps)) for c in self.collectors.values()),
            tuple((lane, memo_picture(memo)) for lane, memo in sorted(self.memos.items())),
            self.late,
            tuple(sorted(self.started.items())),
            (self.faults, self.zombies, self.swaps, self.restores),
            (self.collections, self.compactions),
            (self.taken, self.backup, self.restored, self.done),
        )
        return hash(picture)

    def finish(self) -> None:
        """Everything is quiet: nothing may be left to do, and the checker must agree."""
        self.watch.quiet(self)

    # Steps ------------------------------------------------------------------------------------

    def _then(self, act: Act) -> LaneWorld:
        world = self.copy()
        world.calls = 0
        act(world)
        world.watch.step(world)
        return world

    def _steps(self, name: str) -> Iterator[tuple[str, Callable[[], LaneWorld]]]:
        process = self.processes[name]
        for place in performable(process, self.swaps):
            label = f"{name}/{place}" if place else name
            yield from self._faulted(label, partial(LaneWorld.perform, name=name, place=place))
        if process.spec.reads in self.scenario.fed and self._next_range(process):
            yield f"{name}?", partial(self._then, partial(LaneWorld.offer, name=name))

    def _faulted(self, label: str, act: Act) -> Iterator[tuple[str, Callable[[], LaneWorld]]]:
        """Yield a step as it should go, and then with each fault at each of its calls."""
        done = self._then(act)
        yield label, lambda: done
        if not self.faults:
            return
        for number in range(done.calls):
            for fault in sorted(self.scenario.kinds):
                suffer = partial(LaneWorld.suffer, act=act, fault=fault, number=number)
                yield f"{label}!{fault.value}@{number}", partial(self._then, suffer)

    def suffer(self, act: Act, fault: Fault, number: int) -> None:
        """Make a step during which one call fails."""
        self.faults -= 1
        self.planned = (fault, number)
        try:
            act(self)
        finally:
            self.planned = None

    def perform(self, name: str, place: Place = 0) -> None:
        """Let a process perform one of its outstanding instructions."""
        process = self._touch(name)
        if isinstance(place, int) and place:
            self.swaps -= 1
        instruction = take(process, place)
        runner, wire = self._runner(process)
        try:
            answer = runner.perform(instruction)
        except Crashed:
            self.account(wire)
            del self.processes[name]
            self._replace(process.spec)
            return
        self.account(wire)
        self.calls = len(wire.calls)
        if answer is not None:
            runner.tell(answer)
        self._settle(process, runner)

    def _settle(self, process: Process, runner: LaneRunner) -> None:
        """Let a process do everything that nobody else sees."""
        todo = process.state.todo
        while True:
            if self.scenario.aside and put_aside(process):
                continue
            if todo and isinstance(todo[0], _SILENT):
                answer = runner.perform(todo.popleft())
                if answer is not None:
                    runner.tell(answer)
                continue
            planned = self._next_range(process)
            if planned is None or process.spec.reads in self.scenario.fed:
                break
            self._hand_over(process, runner, planned)
        if process.state.stopped is not None:
            self._ended(process)

    def _touch(self, name: str) -> Process:
        """Return a process that this world may change, and its host's index with it."""
        process = self.processes[name] = self.processes[name].copy()
        host = self.host(process)
        self.memos[host] = copy_memo(self.memos.get(host, Memo()))
        return process

    def host(self, process: Process) -> tuple[str, int]:
        """Return whose index a process moves."""
        return (process.spec.name, process.generation % self.scenario.hosts)

    def _ended(self, process: Process) -> None:
        """A process has ended: what it leaves must be right, and if it gave up another begins."""
        stop = process.state.stopped
        assert stop is not None, "it ended"
        self.watch.ended(self, process, stop)
        del self.processes[process.name]
        if stop.end is m.End.DONE:
            self.done |= {process.spec.name}
        else:
            self._replace(process.spec)

    def _replace(self, spec: LaneSpec) -> None:
        """Start another process on a lane that nobody runs any more, unless it has succeeded."""
        alive = any(process.spec.name == spec.name for process in self.processes.values())
        if not alive and spec.name not in self.done:
            self.begin(spec)

    def _next_range(self, process: Process) -> tuple[Frontier, Frontier] | None:
        lane = process.state.lane
        if not lane.hungry:
            return None
        planned = lane.planned
        sources = self._sources(process.spec)
        cuts = turn(process.spec.cuts, process.generation)
        start, end = {}, {}
        for source in sources:
            at = planned.at(source) or 0
            if process.position is not None:
                at = process.position
            high = len(self.broker.partitions[source])
            start[source] = at
            end[source] = min([high, *(cut for cut in cuts if cut > at)])
        if start == end:
            return None
        return Frontier.of(start.items()), Frontier.of(end.items())

    def offer(self, name: str) -> None:
        """Let a process poll what has appeared in the log it reads."""
        process = self._touch(name)
        planned = self._next_range(process)
        assert planned is not None, "there is something to offer"
        runner, _ = self._runner(process)
        self._hand_over(process, runner, planned)

    def _hand_over(
        self, process: Process, runner: LaneRunner, planned: tuple[Frontier, Frontier]
    ) -> None:
        reader = MemoryReader(self.broker, process.spec.reads, self._sources(process.spec))
        if process.position is not None:
            process.position = max(offset for _, offset in planned[1])
        runner.offer(m.Polled(*planned), reader.read(*planned))

    def begin(self, spec: LaneSpec) -> str:
        """Start a process and return its name; it has its first read still before it."""
        generation = self.started.get(spec.name, 0)
        self.started[spec.name] = generation + 1
        name = f"{spec.name.rsplit('/', 1)[-1]}{generation}"
        state = State(lane=Lane(limits=self.scenario.limits))
        position = turn(spec.positions, generation)
        process = Process(name, spec, generation, state, position=position)
        self.processes[name] = process
        sources, start = self._sources(spec), turn(spec.starts, generation)
        runner, _ = self._runner(process)
        runner.tell(m.Opened(Frontier.of((source, start) for source in sources)))
        if spec.reads not in self.scenario.fed:
            runner.tell(m.Ending(self.broker.high(sources)))
        return name

    # Inside -----------------------------------------------------------------------------------

    def _runner(self, process: Process) -> tuple[LaneRunner, Wire]:
        spec = process.spec
        wire = self.wire()
        inline_bytes_max = INLINE_BYTES_MAX if self.scenario.inline else 0
        store = FaultyStore(MemoryStore(self.tables), wire)
        catalog = Catalog(store, inline_bytes_max=inline_bytes_max)
        memo = self.memos.setdefault(self.host(process), Memo())
        index = ExactIndex(catalog, spec.name, self.scenario.window_ms, memo)
        clock = StillClock(process)
        runner = LaneRunner(
            spec.name,
            catalog=catalog,
            judge=judge_of(process, catalog, index, self.broker, self.scenario.window_ms),
            reader=MemoryReader(self.broker, spec.reads, self._sources(spec)),
            stage=Code(clock, spec.call, turn(spec.codes, process.generation)),
            emitter=MemoryEmitter(self.broker, spec.edges, partial(self._append, wire)),
            clock=clock,
            policy=Policy(
                dead_letter_edge=1 if spec.dead_letters else None,
                keep_ids=spec.keep_ids,
                deterministic=spec.deterministic,
            ),
        )
        runner.state = process.state
        return runner, wire

    def _append(self, wire: Wire, source: Source, record: Record) -> int:
        """Append what is sent, and say when it was."""
        if self.scenario.sent_at_ms:
            at_ms = turn(self.scenario.sent_at_ms, len(self.broker.partitions[source]))
            record = record._replace(timestamp_ms=at_ms)
        return int(wire.call("log", "append", source, record))

    def wire(self) -> Wire:
        """Return a wire on which the planned call fails."""
        planned = self.planned

        def fault(number: int, _request: Request) -> Fault | None:
            return planned[0] if planned and planned[1] == number else None

        return Wire({"log": self.broker}, fault)

    def account(self, wire: Wire) -> None:
        """Take over what is still on its way."""
        self.late += tuple(wire.late)

    def _sources(self, spec: LaneSpec) -> list[Source]:
        every = self.broker.sources(spec.reads)
        return [every[partition] for partition in spec.partitions]

    def spec(self, lane: str) -> LaneSpec:
        """Return what the scenario says of a lane."""
        return next(spec for spec in self.scenario.lanes if spec.name == lane)
