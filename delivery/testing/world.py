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
from dataclasses import dataclass, field, replace
from typing import TypeVar

from connectors.memory import MemoryReader
from dedup import backup
from dedup.catalog.catalog import INLINE_BYTES_MAX, Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.collect import Keep, Step, survey
from dedup.index import ExactIndex, Ids, Memo
from dedup.model import Frontier, Head, LaneRow, Source
from delivery.broker import MemoryBroker
from delivery.judge import Judge
from delivery.protocol import messages as m
from delivery.protocol.state import Lane
from delivery.records import Output, Record
from delivery.runner import LaneRunner, State
from delivery.stage import Policy
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Request, Wire
from delivery.testing.scenario import LaneSpec, Scenario, UserCode
from delivery.testing.watch import Watch
from sinks.memory import MemoryEmitter

_T = TypeVar("_T")

#: What time it is in every world. Lanes' own numbers move, the clock decides nothing.
NOW_MS = 600_000_000

#: What a process does that nobody else sees: done at once, no choice.
_SILENT = (m.Run, m.Discard, m.Release, m.Stop)
#: Instructions whose order among each other is the performer's: they may overtake one another.
_OVERTAKING = (m.Classify, m.Store, m.Append, m.Emit, m.Acknowledge)


@dataclass(slots=True)
class Process:
    """One process that runs one lane."""

    name: str
    spec: LaneSpec
    generation: int
    state: State
    minted: int = 0
    #: Where its reader stands by itself; None: wherever the lane is.
    position: int | None = None
    #: Rows of senders that it remembers.
    senders: dict[str, LaneRow] = field(default_factory=dict)
    #: Hash of everything above, once it was asked for.
    mark: int | None = None

    def copy(self) -> Process:
        """Return a snapshot, about to change."""
        return replace(self, state=self.state.copy(), senders=dict(self.senders), mark=None)

    def hashed(self) -> int:
        """Return the hash of all that the future depends on."""
        if self.mark is None:
            self.mark = hash(_picture(self))
        return self.mark


@dataclass(slots=True)
class Collector:
    """A collector that has read a lane and has steps left to do."""

    name: str
    #: What it read when it planned: its steps are a function of that.
    read: object
    steps: tuple[Step, ...]


class _Clock:
    """A clock that stands, and identities that name who took them."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        return NOW_MS

    def fresh(self) -> bytes:
        self._process.minted += 1
        return f"{self._process.name}:{self._process.minted}".encode().ljust(16, b".")[:16]

    def back_off(self, losses: int) -> None:
        """Interleaving is the explorer's."""


