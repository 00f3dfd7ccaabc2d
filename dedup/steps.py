"""The steps of which plans of collectors and compactors are made, each by the name of what it does.

What it is: `Step`, and the names of all kinds of steps, in the order in which a plan has them.
What it must not know: what a step does, who performs it.

Invariants:
    Every step of a plan has one of these names.
    Behind each of them a process is killed by a test, beside a running pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog

OUTPUTS_MARKED = "outputs-marked"
OUTPUTS_DELETED = "outputs-deleted"
LOST_IDS_DELETED = "lost-ids-deleted"
IDS_STORED_APART = "ids-stored-apart"
IDS_LISTED = "ids-listed"
ENTRIES_DELETED = "entries-deleted"
LOSERS_FORGOTTEN = "losers-forgotten"
DROPPED_DELETED = "dropped-deleted"
IDS_UNLISTED = "ids-unlisted"
LIST_CLOSED = "list-closed"
IDS_DELETED = "ids-deleted"

COLLECTION = (
    OUTPUTS_MARKED,
    OUTPUTS_DELETED,
    LOST_IDS_DELETED,
    IDS_STORED_APART,
    IDS_LISTED,
    ENTRIES_DELETED,
    LOSERS_FORGOTTEN,
    DROPPED_DELETED,
    IDS_UNLISTED,
    LIST_CLOSED,
    IDS_DELETED,
)

SEALS_MERGED = "seals-merged"
TIERS_MERGED = "tiers-merged"
MERGE_LISTED = "merge-listed"
MERGE_INPUTS_DELETED = "merge-inputs-deleted"

COMPACTION = (SEALS_MERGED, TIERS_MERGED, MERGE_LISTED, MERGE_INPUTS_DELETED)

KINDS = (*COLLECTION, *COMPACTION)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: its name, what it does in words, and doing it."""

    kind: str
    what: str
    act: Callable[[Catalog], bool]

    def __post_init__(self) -> None:
        """Let no plan have a step that no test knows."""
        assert self.kind in KINDS, self.kind

    def perform(self, catalog: Catalog) -> bool:
        """Do it; False if somebody else moved what it compared, and the plan is void."""
        return self.act(catalog)
