"""Changed code: from where on which version of a stage's code counts.

What it is: `versions`.
What it must not know: what changed in the code.

Changed code needs no verb: a stage that is started with it goes on where its lanes stand. What was
sealed before is what the old code made, and is delivered as it was stored; what is sealed from then
on is what the new code makes. No record sees both.

Invariants:
    The catalog is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from dedup.catalog.catalog import Catalog
from delivery.life.survey import survey
from delivery.life.words import named

__all__ = ["Version", "versions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A stretch of a lane that one version of the code sealed.

    Attributes:
        lane: its name.
        code: the version.
        first, last: its seals.
        start, end: what they read, by topic and partition; the end not included.
        pending: how many of them are not delivered yet; they will be, as they are.
    """

    lane: str
    code: str
    first: int
    last: int
    start: Mapping[str, int]
    end: Mapping[str, int]
    pending: int

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def versions(catalog: Catalog, stage: str) -> list[Version]:
    """Return which version of a stage's code sealed what, as far as seals are still there.

    Raises:
        InvalidUsage: there is no such stage.
    """
    found = survey(catalog, stage, "look at the code of a stage")
    said = []
    for lane, row in sorted(found.lanes.items()):
        # Seal 0 says where the lane begins, and is of no code.
        seals = [seal for seal in catalog.history(lane, row.head, 1) if seal.ref.seq]
        for code, group in groupby(seals, key=lambda seal: seal.code):
            stretch = list(group)
            last = stretch[-1].ref.seq
            said.append(
                Version(
                    lane=lane,
                    code=code,
                    first=stretch[0].ref.seq,
                    last=last,
                    start=named(row.head, stretch[0].start),
                    end=named(row.head, stretch[-1].end),
                    pending=sum(seal.ref.seq > row.ack.seq for seal in stretch),
                )
            )
    return said
