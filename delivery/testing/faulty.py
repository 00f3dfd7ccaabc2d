"""Faulty wrappers: any store or log behind the question "did it happen, and was it reported?".

What it is: a `Wire` that every changing call passes through, and wrappers that send calls over it.
What it must not know: the protocol; it fails calls, not plans.

Invariants:
    Every call that changes something passes the wire exactly once, in the order it was made.
    A late request is applied at most once, whole, at a moment that the test chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dedup.catalog.store import Store
from dedup.errors import Indeterminate, Unavailable


class Fault(StrEnum):
    """What befalls one call."""

    #: The process dies before the request is sent.
    CRASH_BEFORE = "crash-before"
    #: The process dies after the request was carried out.
    CRASH_AFTER = "crash-after"
    #: It happened; the reply is lost.
    LOST_REPLY = "lost-reply"
    #: It did not happen; nobody says so.
    LOST_REQUEST = "lost-request"
    #: It did not happen, and the caller is told.
    REFUSED = "refused"
    #: The driver sends it twice; the caller sees the second reply.
    REPEATED = "repeated"
    #: The caller is told nothing; the request is carried out later.
    LATE = "late"


class Crashed(BaseException):
    """The process is dead: its memory is gone, what it sent is not."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call as data, so that it can be carried out later, or twice."""

    target: str
    method: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True)
class Wire:
    """Carries calls to their targets, and lets the chosen ones fail.

    Args:
        targets: the real objects, by name.
        plan: asked for every call with its number; returns its fault, or None.
    """

    targets: dict[str, Any]
    plan: Callable[[int, Request], Fault | None] = lambda _number, _request: None
    late: list[Request] = field(default_factory=list)
    calls: list[Request] = field(default_factory=list)

    def call(self, target: str, method: str, *args: Any, **options: Any) -> Any:
        """Carry out one call, or let it fail."""
        request = Request(target, method, args, tuple(sorted(options.items())))
        fault = self.plan(len(self.calls), request)
        self.calls.append(request)
        return self._fail(fault, request) if fault else self.carry_out(request)

    def carry_out(self, request: Request) -> Any:
        """Do what a request asks for, now."""
        method = getattr(self.targets[request.target], request.method)
        return method(*request.args, **dict(request.options))

    def _fail(self, fault: Fault, request: Request) -> Any:
        if fault is Fault.CRASH_BEFORE:
            raise Crashed(request.method)
        if fault is Fault.REFUSED:
            raise Unavailable(
                request.method, request.target, "planned by a test: it did not happen"
            )
        if fault is Fault.LATE:
            self.late.append(request)
        elif fault is not Fault.LOST_REQUEST:
            self.carry_out(request)
        if fault is Fault.REPEATED:
            return self.carry_out(request)
        if fault is Fault.CRASH_AFTER:
            raise Crashed(request.method)
        raise Indeterminate(request.method, request.target, "planned by a test: nobody knows")


#: The calls of a store that change something.
STORE_WRITES = frozenset(
    {
        "append",
        "create",
        "import_entries",
        "reincarnate",
        "acknowledge",
        "raise_collected",
        "delete_entries",
        "put",
        "flush",
        "delete",
        "replace_list",
        "note_loser",
        "forget_losers",
        "setting",
    }
)


class FaultyStore:
    """A store whose changing calls go over a wire; reads are its own."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self._store = store
        self._wire = wire
        wire.targets["store"] = store

    def __getattr__(self, name: str) -> Any:
        if name not in STORE_WRITES:
            return getattr(self._store, name)

        def send(*args: Any, **options: Any) -> Any:
            return self._wire.call("store", name, *map(_frozen, args), **options)

        return send


def _frozen(arg: Any) -> Any:
    """Return arguments in a form that may wait: lists may change before a late call is made."""
    return tuple(arg) if isinstance(arg, list | Iterator) else arg
