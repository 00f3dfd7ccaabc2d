"""Who was killed and when, as `delivery chaos --json` has said it.

What it is: `Kill`, and `kills_in`, which reads such a document.
What it must not know: how anybody dies, what is shown of it.

Invariants:
    A file that is not such a document is refused, never taken for one without kills.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import InvalidUsage

__all__ = ["Kill", "kills_in"]


@dataclass(frozen=True, slots=True)
class Kill:
    """Somebody died."""

    at_ms: int
    what: str


def kills_in(path: Path) -> Sequence[Kill]:
    """Return the kills of a document, oldest first.

    Raises:
        InvalidUsage: it cannot be read, or is another one.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        kills = [Kill(int(one["at_ms"]), str(one["what"])) for one in said["died"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidUsage(
            "read who was killed",
            str(path),
            f"it is not what `delivery chaos --json` writes ({type(error).__name__}: {error}); no "
            "report was written: name the file that its output went to",
        ) from error
    return sorted(kills, key=lambda one: one.at_ms)
