"""What a lane has done in this process, in numbers that add up.

What it is: `Counters`, which a host adds up and sends along.
What it must not know: how they are shown.

Invariants:
    Every number only grows; a rate is the difference of two looks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from dedup.local.stats import Counters as Did
from dedup.model import Counts


@dataclass(slots=True)
class Counters:
    """Numbers of one process."""

    read: int = 0
    fresh: int = 0
    duplicate: int = 0
    remnant: int = 0
    abandoned: int = 0
    conflict: int = 0
    dead_letter: int = 0
    unnamed: int = 0
    seals: int = 0
    lost: int = 0
    bytes_read: int = 0
    #: Ids that filters were asked for, of these let through, and of those not there: each a look-up
    #: that was worth nothing.
    probes: int = 0
    positives: int = 0
    false_positives: int = 0
    #: Saturated filters that looks at them found.
    saturated: int = 0

    def count(self, counts: Counts) -> None:
        """Add what became of a bundle."""
        self.read += counts.read
        self.fresh += counts.fresh
        self.duplicate += counts.duplicate
        self.remnant += counts.remnant
        self.abandoned += counts.abandoned
        self.conflict += counts.conflict
        self.dead_letter += counts.dead_letter
        self.unnamed += counts.unnamed
        self.seals += 1

    def asked(self, did: Did, before: Did) -> None:
        """Say how the filters of an index did since `before`, and how often one was saturated."""
        asked = did.asked.since(before.asked)
        self.saturated = did.saturated - before.saturated
        self.probes, self.positives = asked.probes, asked.positives
        self.false_positives = asked.false_positives

    def add(self, other: Counters) -> None:
        """Add another process's."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def document(self) -> dict[str, int]:
        """Return them by name."""
        return asdict(self)
