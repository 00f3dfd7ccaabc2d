"""How one record goes through user code: tries, and what becomes of a record that keeps failing.

What it is: the policy of a stage and the one function that applies it.
What it must not know: bundles, lanes, stores.

Invariants:
    Three tries at the same record; then the stage stops and names it, or the record becomes an
    output on the dead-letter edge and is sealed like any other.
    A record never disappears, and never has both an output and a dead letter. What is too large to
    go out again is cut, and its dead letter says so and where the whole of it stands.
    A record that was put aside by its name or its time is a dead letter; user code never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial
from types import GeneratorType
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from dedup.errors import InvalidUsage
from dedup.model import RecordId
from delivery.batch import Batch, Rows
from delivery.blame import place_in_user_code, place_of
from delivery.ports import Stage
from delivery.records import RECORD_BYTES_MAX, Output, Record, as_bytes, headers_bytes

#: Times user code gets the same record.
RECORD_TRIES = 3
#: Longest text of an error that a dead letter carries.
ERROR_TEXT_MAX = 1000
#: Headers of a dead letter: what went wrong, and what was cut off it.
ERROR = "delivery-error"
TRUNCATED = "delivery-truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a stage chose."""

    #: What its input is called where it is told of; nothing where it has no name.
    reads: str = ""
    #: What its outputs are called, by edge; nothing where they have no names.
    writes: tuple[str, ...] = ()
    #: The edge dead letters go to; None: the stage stops and names the record.
    dead_letter_edge: int | None = None
    #: The edge records go to that take no effect; None: they are counted, and that is all.
    duplicate_edge: int | None = None
    #: Re-keying only: outputs keep the id of their input, which stays external downstream.
    keep_ids: bool = False
    #: Whether a repeat with another payload than the record it repeats stops the stage.
    conflict_stops: bool = False
    #: The code makes the same of the same records whenever it runs: its seals keep recipes, not rows.
    deterministic: bool = False
    #: For how long its publishers may repeat themselves; its seals say it. 0: nobody knows.
    window_ms: int = 0
    #: How they name their records, as seals say it. "": nobody knows.
    named: str = ""


class StoppedByRecordError(Exception):
    """User code failed on a record, and the stage's policy is to stop. Nothing of it is sealed."""


@runtime_checkable
class RowStage(Protocol):
    """A stage that takes the fresh records of a batch all at once."""

    def run_rows(
        self, batch: Batch, chosen: npt.NDArray[np.intp], policy: Policy, rows: Rows
    ) -> int:
        """Add what these rows of a batch become; return how many dead letters are among it."""


def run_fresh(
    stage: Stage,
    batch: Batch,
    chosen: npt.NDArray[np.intp],
    policy: Policy,
    rows: Rows,
    *,
    kept: Iterator[RecordId | None],
    pool: Executor | None = None,
    letters: Mapping[int, Exception] | None = None,
) -> int:
    """Add what some rows of a batch become to `rows`; see `run_records`.

    Records of which `letters` says, by their rows, why user code is not to see them become a dead
    letter each, in their order among the others.
    """
    if letters:
        assert policy.dead_letter_edge is not None, "without dead letters no record comes so far"
        rows.unrepeatable = True
        dead_letters = first = 0
        apart = [at for at, row in enumerate(chosen.tolist()) if row in letters]
        for at in (*apart, len(chosen)):
            if first < at:
                between = chosen[first:at]
                dead_letters += run_fresh(stage, batch, between, policy, rows, kept=kept, pool=pool)
            if at < len(chosen):
                (record,) = batch.records(chosen[at : at + 1])
                why = letters[int(chosen[at])]
                rows.add([dead_letter(record, why, policy.dead_letter_edge)], record, next(kept))
                dead_letters += 1
            first = at + 1
        return dead_letters
    if _takes_rows(type(stage)):
        return cast("RowStage", stage).run_rows(batch, chosen, policy, rows)
    if pool is None and not policy.keep_ids and isinstance(stage, Function):
        return _run_function(stage, batch, chosen, policy, rows)
    return run_records(stage, batch.records(chosen), policy, rows, kept=kept, pool=pool)


@cache
def _takes_rows(kind: type[Stage]) -> bool:
    # Once a class: to ask a protocol costs more than a record.
    return issubclass(kind, RowStage)


