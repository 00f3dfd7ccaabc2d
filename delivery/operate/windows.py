"""How long the ids of a lane are held while its catalog is compacted.

What it is: `windows`, which holds what an operator asks for against what the lanes themselves say.
What it must not know: what is done with it, who declares stages.

Invariants:
    No lane is given a window that is shorter than the one its last process said.
    A lane that nobody has said it of (it was begun, and never ran; or not since seals say it) is given
    the longest window there can be.
"""

from __future__ import annotations

from collections.abc import Iterable

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.expiry import WINDOW_MS_MAX

__all__ = ["windows"]

_HOUR_MS = 60 * 60 * 1000


def windows(catalog: Catalog, lanes: Iterable[str], asked_ms: int | None) -> dict[str, int]:
    """Return for each lane how long ids that publishers name are held, in milliseconds.

    Args:
        catalog: where the lanes are.
        lanes: their names.
        asked_ms: what the operator asks for; None: what each lane says.

    Raises:
        InvalidUsage: it is shorter than what a lane says.
    """
    rows = {lane: catalog.load(lane) for lane in lanes}
    said = {lane: row.head.window_ms for lane, row in rows.items() if row and row.head.window_ms}
    longest = max(said, key=lambda lane: said[lane], default=None)
    if longest is not None and asked_ms is not None and asked_ms < said[longest]:
        raise InvalidUsage(
            "compact a catalog",
            f"a window of {asked_ms / _HOUR_MS:g} h",
            f"lane {longest} was sealed with one of {said[longest] / _HOUR_MS:g} h: ids that its "
            "publishers may still repeat would be forgotten, and the repeats take effect a second "
            "time; nothing was done: say at least that, or leave out --window, and each lane's own "
            "is taken; a stage that is started with a shorter window says so with its next seal",
        )
    return {lane: (asked_ms or said[lane]) if lane in said else WINDOW_MS_MAX for lane in rows}
