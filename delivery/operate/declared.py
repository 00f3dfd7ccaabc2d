"""A pipeline as a file declares it: the file is run up to its end, and what it declares is taken.

What it is: `declared`, which returns the `Delivery` of a Python file.
What it must not know: what is done with it.

Invariants:
    The file runs under another name than `__main__`: what stands below `if __name__ == "__main__"`
    is not run, so nothing is started that a script would start there.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from dedup.errors import InvalidUsage
from delivery.api import Delivery

__all__ = ["RUN_NAME", "declared"]

#: What the file sees as its `__name__`.
RUN_NAME = "__delivery__"


def declared(text: str) -> Delivery:
    """Return the pipeline that a file declares.

    Args:
        text: "FILE.py", or "FILE.py:NAME" where it declares several.

    Raises:
        InvalidUsage: there is no such file, it fails, or it declares none or several.
    """
    path, _, name = text.partition(":")
    file = Path(path)
    if not file.is_file():
        raise _unfit(text, "there is no such file", "mend the path")
    directory = str(file.resolve().parent)
    sys.path.insert(0, directory)
    try:
        known = runpy.run_path(str(file), run_name=RUN_NAME)
    except Exception as error:
        raise _unfit(
            text,
            f"it fails: {type(error).__name__}: {error}",
            'mend it, and let what it starts stand below `if __name__ == "__main__":`',
        ) from error
    finally:
        sys.path.remove(directory)
    found = {key: value for key, value in known.items() if isinstance(value, Delivery)}
    if name:
        found = {key: value for key, value in found.items() if key == name}
    pipelines = {id(value): value for value in found.values()}
    if len(pipelines) != 1:
        there = ", ".join(found) or "none"
        raise _unfit(
            text,
            f"of the pipelines that are meant it declares {there}",
            "name the one that is meant: FILE.py:NAME",
        )
    return next(iter(pipelines.values()))


def _unfit(text: str, what: str, hint: str) -> InvalidUsage:
    return InvalidUsage("read a pipeline", text, f"{what}; nothing was done: {hint}")
