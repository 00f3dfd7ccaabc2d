"""The one benchmark harness: contestants take turns, and what each turn cost is put into figures.

What it is: `Benchmark` (named contestants, one of them the baseline, and goals), `run`, which lets
them take turns, and `Standing`, the figures of one contestant.
What it must not know: what is measured, how a table looks.

Invariants:
    Contestants take turns one by one, in an order that rotates, so that whatever else the machine
    does hits all of them alike. A ratio is taken inside one round, and the median of those counts.
    What a turn times is its own business; CPU, memory and bytes are those of the whole turn.
    A warm-up round leaves no trace in any figure.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import multiprocessing.connection
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.meter import Meter, Usage
from delivery.services.ephemeral import Services, ephemeral

#: Where figures are kept, and where benchmarks put their files: on the disk of the checkout.
RESULTS = Path(__file__).parent / "results"
SCRATCH = Path(__file__).parent.parent / ".cache" / "bench"
#: Share of the samples that is at or below the tail figure.
TAIL = 0.99
#: Who waits longer for a turn is told that it has ended.
TOLD_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn of a contestant took.

    Attributes:
        seconds: of each operation it timed.
        amount: how many of the benchmark's units these did together; None: one each.
        facts: whatever else it found out, by name.
    """

    seconds: tuple[float, ...]
    amount: float | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Seconds for one unit: the median of single operations, the mean of an amount."""
        if self.amount is None:
            return statistics.median(self.seconds)
        return sum(self.seconds) / self.amount

    @property
    def units(self) -> float:
        """How much was done."""
        return len(self.seconds) if self.amount is None else self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way of doing it.

    Attributes:
        name: what the table calls it.
        turn: does it for a while. Isolated, it must be importable: a function or a `partial`.
        isolated: whether each turn gets a process of its own, for figures about memory.
        servers: processes that work for it and are not its children; their CPU and bytes count.
    """

    name: str
    turn: Callable[[], Turn]
    isolated: bool = False
    servers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure that has been promised: a measure of one contestant, and its limit.

    Attributes:
        says: the figure in words.
        contestant: whose.
        measure: a field of `Standing`, or one of its facts.
        unit: of the figure.
        at_most: the limit, if less is better.
        at_least: the limit, if more is better.
    """

    says: str
    contestant: str
    measure: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        """One limit, not two and not none."""
        assert (self.at_most is None) != (self.at_least is None), "a goal has one limit"

    def judge(self, value: float) -> Verdict:
        """Compare a figure with its limit."""
        limit = self.at_most if self.at_most is not None else self.at_least
        assert limit is not None, "a goal has one limit"
        met = value <= limit if self.at_most is not None else value >= limit
        return Verdict(goal=self, value=value, limit=limit, met=met)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a figure is what was promised."""

    goal: Goal
    value: float
    limit: float
    met: bool

    @property
    def by(self) -> float:
        """How far the figure is from its limit, as a share of the limit."""
        return abs(self.value - self.limit) / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The figures of one contestant.

    Attributes:
        rounds: how many of its turns count.
        samples: how many operations were timed.
        median_ms: of all operations.
        tail_ms: what 99% of all operations stay at or below.
        rate: units a second, the median of the rounds.
        ratio: time for a unit / the baseline's, the median of the rounds.
        ratio_low: the lower quartile of that.
        ratio_high: the upper quartile.
        speed: units a second / the baseline's, the median of the rounds.
        over_ms: time for a unit above the baseline's, the median of the rounds.
        cpu_seconds: of all turns, with children and servers.
        cpu_ms: the same for one unit.
        memory_mb: the most that was resident in any turn, children included.
        growth_mb: the most by which that grew within one turn.
        written_mb: bytes given to the disk in all turns; 0 where the system does not tell.
        facts: what the turns found out by themselves, medians.
    """

    rounds: int
    samples: int
    median_ms: float
    tail_ms: float
    rate: float
    ratio: float
    ratio_low: float
    ratio_high: float
    speed: float
    over_ms: float
    cpu_seconds: float
    cpu_ms: float
    memory_mb: float
    growth_mb: float
    written_mb: float
    facts: Mapping[str, float]

    def figure(self, measure: str) -> float:
        """Return a measure by its name."""
        if measure in self.facts:
            return self.facts[measure]
        return float(getattr(self, measure))


@dataclass(slots=True)
class Lab:
    """What benchmarks of one run share: a directory, and servers that start when first asked for.

    Attributes:
        quick: whether a figure that only shows that everything works is enough.
        report: is told what happens meanwhile.
        only: contestants that take part beside the baseline, by any part of their names; none: all.
    """

    quick: bool
    report: Callable[[str], None]
    only: tuple[str, ...] = ()
    _stack: ExitStack = field(default_factory=ExitStack)
    _cassandra: Services | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Give a directory on a real disk that goes afterwards."""
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as path:
            yield Path(path)

    def cassandra(self) -> Services:
        """Give one Cassandra node, the same for all benchmarks of the run."""
        if self._cassandra is None:
            services = ephemeral(kafka=0, cassandra=1, report=self.report)
            self._cassandra = self._stack.enter_context(services)
        return self._cassandra


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Contestants that do the same work, and what has been promised of them.

    Attributes:
        name: what the command line calls it.
        says: what is compared, in a sentence.
        unit: of what: "append", "MB", "record".
        staged: sets everything up and yields the contestants.
        baseline: whose time the others' is divided by.
        goals: figures with a limit.
        rounds: how many count, and how many when it must be quick.
        warmups: rounds before those that count.
        derived: what follows from the figures of all contestants together: its title, and how it is
            reckoned.
    """

    name: str
    says: str
    unit: str
    staged: Callable[[Lab], AbstractContextManager[Sequence[Contestant]]]
    baseline: str
    goals: tuple[Goal, ...] = ()
    rounds: tuple[int, int] = (5, 1)
    warmups: int = 1
    derived: tuple[str, Callable[[Mapping[str, Standing]], Mapping[str, float]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a benchmark has shown."""

    benchmark: Benchmark
    standings: Mapping[str, Standing]
    verdicts: tuple[Verdict, ...]
    #: What all of it took, setting up included.
    seconds: float = 0.0
    derived: Mapping[str, float] = field(default_factory=dict)