def run_records(
    stage: Stage,
    records: Iterable[Record],
    policy: Policy,
    rows: Rows,
    *,
    kept: Iterator[RecordId | None],
    pool: Executor | None = None,
) -> int:
    """Add what records become to `rows`, in order; return how many dead letters are among it.

    Args:
        stage: user code.
        records: in the order of their offsets.
        policy: what becomes of a record that keeps failing.
        rows: what is added to.
        kept: for each record its id if its outputs keep it, else None.
        pool: runs user code on several records at once.
    """
    call = partial(run_record, stage, policy=policy)
    held = list(records)
    dead_letters = 0
    for record, (outputs, dead, failed) in zip(
        held, map(call, held) if pool is None else pool.map(call, held), strict=True
    ):
        dead_letters += dead
        rows.unrepeatable |= failed
        rows.add(outputs, record, next(kept))
    return dead_letters


def _run_function(
    stage: Function,
    batch: Batch,
    chosen: npt.NDArray[np.intp],
    policy: Policy,
    rows: Rows,
) -> int:
    """Do the same for a plain function: nothing of ours runs between it and most records."""
    records = list(batch.records(chosen))
    made: list[Any] = []
    left, dead_letters = iter(records), 0
    while len(made) < len(records):
        # SUBTLE: a StopIteration of user code ends the pass without a word, as if it were `left`'s.
        failure: Exception = StopIteration()
        try:
            made.extend(map(stage.call, left))
        except Exception as error:  # noqa: BLE001 - user code may raise anything; it is tried again
            failure = error
        if len(made) < len(records):
            # What came before it is in `made`, and `left` goes on behind it.
            outputs, dead, _ = run_record(stage, records[len(made)], policy, failure)
            made.append(outputs)
            dead_letters += dead
            rows.unrepeatable = True
    single = made
    if set(map(type, made)) == {list} and set(map(len, made)) == {1}:
        single = [outputs[0] for outputs in made]
    if set(map(type, single)) == {Output}:
        rows.extend(single, batch.source, batch.offsets[chosen].tolist())
        return dead_letters
    for record, result in zip(records, made, strict=True):
        outputs, dead, failed = _outputs(stage, record, result, policy)
        dead_letters += dead
        rows.unrepeatable |= failed
        rows.add(outputs, record, None)
    return dead_letters


def _outputs(
    stage: Function, record: Record, result: Any, policy: Policy
) -> tuple[Sequence[Output], int, bool]:
    """Return what a call returned as outputs; a generator runs only now, and may fail."""
    try:
        return outputs_of(result, record, stage.call), 0, False
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is tried again
        return run_record(stage, record, policy, error)


def run_record(
    stage: Stage, record: Record, policy: Policy, failure: Exception | None = None
) -> tuple[Sequence[Output], int, bool]:
    """Return the outputs of one record, 1 if they are its dead letter, and whether a call failed.

    Args:
        stage: user code.
        record: the record.
        policy: what becomes of one that keeps failing.
        failure: how the first try went wrong, if there was one.
    """
    outcome: Sequence[Output] | Exception = failure or _try(stage, record)
    failed = isinstance(outcome, Exception)
    for _ in range(RECORD_TRIES - 1):
        if not isinstance(outcome, Exception):
            break
        outcome = _try(stage, record)
    if not isinstance(outcome, Exception):
        return outcome, 0, failed
    if policy.dead_letter_edge is None:
        raise StoppedByRecordError(_stopped(record, outcome, policy.reads)) from outcome
    return [dead_letter(record, outcome, policy.dead_letter_edge)], 1, True


def _stopped(record: Record, error: Exception, topic: str) -> str:
    number, place = record.source.partition, place_in_user_code(error)
    what = ", ".join(filter(None, (f"{type(error).__name__}: {error}", place)))
    of_topic = f" of {topic}" if topic else ""
    look = f"`delivery explain` with --offset {topic}/{number}/{record.offset} shows the record: "
    return (
        f"user code failed {RECORD_TRIES} times on offset {record.offset} of partition {number}"
        f"{of_topic} ({what}); nothing of its bundle was sealed: {look if topic else ''}mend the "
        "code and start again (a stage that is declared with dead_letters= before its first start "
        "puts such records aside instead)"
    )


