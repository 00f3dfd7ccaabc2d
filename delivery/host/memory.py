"""How often Python looks for cycles in a process that only runs lanes.

What it is: two calls.
What it must not know: lanes.

Invariants:
    Only for a process of our own: in a user's process the collector is the user's.
    What was closed is let go of at once, however seldom the collector looks.
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


def let_go() -> None:
    """Let go of what was just closed.

    Clients of Kafka's are part of cycles, by their callbacks, and each holds threads and one of a
    thousand keys that a process has: a worker that begins again and again would run out of them
    before a collector that was calmed looks.
    """
    gc.collect()
