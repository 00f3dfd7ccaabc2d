"""How one record goes through user code: tries, and what becomes of a record that keeps failing.

What it is: the policy of a stage and the one function that applies it.
What it must not know: bundles, lanes, stores.

Invariants:
    Three tries at the same record; then the stage stops and names it, or the record becomes an
    output on the dead-letter edge and is sealed like any other.
    A record never disappears, and never has both an output and a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dedup.errors import InvalidUsage
from delivery.ports import Stage
from delivery.records import Output, Record, as_bytes

#: Times user code gets the same record.
RECORD_TRIES = 3
#: Longest text of an error that a dead letter carries.
ERROR_TEXT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a stage chose."""

    #: The edge dead letters go to; None: the stage stops and names the record.
    dead_letter_edge: int | None = None
    #: Re-keying only: outputs keep the id of their input, which stays external downstream.
    keep_ids: bool = False
    #: Whether a repeat with another payload than the record it repeats stops the stage.
    conflict_stops: bool = False


class StoppedByRecordError(Exception):
    """User code failed on a record, and the stage's policy is to stop. Nothing of it is sealed."""


def run_record(stage: Stage, record: Record, policy: Policy) -> tuple[Sequence[Output], int]:
    """Return the outputs of one record, and 1 if they are its dead letter."""
    for _ in range(RECORD_TRIES - 1):
        outcome = _try(stage, record)
        if not isinstance(outcome, Exception):
            return outcome, 0
    outcome = _try(stage, record)
    if not isinstance(outcome, Exception):
        return outcome, 0
    if policy.dead_letter_edge is None:
        raise StoppedByRecordError(
            f"user code failed {RECORD_TRIES} times on offset {record.offset} of partition "
            f"{record.source.partition} ({type(outcome).__name__}: {outcome}); nothing of its "
            "bundle was sealed: mend the code, or give the stage a dead-letter output"
        ) from outcome
    try:
        return [dead_letter(record, outcome, policy.dead_letter_edge)], 1
    except InvalidUsage as error:
        # The record came in larger than it may go out with an error's text beside it.
        raise StoppedByRecordError(
            f"user code failed {RECORD_TRIES} times on offset {record.offset} of partition "
            f"{record.source.partition} ({type(outcome).__name__}: {outcome}), and its dead letter "
            f"would be too large ({error.subject}); nothing of its bundle was sealed: mend the code"
        ) from outcome


def dead_letter(record: Record, error: Exception, edge: int) -> Output:
    """Return the record as it came, with what went wrong in its headers."""
    text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
    # What went wrong may be the very text: a lone surrogate has no UTF-8, and this must not fail.
    headers = (*record.headers, ("delivery-error", text.encode(errors="backslashreplace")))
    return Output(value=record.value, key=record.key, headers=headers, edge=edge)


def _try(stage: Stage, record: Record) -> Sequence[Output] | Exception:
    try:
        return list(stage.run(record))
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is told, not swallowed
        return error


class Function:
    """A stage made of one function: record in, records out.

    Args:
        call: returns an iterable of outputs, one output, or None for none.
        code: version of the code, kept in every seal.
    """

    def __init__(self, call: Callable[[Record], object], code: str = "") -> None:
        self._call = call
        self.code = code

    def run(self, record: Record) -> Sequence[Output]:
        """Call the function and return its outputs as a list."""
        result = self._call(record)
        if result is None:
            return []
        if isinstance(result, Output):
            return [result]
        if isinstance(result, str | bytes | dict | Record):
            return [_output(result, record)]
        return [_output(item, record) for item in result]  # type: ignore[attr-defined]


def stage_of(call: Callable[..., Any], code: str = "") -> Stage:
    """Return user code as a stage."""
    return Function(call, code)


def _output(item: object, record: Record) -> Output:
    if isinstance(item, Output):
        return item
    if isinstance(item, Record):
        return Output(value=item.value, key=item.key, headers=item.headers)
    return Output(value=as_bytes(item), key=record.key)
