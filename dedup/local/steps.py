"""The named steps of a lane's index on its host at which a process may die.

What it is: the names, in the order in which a publication comes past them.
What it must not know: what happens at any of them.

Invariants:
    Every name is killed at by a test, of an index alone and in a running pipeline.
"""

from __future__ import annotations

WORKSHOP_UNBORN = "workshop-unborn"
WORKSHOP_BORN = "workshop-born"
SET_ASIDE = "set-aside"
RUN_WRITTEN = "run-written"
MERGED = "merged"
GROWN = "grown"
FORGOTTEN = "forgotten"
BITS_SET = "bits-set"
FILE_IN_PLACE = "file-in-place"
MANIFEST_WRITTEN = "manifest-written"
MANIFEST_IN_PLACE = "manifest-in-place"
FILE_DELETING = "file-deleting"

STEPS = (
    WORKSHOP_UNBORN,
    WORKSHOP_BORN,
    SET_ASIDE,
    RUN_WRITTEN,
    MERGED,
    GROWN,
    FORGOTTEN,
    BITS_SET,
    FILE_IN_PLACE,
    MANIFEST_WRITTEN,
    MANIFEST_IN_PLACE,
    FILE_DELETING,
)
