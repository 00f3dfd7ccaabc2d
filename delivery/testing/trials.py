"""`run`: a stage in a unit test, with a crash before and after every call.

What it is: the function that users call, its result and its failures.
What it must not know: how a plan is carried out, what is right.

Plans are run one by one, each from the beginning, and nothing is pruned. User code may be random,
read a clock or keep a global, so no state of a run comes again, and a search that recognises states
would either never end or recognise too much. Nor is it needed: a plan of one fault has one
continuation, so there are about as many plans as calls, and every one of them is a whole run that
can be replayed from its line.

Invariants:
    A plan is judged by that very run of it, never by comparison with another run.
    The run without a fault comes first; its outputs are the result.
    A failure names its plan in a line that `run(..., crash=line)` replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dedup.errors import InvalidUsage
from delivery.declared import declared_outputs
from delivery.naming import IdFrom
from delivery.ports import Stage
from delivery.records import Record
from delivery.stage import Function, StoppedByRecordError
from delivery.testing.effects import judge_effects, names, receive
from delivery.testing.explore import Violation
from delivery.testing.faulty import Fault
from delivery.testing.plan import CRASHES, Budget, Plan, line_of, plan_of
from delivery.testing.rig import Case, Rig, Unfit
from delivery.testing.source import Item, Script, id_of

#: The value of `crash` that tries every plan.
EVERYWHERE = "everywhere"
#: More plans than this are not a unit test any more.
PLANS_MAX = 20_000
#: Longest text about a record in a failure.
RECORD_TEXT_MAX = 1000
#: Bundles of the first process and of the second; all later ones take the rest at once.
BUNDLES = (3, 2, 1)


class RunResult(list[Record]):
    """The outputs of a stage's first edge as a receiver sees them: in order, without repeats.

    Attributes:
        edges: the outputs of every edge; `edges[0]` is the list itself.
        dead_letters: the records that user code could not process, with the error in a header.
        duplicates: how many records were dropped because their publisher had sent them before.
        plans: how many plans were run.
    """

    def __init__(
        self, edges: list[list[Record]], dead_letters: list[Record], duplicates: int
    ) -> None:
        super().__init__(edges[0])
        self.edges: list[list[Record]] = [self, *edges[1:]]
        self.dead_letters = dead_letters
        self.duplicates = duplicates
        self.plans = 1


class PlanFailed(Violation):
    """A plan came to something that must never be.

    Attributes:
        plan: the line that replays it; empty if nothing had to go wrong.
    """

    def __init__(self, text: str, plan: str) -> None:
        super().__init__(f"{text}\n{_replay(plan)}")
        self.plan = plan


class StoppedInPlanError(StoppedByRecordError):
    """User code failed on a record in one of the plans; the cause is what it raised.

    Attributes:
        plan: the line that replays it; empty if nothing had to go wrong.
    """

    def __init__(self, text: str, plan: str) -> None:
        super().__init__(f"{text}\n{_replay(plan)}")
        self.plan = plan


@dataclass(frozen=True, slots=True)
class _Around:
    """What a user's test does around every plan."""

    setup: Callable[[], object] | None
    check: Callable[[RunResult], object] | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A plan that was run."""

    result: RunResult
    calls: tuple[str, ...]
    last_event: int


def run(
    stage: Stage | Callable[[Record], object],
    records: Iterable[Item],
    crash: str | None = None,
    *,
    id_from: str | IdFrom | None = None,
    edges: int | None = None,
    dead_letter: bool = False,
    deterministic: bool = False,
    cuts: Sequence[Sequence[int]] | None = None,
    zombies: int = 0,
    kinds: Sequence[Fault] = CRASHES,
    setup: Callable[[], object] | None = None,
    check: Callable[[RunResult], object] | None = None,
) -> RunResult:
    """Run a stage over records and return its outputs as a receiver sees them.

    No Spark, no Kafka, no files: the real protocol over a catalog and topics in memory. User code is
    called again whenever a process died before its result was sealed, and only one result counts.

    Args:
        stage: a function, record in and outputs out, or an object with `run` and `code`.
        records: the input, with markers between the records where something happens.
        crash: None lets nothing go wrong; "everywhere" lets a process die before and after every
            call, one plan at a time; a line that a failure printed replays its plan.
        id_from: what names a record: "header:NAME", "json:FIELD", "key" or a function.
        edges: how many outputs the stage has; None: as many as the function was declared with by
            `@d.stage(writes=...)`, else one.
        dead_letter: records that fail three times become dead letters; else they stop the run.
        deterministic: the stage is declared so: what it made is made again after a crash, and a plan
            in which it comes out otherwise fails.
        cuts: per process, in the order they start, the offsets at which it cuts its bundles.
        zombies: how many processes of a plan may sleep before a call while another does all there
            is to do, and wake after it.
        kinds: what may befall a call; a crash before or after it unless told otherwise.
        setup: called before every plan; puts back what user code keeps or uses up outside.
        check: called with the outputs after every plan; raises or asserts what must hold.

    Returns:
        The outputs of the run in which nothing goes wrong, or of the plan that is replayed.

    Raises:
        AssertionError: a plan came to something that must never be; it says how to replay it.
        StoppedByRecordError: user code raised three times on a record; the cause is what it raised.
        InvalidUsage: an argument is wrong, or the line belongs to another test.
    """
    __tracebackhide__ = True
    case = replace(
        _case(stage, records, id_of(id_from), edges, cuts, dead_letters=dead_letter),
        deterministic=deterministic,
    )
    around = _Around(setup, check)
    if crash is not None and crash != EVERYWHERE:
        return _replayed(case, plan_of(crash), around)
    first = _try(case, (), around)
    budget = Budget(tuple(kinds), faults=int(crash == EVERYWHERE), zombies=zombies)
    waiting = [iter(budget.longer((), first.calls, -1))]
    while waiting:
        plan = next(waiting[-1], None)
        if plan is None:
            waiting.pop()
            continue
        if first.result.plans == PLANS_MAX:
            hint = "give it fewer records or fewer zombies; nothing was found so far"
            raise InvalidUsage("run a stage in every plan", f"{PLANS_MAX} plans", hint)
        first.result.plans += 1
        trial = _try(case, plan, around)
        waiting.append(iter(budget.longer(plan, trial.calls, trial.last_event)))
    return first.result


def _replayed(case: Case, plan: Plan, around: _Around) -> RunResult:
    __tracebackhide__ = True
    rig = Rig(case, plan)
    result = _judged(rig, around)
    if rig.misfit is not None:
        raise InvalidUsage(
            "replay a plan",
            line_of(plan),
            f"the call {rig.misfit} was never made: the line belongs to another stage, other "
            'records or other arguments; run it with crash="everywhere" to get today\'s',
        )
    return result


def _try(case: Case, plan: Plan, around: _Around) -> _Trial:
    __tracebackhide__ = True
    rig = Rig(case, plan)
    result = _judged(rig, around)
    # User code that makes another number of outputs may never come to the call: nothing happened,
    # and nothing can be added to it.
    last = len(rig.calls) if rig.misfit is not None else rig.last_event
    return _Trial(result, tuple(rig.calls), last)


def _judged(rig: Rig, around: _Around) -> RunResult:
    """Carry out a plan and judge what it came to."""
    __tracebackhide__ = True
    line = line_of(rig.plan)
    if around.setup is not None:
        around.setup()
    try:
        rig.go()
        received = receive(rig)
        judge_effects(rig, received)
    except Unfit as unfit:
        raise _unfit(rig.case.edges, *unfit.args) from None
    except StoppedByRecordError as error:
        text = f"{error}\n{_seen(rig)}"
        raise StoppedInPlanError(text, line) from error.__cause__
    except AssertionError as violation:
        raise PlanFailed(str(violation), line) from violation
    every = [[output.record for output in edge] for edge in received]
    edges, letters = every[: rig.case.edges], every[rig.case.edges :]
    duplicates = len(rig.case.script.records) - len(names(rig))
    result = RunResult(edges, [letter for edge in letters for letter in edge], duplicates)
    if around.check is not None:
        try:
            around.check(result)
        except Exception as error:
            raise PlanFailed(f"check: {type(error).__name__}: {error}", line) from error
    return result


def _unfit(edges: int, lowest: int, highest: int) -> InvalidUsage:
    more = f", or say run(..., edges={highest + 1}) if it has more" if lowest >= 0 else ""
    return InvalidUsage(
        "run a stage",
        f"output {lowest if lowest < 0 else highest}",
        f"it is run with {edges} outputs, numbered from 0: mend the code{more}",
    )


def _seen(rig: Rig) -> str:
    """Say which record user code was called with last, and whether it had gone through."""
    record = rig.last
    assert record is not None, "user code raised, so it was called"
    text = f"key={record.key!r} value={record.value!r} headers={record.headers!r}"
    lines = [f"The record: {text[:RECORD_TEXT_MAX]}"]
    if any(done.offset == record.offset for done in rig.executions):
        lines.append("It had gone through before: after a crash, user code gets a record again.")
    elif rig.plan:
        lines.append(
            "It went through when nothing went wrong: what user code uses up from one plan to the "
            "next is put back with run(..., setup=...)."
        )
    return "\n".join(lines)


def _case(
    stage: object,
    records: Iterable[Item],
    id_from: IdFrom,
    edges: int | None,
    cuts: Sequence[Sequence[int]] | None,
    *,
    dead_letters: bool,
) -> Case:
    if edges is None:
        edges = declared_outputs(stage) or 1
    if edges < 1:
        raise InvalidUsage("run a stage", f"{edges} edges", "a stage has at least one output")
    script = Script.of(records, id_from)
    count = len(script.records)
    if cuts is None:
        cuts = [[count * part // parts for part in range(1, parts)] for parts in BUNDLES]
    return Case(
        stage=_stage(stage),
        script=script,
        id_from=id_from,
        edges=edges,
        dead_letters=dead_letters,
        deterministic=False,
        cuts=tuple(tuple(sorted(offsets)) for offsets in cuts) or ((),),
    )


def _stage(stage: object) -> Stage:
    if hasattr(stage, "run") and hasattr(stage, "code"):
        return cast("Stage", stage)
    if callable(stage):
        return Function(stage)
    hint = "give a function, record in and outputs out, or an object with `run` and `code`"
    raise InvalidUsage("run a stage", f"a {type(stage).__name__}", hint)


def _replay(line: str) -> str:
    if not line:
        return "Nothing had to go wrong for it: run(..., crash=None) shows the same."
    return f'Replay it with run(..., crash="{line}").'