class _Code:
    """User code that never makes the same thing twice."""

    code = "v1"

    def __init__(self, clock: _Clock, call: UserCode) -> None:
        self._clock = clock
        self._call = call

    def run(self, record: Record) -> list[Output]:
        return self._call(self._clock.fresh(), record)


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
            world._start(spec)
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
        alone = self._alone()
        for name in [alone] if alone else list(self.processes):
            yield from self._steps(name)
        if alone:
            return
        for name in self.collectors:
            yield from self._faulted(name, lambda world, n=name: world.collect(n))  # type: ignore[misc]
        for index in range(len(self.late)):
            yield f"~{index}", lambda i=index: self._then(lambda w: w.deliver(i))  # type: ignore[misc]
        for lane in sorted(set(self.zombies)):
            yield f"+{lane}", lambda n=lane: self._then(lambda w: w.zombie(n))  # type: ignore[misc]
        for lane in sorted(set(self.collections)):
            yield f"%{lane}", lambda n=lane: self._then(lambda w: w.survey(n))  # type: ignore[misc]
        exist = all(spec.name in self.tables.lanes for spec in self.scenario.lanes)
        if self.restores and self.backup is None and exist:
            yield "#backup", lambda: self._then(LaneWorld.back_up)
        if self.restores and self.backup is not None:
            yield "#restore", lambda: self._then(LaneWorld.restore)

    def fingerprint(self) -> object:
        """Return everything the future depends on, hashed; 64 bits twice make a collision unlikely."""
        picture = (
            self.tables.frozen(),
            frozenset(self.broker.partitions.items()),
            tuple((name, process.hashed()) for name, process in sorted(self.processes.items())),
            tuple((c.name, c.read, len(c.steps)) for c in self.collectors.values()),
            tuple((lane, _memo_picture(memo)) for lane, memo in sorted(self.memos.items())),
            self.late,
            tuple(sorted(self.started.items())),
            (self.faults, self.zombies, self.swaps, self.collections, self.restores),
            (self.taken, self.backup, self.restored, self.done),
        )
        return (hash(picture), hash((1, picture)))

    def finish(self) -> None:
        """Everything is quiet: nothing may be left to do, and the checker must agree."""
        self.watch.quiet(self)

    # Steps ------------------------------------------------------------------------------------

    def _then(self, act: Callable[[LaneWorld], None]) -> LaneWorld:
        world = self.copy()
        world.calls = 0
        act(world)
        world.watch.step(world)
        return world

    def _alone(self) -> str | None:
        """Return a process whose next instruction commutes with whatever anybody else may do.

        What an attempt stores meets only collectors. Verdicts that ask no sender, and emissions
        that no lane of this world reads, meet only collectors and a restore still to come.
        """
        if self.collections or self.collectors:
            return None
        read = {spec.reads for spec in self.scenario.lanes}
        for name, process in self.processes.items():
            nxt = process.state.todo[0] if process.state.todo else None
            private = isinstance(nxt, m.Store)
            if not self.restores:
                private |= isinstance(nxt, m.Classify) and not process.spec.senders
                private |= isinstance(nxt, m.Emit) and process.spec.writes not in read
            if private:
                return name
        return None

    def _steps(self, name: str) -> Iterator[tuple[str, Callable[[], LaneWorld]]]:
        process = self.processes[name]
        for index in self._performable(process):
            label = name if index == 0 else f"{name}/{index}"
            yield from self._faulted(label, lambda w, i=index: w.perform(name, i))  # type: ignore[misc]
        if process.spec.reads in self.scenario.fed and self._next_range(process):
            yield f"{name}?", lambda: self._then(lambda world: world.offer(name))

    def _performable(self, process: Process) -> list[int]:
        """Return which of the outstanding instructions may be performed next."""
        todo = process.state.todo
        if not todo:
            return []
        places = [0]
        if self.swaps:
            for index in range(1, len(todo)):
                overtaken = list(todo)[:index]
                if all(_may_overtake(todo[index], other) for other in overtaken):
                    places.append(index)
        return places

    def _faulted(
        self, label: str, act: Callable[[LaneWorld], None]
    ) -> Iterator[tuple[str, Callable[[], LaneWorld]]]:
        """Yield a step as it should go, and then with each fault at each of its calls."""
        done = self._then(act)
        yield label, lambda: done
        if not self.faults:
            return
        for number in range(done.calls):
            for fault in sorted(self.scenario.kinds):
                choice = f"{label}!{fault.value}@{number}"
                yield (
                    choice,
                    lambda f=fault, n=number: self._then(  # type: ignore[misc]
                        lambda world: world.suffer(act, f, n)
                    ),
                )

    def suffer(self, act: Callable[[LaneWorld], None], fault: Fault, number: int) -> None:
        """Make a step during which one call fails."""
        self.faults -= 1
        self.planned = (fault, number)
        try:
            act(self)
        finally:
            self.planned = None

    def perform(self, name: str, index: int) -> None:
        """Let a process perform one of its outstanding instructions."""
        process = self._touch(name)
        if index:
            self.swaps -= 1
        instruction = process.state.todo[index]
        del process.state.todo[index]
        runner, wire = self._runner(process)
        try:
            answer = runner.perform(instruction)
        except Crashed:
            self._account(wire)
            del self.processes[name]
            self._replace(process.spec)
            return
        self._account(wire)
        self.calls = len(wire.calls)
        if answer is not None:
            runner.tell(answer)
        self._settle(process, runner)

    def _settle(self, process: Process, runner: LaneRunner) -> None:
        """Let a process do everything that nobody else sees."""
        while True:
            todo = process.state.todo
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
        host = self._host(process)
        self.memos[host] = _copy_memo(self.memos.get(host, Memo()))
        return process

    def _host(self, process: Process) -> tuple[str, int]:
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
            self._start(spec)

    def _next_range(self, process: Process) -> tuple[Frontier, Frontier] | None:
        lane = process.state.lane
        if not lane.hungry:
            return None
        planned = lane.planned
        sources = self._sources(process.spec)
        cuts = _turn(process.spec.cuts, process.generation)
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

    def _start(self, spec: LaneSpec) -> str:
        """Start a process and return its name; it has its first read still before it."""
        generation = self.started.get(spec.name, 0)
        self.started[spec.name] = generation + 1
        name = f"{spec.name.rsplit('/', 1)[-1]}{generation}"
        state = State(lane=Lane(limits=self.scenario.limits))
        position = _turn(spec.positions, generation)
        process = Process(name, spec, generation, state, position=position)
        self.processes[name] = process
        sources, start = self._sources(spec), _turn(spec.starts, generation)
        runner, _ = self._runner(process)
        runner.tell(m.Opened(Frontier.of((source, start) for source in sources)))
        if spec.reads not in self.scenario.fed:
            runner.tell(m.Ending(self.broker.high(sources)))
        return name

    def zombie(self, lane: str) -> None:
        """Start a second process on a lane; it has read the lane already."""
        self.zombies = _without(self.zombies, lane)
        self.perform(self._start(self._spec(lane)), 0)

    def deliver(self, index: int) -> None:
        """Carry out a late request."""
        request = self.late[index]
        self.late = (*self.late[:index], *self.late[index + 1 :])
        wire = Wire({"store": MemoryStore(self.tables), "log": self.broker})
        wire.carry_out(request)

    # Collectors, backup, restore --------------------------------------------------------------

    def survey(self, lane: str) -> None:
        """Let a collector read a lane and plan."""
        self.collections = _without(self.collections, lane)
        catalog = Catalog(MemoryStore(self.tables))
        steps = survey(catalog, lane, Keep(window_ms=self.scenario.window_ms))
        name = f"C{len(self.collections)}"
        if steps:
            self.collectors[name] = Collector(name, self.tables.frozen(), tuple(steps))

    def collect(self, name: str) -> None:
        """Let a collector do its next step."""
        collector = self.collectors[name]
        wire = self._wire()
        catalog = Catalog(FaultyStore(MemoryStore(self.tables), wire))
        try:
            going_on = collector.steps[0].perform(catalog)
        except (Crashed, Exception):  # noqa: BLE001 - whatever befalls a collector ends its plan
            going_on = False
        self._account(wire)
        self.calls = len(wire.calls)
        rest = collector.steps[1:] if going_on else ()
        if rest:
            self.collectors[name] = replace(collector, steps=rest)
        else:
            del self.collectors[name]

    def back_up(self) -> None:
        """Take one more head for the backup, in its own order; after the last one, write it."""
        catalog = Catalog(MemoryStore(self.tables))
        order = [name for name, _ in self.taken]
        rest = [lane for lane in backup.downstream_first(catalog) if lane not in order]
        if rest:
            self.taken = (*self.taken, (rest[0], backup.take(catalog, rest[0])))
        if len(rest) <= 1:
            self.backup = tuple(backup.frames(catalog, self.taken))

    def restore(self) -> None:
        """Put the backup into an empty catalog that everybody sees from now on.

        Lanes that are kept elsewhere, with the database of a same-transaction sink, stay.
        """
        assert self.backup is not None, "there is a backup"
        self.restores -= 1
        fresh = iter(range(1, 1_000))
        restored = Tables()
        backup.restore(
            Catalog(MemoryStore(restored)),
            self.backup,
            lambda: f"restored:{next(fresh)}".encode().ljust(16, b"."),
        )
        back = self.scenario.restored
        if back is not None:
            restored = _mixed(self.tables, restored, back)
        self.tables = restored
        self.restored, self.done, self.watch.rows = True, frozenset(), {}
        if self.scenario.orderly:
            self.processes = {}
        for spec in self.scenario.lanes:
            if self.scenario.orderly or back is None or spec.name in back:
                self._start(spec)

    # Inside -----------------------------------------------------------------------------------

    def _runner(self, process: Process) -> tuple[LaneRunner, Wire]:
        spec = process.spec
        wire = self._wire()
        inline_bytes_max = INLINE_BYTES_MAX if self.scenario.inline else 0
        store = FaultyStore(MemoryStore(self.tables), wire)
        catalog = Catalog(store, inline_bytes_max=inline_bytes_max)
        memo = self.memos.setdefault(self._host(process), Memo())
        index = ExactIndex(catalog, spec.name, self.scenario.window_ms, memo)
        clock = _Clock(process)
        runner = LaneRunner(
            spec.name,
            catalog=catalog,
            judge=Judge(catalog, index, spec.id_from, lambda: spec.senders, process.senders),
            reader=MemoryReader(self.broker, spec.reads, self._sources(spec)),
            stage=_Code(clock, spec.call),
            emitter=MemoryEmitter(
                self.broker,
                [spec.writes],
                lambda source, record: int(wire.call("log", "append", source, record)),
            ),
            clock=clock,
            policy=Policy(keep_ids=spec.keep_ids),
        )
        runner.state = process.state
        return runner, wire

    def _wire(self) -> Wire:
        planned = self.planned

        def fault(number: int, _request: Request) -> Fault | None:
            return planned[0] if planned and planned[1] == number else None

        return Wire({"log": self.broker}, fault)

    def _account(self, wire: Wire) -> None:
        self.late += tuple(wire.late)

    def _sources(self, spec: LaneSpec) -> list[Source]:
        every = self.broker.sources(spec.reads)
        return [every[partition] for partition in spec.partitions]

    def _spec(self, lane: str) -> LaneSpec:
        return next(spec for spec in self.scenario.lanes if spec.name == lane)


