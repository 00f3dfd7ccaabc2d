"""Where files that every checkout shares are kept: jars, and the shim of the JRE wheel.

What it is: the path of one directory per user.
What it must not know: what is kept there, or how it got there.

Invariants:
    Nothing that is fetched is written outside of this directory.
    Deleting it costs a download, never data: servers keep their data in the directory they belong
    to, not here.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory() -> Path:
    """Name the shared cache directory; it need not exist yet.

    `$DELIVERY_CACHE` wins, then `$XDG_CACHE_HOME/exactly-once-delivery`, then
    `~/.cache/exactly-once-delivery`. An empty variable counts as unset, as the XDG rules say.
    """
    if given := os.environ.get("DELIVERY_CACHE"):
        return Path(given).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "exactly-once-delivery"
    return Path.home() / ".cache" / "exactly-once-delivery"
