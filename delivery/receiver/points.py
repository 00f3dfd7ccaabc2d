"""The named places of a receiver at which a process may die, and a process dies in tests.

What it is: the names, in the order in which a group comes past them.
What it must not know: what happens at any of them.

Invariants:
    A test kills a process at each of them.
"""

from __future__ import annotations

IDENTITY_MINTED = "identity-minted"
CATALOG_TOLD = "catalog-told"
LANES_COPIED = "lanes-copied"
BUNDLE_READY = "bundle-ready"
EFFECT_WRITTEN = "effect-written"
SEGMENT_FLUSHED = "segment-flushed"
SEAL_WRITTEN = "seal-written"
COMMITTED = "committed"

#: Of a group whose effects are in a database.
POINTS = (
    IDENTITY_MINTED,
    CATALOG_TOLD,
    LANES_COPIED,
    BUNDLE_READY,
    EFFECT_WRITTEN,
    SEGMENT_FLUSHED,
    SEAL_WRITTEN,
    COMMITTED,
)