#: A turn that counted, and what it used.
Measured = tuple[Turn, Usage]


def run(benchmark: Benchmark, lab: Lab) -> Outcome:
    """Let the contestants of a benchmark take their turns; return the figures."""
    began = time.monotonic()
    with benchmark.staged(lab) as staged:
        contestants = [one for one in staged if _takes_part(one.name, benchmark, lab)]
        for index in range(benchmark.warmups):
            _round(contestants, index, lab, f"{benchmark.name}: warm-up")
        rounds = benchmark.rounds[1 if lab.quick else 0]
        counted = [
            _round(contestants, index, lab, f"{benchmark.name}: round {index + 1} of {rounds}")
            for index in range(rounds)
        ]
    baseline = [measured[benchmark.baseline][0] for measured in counted]
    standings = {
        contestant.name: standing([measured[contestant.name] for measured in counted], baseline)
        for contestant in contestants
    }
    verdicts = tuple(
        goal.judge(standings[goal.contestant].figure(goal.measure))
        for goal in benchmark.goals
        if goal.contestant in standings
    )
    whole = len(contestants) == len(staged)
    derived = benchmark.derived[1](standings) if benchmark.derived is not None and whole else {}
    return Outcome(
        benchmark=benchmark,
        standings=standings,
        verdicts=verdicts,
        seconds=time.monotonic() - began,
        derived=dict(derived),
    )


def standing(measured: Sequence[Measured], baseline: Sequence[Turn]) -> Standing:
    """Put the turns of one contestant into figures, beside the baseline's of the same rounds."""
    turns = [turn for turn, _ in measured]
    usages = [usage for _, usage in measured]
    samples = [seconds for turn in turns for seconds in turn.seconds]
    pairs = [(turn.cost, other.cost) for turn, other in zip(turns, baseline, strict=True)]
    ratios = [cost / other for cost, other in pairs]
    low, middle, high = quartiles(ratios)
    cpu = sum(usage.cpu_seconds for usage in usages)
    names = turns[0].facts
    return Standing(
        rounds=len(turns),
        samples=len(samples),
        median_ms=statistics.median(samples) * 1000,
        tail_ms=percentile(samples, TAIL) * 1000,
        rate=statistics.median(turn.units / sum(turn.seconds) for turn in turns),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        speed=statistics.median(1 / ratio for ratio in ratios),
        over_ms=statistics.median(cost - other for cost, other in pairs) * 1000,
        cpu_seconds=cpu,
        cpu_ms=cpu / sum(turn.units for turn in turns) * 1000,
        memory_mb=max(usage.memory_mb for usage in usages),
        growth_mb=max(usage.growth_mb for usage in usages),
        written_mb=sum(usage.written_mb for usage in usages),
        facts={name: statistics.median(turn.facts[name] for turn in turns) for name in names},
    )


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile; one value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _takes_part(name: str, benchmark: Benchmark, lab: Lab) -> bool:
    chosen = not lab.only or any(part in name for part in lab.only)
    return chosen or name == benchmark.baseline


def _round(
    contestants: Sequence[Contestant], index: int, lab: Lab, says: str
) -> dict[str, Measured]:
    """Let everybody have one turn; the order rotates, so that nobody is always behind another."""
    shift = index % len(contestants)
    measured = {}
    for one in [*contestants[shift:], *contestants[:shift]]:
        began = time.monotonic()
        measured[one.name] = take_turn(one)
        seconds = time.monotonic() - began
        if seconds >= TOLD_SECONDS:
            median = statistics.median(measured[one.name][0].seconds) * 1000
            lab.report(f"{says}, {one.name}: {seconds:.1f} s, median {median:,.4g} ms")
    return measured


def take_turn(contestant: Contestant) -> Measured:
    """Let a contestant have one turn, in a process of its own if it is isolated."""
    if not contestant.isolated:
        return measure(contestant.turn, contestant.servers)
    # Forked, it would begin with what this process has already freed, and grow into that.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawning) as pool:
        return pool.submit(_apart, contestant.turn, contestant.servers).result()


def _apart(turn: Callable[[], Turn], servers: tuple[int, ...]) -> Measured:
    """Have one turn in a process that ends with the one that started it, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started for the turn"

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    return measure(turn, servers)


def measure(turn: Callable[[], Turn], servers: tuple[int, ...]) -> Measured:
    """Have one turn in this process; return what it took and used."""
    gc.collect()  # nobody pays for what the one before left behind
    with Meter(servers) as meter:
        taken = turn()
    return taken, meter.usage
