"""The named places at which a process may die, and a process dies in tests.

What it is: the names of a lane's points, in the order in which a bundle comes past them, and
`PLACES`, these and the steps of its index.
What it must not know: what happens at any of them.

Invariants:
    Every point is passed by every bundle that has outputs, a step only when an index is due for it;
    each is killed at by a test.
"""

from __future__ import annotations

from collections.abc import Callable

from dedup.local.steps import STEPS

BEFORE_OUTPUT = "before-output"
MID_OUTPUT = "mid-output"
STORED_NOT_SEALED = "stored-not-sealed"
SEAL_REPLY_LOST = "seal-reply-lost"
SEALED_NOT_EMITTED = "sealed-not-emitted"
MID_EMIT = "mid-emit"
EMITTED_NOT_ACKNOWLEDGED = "emitted-not-acknowledged"
ACKNOWLEDGED = "acknowledged"

POINTS = (
    BEFORE_OUTPUT,
    MID_OUTPUT,
    STORED_NOT_SEALED,
    SEAL_REPLY_LOST,
    SEALED_NOT_EMITTED,
    MID_EMIT,
    EMITTED_NOT_ACKNOWLEDGED,
    ACKNOWLEDGED,
)

PLACES = (*POINTS, *STEPS)

#: Told the name of each place as it is passed.
At = Callable[[str], None]


def nowhere(_point: str) -> None:
    """Take no notice of a place."""
