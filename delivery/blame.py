"""Where in the user's own code an error was raised, and its traceback without frames of ours.

What it is: two readings of an exception that user code raised.
What it must not know: records, lanes, what becomes of the error.

Invariants:
    A line is named only where it stands in code that is neither ours, nor Python's, nor installed.
    An error that came of what the code returned, not of a line of it, has no place.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

import dedup

__all__ = ["place_in_user_code", "user_traceback"]

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


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((*_OURS, *_INSTALLED, "<frozen"))
