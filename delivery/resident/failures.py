"""How what went wrong in a task travels to the driver, and what it is there.

What it is: an exception as plain data, and back.
What it must not know: what is done about it.

Invariants:
    The kinds of `dedup.errors` and a record that stopped its stage arrive as what they were.
    What nobody foresaw arrives with its traceback, and what user code raised with its own part of
    it. Where it was is said once. Nothing that arrives is unpickled.
"""

from __future__ import annotations

import traceback
from typing import Any

from dedup.errors import (
    Corrupt,
    DeliveryError,
    Fenced,
    Indeterminate,
    InvalidUsage,
    Unavailable,
)
from delivery.blame import user_traceback
from delivery.stage import StoppedByRecordError

__all__ = ["TaskFailedError", "document_of", "error_of"]

#: Longest traceback that travels.
TRACEBACK_CHARS_MAX = 20_000

_KINDS: dict[str, type[DeliveryError]] = {
    kind.__name__: kind for kind in (Corrupt, Fenced, Indeterminate, InvalidUsage, Unavailable)
}


class TaskFailedError(Exception):
    """A task failed in a way that nobody foresaw. Nothing was skipped; its traceback is here."""


def document_of(error: BaseException, place: str = "") -> dict[str, Any]:
    """Return an error as plain data.

    Args:
        error: what was raised.
        place: where: a lane and its seq, if that is known.
    """
    document: dict[str, Any] = {"kind": type(error).__name__, "text": str(error), "place": place}
    if isinstance(error, DeliveryError):
        document["words"] = [error.op, error.subject, error.hint]
    if isinstance(error, StoppedByRecordError):
        told = user_traceback(error.__cause__) if error.__cause__ else ""
    else:
        told = "".join(traceback.format_exception(error))
    document["traceback"] = told[-TRACEBACK_CHARS_MAX:]
    return document


def error_of(document: dict[str, Any]) -> Exception:
    """Return the error that a document was made from, with where it was."""
    kind, place = document["kind"], document["place"]
    if kind in _KINDS:
        known = _KINDS[kind](*document["words"])
        if place:
            known.add_note(f"in {place}")
        return known
    if kind == StoppedByRecordError.__name__:
        stopped = StoppedByRecordError(": ".join(filter(None, (place, document["text"]))))
        if document["traceback"]:
            stopped.add_note(f"In user code:\n{document['traceback']}")
        return stopped
    return TaskFailedError(
        f"{place or 'a task'}: {kind}: {document['text']}; nothing was skipped, and it will "
        f"happen again: mend it, or report it with this traceback\n{document['traceback']}"
    )
