"""Where in the user's own code an error was raised, and its traceback without frames of ours.

What it is: two readings of an exception that user code raised, where its function stands, and which
of the things that this takes along from outside does not do.
What it must not know: records, lanes, what becomes of the error.

Invariants:
    A line is named only where it stands in code that is neither ours, nor Python's, nor installed.
    An error that came of what the code returned, not of a line of it, has no place.
"""

from __future__ import annotations

import dis
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType

import dedup

__all__ = ["culprits", "place_in_user_code", "place_of", "user_traceback"]

_OURS = tuple(str(Path(package).parent) + os.sep for package in (__file__, dedup.__file__))
_INSTALLED = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def place_in_user_code(error: BaseException) -> str:
    """Return the last line of the user's own code that an error went through, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if _is_users(frame)), None)
    return "" if own is None else f"{own.filename}:{own.lineno} in {own.name}"


def user_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first line of the user's own code on, or nothing."""
    told = traceback.TracebackException.from_exception(error)
    first = next((at for at, frame in enumerate(told.stack) if _is_users(frame)), None)
    if first is None:
        return ""
    del told.stack[:first]
    return "".join(told.format()).rstrip()


def place_of(call: Callable[..., object]) -> str:
    """Return the first line of a function, or nothing where it is written in no file."""
    code = getattr(inspect.unwrap(call), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def culprits(call: object, fails: Callable[[object], bool]) -> list[str]:
    """Return the names of what a function takes along from outside, itself or by others, and fails.

    Args:
        call: the function, which fails.
        fails: tells whether something does, such as being sent to another process.
    """
    found: dict[str, None] = {}
    waiting, seen = [call], set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, MethodType) and fails(one.__self__):
            found[f"the {type(one.__self__).__name__} whose method it is"] = None
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        for name, value in _outside(one).items():
            if not fails(value):
                continue
            if isinstance(value, FunctionType | MethodType):
                waiting.append(value)
            else:
                found[name] = None
    return list(found)


def _outside(function: FunctionType) -> dict[str, object]:
    """Return the globals that a function, or one written in it, refers to, and what it closes over."""
    found: dict[str, object] = {}
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                found[step.argval] = function.__globals__[step.argval]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            found[name] = cell.cell_contents
    return found


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((*_OURS, *_INSTALLED, "<frozen"))