def dead_letter(record: Record, error: Exception, edge: int) -> Output:
    """Return the record as it came, with what went wrong in its headers."""
    text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
    # What went wrong may be the very text: a lone surrogate has no UTF-8, and this must not fail.
    said = (ERROR, text.encode(errors="backslashreplace"))
    try:
        return Output(record.value, record.key, (*record.headers, said), edge)
    except InvalidUsage:
        # It came in larger than it may go out with an error's text beside it.
        return truncated(record, said, edge)


def truncated(record: Record, said: tuple[str, bytes], edge: int) -> Output:
    """Return of a record what fits: its key, its headers from the first on, of its value the rest."""
    whole = {
        "topic_id": record.source.topic.hex(),
        "partition": record.source.partition,
        "offset": record.offset,
        "value_bytes": len(record.value or b""),
        "key_bytes": len(record.key or b""),
        "headers": len(record.headers),
    }
    ours = (said, (TRUNCATED, as_bytes(whole)))
    room = RECORD_BYTES_MAX - headers_bytes(ours)
    key = None if record.key is None else record.key[:room]
    room -= len(key or b"")
    kept: list[tuple[str, bytes]] = []
    for header in record.headers:
        weight = headers_bytes([header])
        if weight > room:
            break
        kept.append(header)
        room -= weight
    value = None if record.value is None else record.value[:room]
    return Output(value, key, (*kept, *ours), edge)


def _try(stage: Stage, record: Record) -> Sequence[Output] | Exception:
    try:
        return list(stage.run(record))
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is told, not swallowed
        return error


class Function:
    """A stage made of one function: record in, records out.

    Args:
        call: returns None for no output, one output, or an iterable of them. An output is an
            `Output` (`record.replace(...)` makes one), a `Record`, a dict (sent as JSON), a str
            (sent as UTF-8) or bytes. Whatever else it returns is an error of the function.
        code: version of the code, kept in every seal.
    """

    def __init__(self, call: Callable[[Record], object], code: str = "") -> None:
        self.call = call
        self.code = code

    def run(self, record: Record) -> Sequence[Output]:
        """Call the function and return its outputs as a list."""
        return outputs_of(self.call(record), record, self.call)


def outputs_of(result: Any, record: Record, call: Callable[..., object]) -> list[Output]:
    """Return what user code returned as a list of outputs.

    Raises:
        TypeError: it is none, or something in it is none; it says whose it is and what may be.
    """
    if result is None:
        return []
    if isinstance(result, _ONE):
        return [_output(result, record, call)]
    # What nearly all return needs no closer look.
    if type(result) not in _MANY and (
        isinstance(result, _NO_OUTPUTS) or not isinstance(result, Iterable)
    ):
        raise _wrong(call, "returned", result)
    return [item if isinstance(item, Output) else _output(item, record, call) for item in result]


#: What is one output.
_ONE = (Output, Record, dict, str, bytes)
#: What is several of them, where they are what they should be.
_MANY = (GeneratorType, list, tuple)
#: What could be iterated over and gives no outputs: it has no order, or only its keys or numbers.
_NO_OUTPUTS = (AbstractSet, Mapping, bytearray, memoryview)


def _wrong(call: Callable[..., object], did: str, result: object) -> TypeError:
    kind, place = type(result).__name__, place_of(call)
    article = "an" if kind[:1].lower() in set("aeiou") else "a"
    what = "None" if result is None else f"{article} {kind}"
    return TypeError(
        f"{getattr(call, '__name__', 'the stage')} {did} {what}: a stage returns None, one output "
        "(Record, Output, dict, str or bytes; record.replace(value=...) makes one of any JSON), or "
        f"an iterable of them{place and f'; it is at {place}'}"
    )


def stage_of(call: Callable[..., Any], code: str = "", *, batch: bool = False) -> Stage:
    """Return user code as a stage; `batch` says that it takes and returns Arrow batches."""
    if batch:
        from delivery.batches import ArrowFunction  # noqa: PLC0415 - it needs this module's policy

        return ArrowFunction(call, code)
    return Function(call, code)


def _output(item: object, record: Record, call: Callable[..., object]) -> Output:
    if isinstance(item, Output):
        return item
    if isinstance(item, Record):
        return Output(value=item.value, key=item.key, headers=item.headers)
    if not isinstance(item, _ONE):
        raise _wrong(call, "has among its outputs", item)
    return Output(value=as_bytes(item), key=record.key)