def _mixed(now: Tables, restored: Tables, back: tuple[str, ...]) -> Tables:
    """Return the tables with only some lanes put back."""

    def chosen(name: str) -> Tables:
        return restored if name in back else now

    names = {*now.lanes, *restored.lanes}
    mixed = Tables()
    for name in sorted(names):
        source = chosen(name)
        if name in source.lanes:
            mixed.lanes[name] = source.lanes[name]
        if name in source.lists:
            mixed.lists[name] = source.lists[name]
    for table in (now, restored):
        for key, entry in table.entries.items():
            if chosen(key[0]) is table:
                mixed.entries[key] = entry
        for place, chunks in table.chunks.items():
            if chosen(place[1].lane) is table:
                mixed.chunks[place] = chunks
    return mixed


def _turn(per_generation: tuple[_T, ...], generation: int) -> _T:
    return per_generation[min(generation, len(per_generation) - 1)]


def _may_overtake(later: m.Instruction, earlier: m.Instruction) -> bool:
    if not isinstance(later, _OVERTAKING) or not isinstance(earlier, _OVERTAKING):
        return False
    return not (isinstance(later, m.Emit) and isinstance(earlier, m.Emit))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    index = names.index(name)
    return (*names[:index], *names[index + 1 :])


def _copy_memo(memo: Memo) -> Memo:
    buckets = {key: Ids(set(ids.ids), dict(ids.seen)) for key, ids in memo.buckets.items()}
    return Memo(memo.tag, buckets)


def _memo_picture(memo: Memo) -> object:
    return (
        memo.tag,
        frozenset(
            (bucket, frozenset(ids.ids), frozenset(ids.seen.items()))
            for bucket, ids in memo.buckets.items()
        ),
    )


def _picture(process: Process) -> object:
    state = process.state
    work = tuple(
        (
            ticket,
            held.attempt,
            tuple(row.output.value for row in held.rows),
            frozenset(held.verdicts.ids),
            held.verdicts.learned,
            held.delivered,
        )
        for ticket, held in sorted(state.work.items())
    )
    rows = tuple((record.source, record.offset) for record in state.rows)
    return (
        state.lane,
        tuple(state.todo),
        rows,
        work,
        state.dead,
        (process.minted, process.position, frozenset(process.senders.items())),
    )
