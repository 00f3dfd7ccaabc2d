"""How often Python looks for cycles in a process that only runs lanes.

What it is: one call.
What it must not know: lanes.

Invariants:
    Only for a process of our own: in a user's process the collector is the user's.
"""

from __future__ import annotations

import gc

#: Objects made since the last look, before the next. A bundle is some hundred thousand tuples that
#: hold no cycle; at Python's 700, looking for cycles among them took a third of all time.
OBJECTS_BETWEEN_LOOKS = 200_000


def calm_collector() -> None:
    """Let the collector of cycles look less often, and never again at what is there by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS, 20, 100)
