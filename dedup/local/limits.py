"""How much an index keeps where: every bound of it, with its reason.

What it is: `Limits`, constants that tests make small.
What it must not know: anything that is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers of ids, unless said otherwise."""

    #: The overlay is written to a run once it holds this many, or this share of all ids if that is
    #: more, but never more than the greatest: 37 bytes an id of anonymous memory, 2.3 MiB a lane, and
    #: as much again at most while it is written.
    overlay_ids_min: int = 1 << 14
    overlay_share: float = 1 / 64
    overlay_ids_max: int = 1 << 16
    #: Or once it holds the ids of so many seals: a start reads their entries again.
    overlay_seals_max: int = 1 << 10
    #: Runs are published once what only this process has of them is this share of all ids, or so many:
    #: whoever starts meanwhile reads that again. A merge publishes too, and comes first in large lanes.
    apart_share: float = 1 / 16
    apart_ids_max: int = 5 << 16
    #: An overlay of more ids than this is written in a thread; less takes a millisecond or two.
    aside_ids: int = 1 << 15
    #: In a rebuild nobody asks yet: larger runs mean fewer of them, for 24 MiB of memory.
    rebuild_ids: int = 1 << 20
    #: What the first filter of a group is made for: 140 KiB.
    first_ids: int = 1 << 16
    #: How much larger a filter is than the ids it is made from: 2.6 bytes an id when it is new. Each
    #: id is added about five times more in its life; twice the room would halve that, and with what
    #: the overlay takes an id would have more than three bytes.
    filter_room: float = 6 / 5
    #: As many runs of a size are merged into one of the next size. A merge costs each id about as
    #: much as ten runs more to look through cost it, but it happens in a thread of its own.
    fanout: int = 4
    #: With more runs than this to look through, whoever writes waits for the merge that goes on.
    runs_max: int = 64
    #: The smallest size of a run.
    level_ids: int = 1 << 15
    #: Upkeep of more ids than this goes on in a thread of its own; less takes some milliseconds.
    inline_ids: int = 1 << 18
    #: This many seals behind, a look at what other processes left is cheaper than following.
    far_seals: int = 16
    #: Entries read at a time.
    seals_at_once: int = 256


LIMITS = Limits()
