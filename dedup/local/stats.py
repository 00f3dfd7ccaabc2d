"""What an index says about itself: counters and sizes, for operators and for benchmarks.

What it is: plain values.
What it must not know: how anything is looked up.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from operator import add, sub

from dedup.formats.segment import Bucket


@dataclass(frozen=True, slots=True)
class Asked:
    """How filters did: ids asked for, of these let through, and of those not there."""

    probes: int = 0
    positives: int = 0
    false_positives: int = 0

    @property
    def avoided(self) -> int:
        """Look-ups that filters have spared."""
        return self.probes - self.positives

    @property
    def rate(self) -> float | None:
        """The share of ids let through, of those that were not there; None: none was asked for."""
        strangers = self.avoided + self.false_positives
        return self.false_positives / strangers if strangers else None

    def plus(self, other: Asked) -> Asked:
        """Return both together."""
        return Asked(*map(add, astuple(self), astuple(other)))

    def since(self, before: Asked) -> Asked:
        """Return what came after an earlier look."""
        return Asked(*map(sub, astuple(self), astuple(before)))


@dataclass(slots=True, kw_only=True)
class Counters:
    """What an index has done since it was made."""

    #: Ids asked for.
    probes: int = 0
    #: Of these, what filters let through.
    positives: int = 0
    #: Of these, what was not there.
    false_positives: int = 0
    #: Look-ups of one id in one run on this host's disk.
    local_reads: int = 0
    #: Seals and listed segments whose ids were read from the catalog.
    catalog_reads: int = 0
    #: How often everything was read anew from the catalog.
    rebuilds: int = 0
    flushes: int = 0
    merges: int = 0
    growths: int = 0
    #: How often upkeep found no room, or files gone: look at the disk if it grows.
    failures: int = 0
    #: How often another process's files were taken over instead.
    adoptions: int = 0
    #: How often the lane's lock was in other hands.
    lock_misses: int = 0
    #: Saturated filters that looks at them found; one that stays so is found again.
    saturated: int = 0

    def copy(self) -> Counters:
        """Return them as they are now."""
        return replace(self)

    @property
    def asked(self) -> Asked:
        """How filters did, as it is now."""
        return Asked(self.probes, self.positives, self.false_positives)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStats:
    """One filter and the runs behind it."""

    bucket: Bucket
    ids: int
    runs: int
    #: Share of bits set, and expected share of false positives.
    fill: float
    rate: float
    filter_bytes: int
    #: The filter is so full or so crowded that it is of little help: see `Stats.alarm`.
    saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What an index is and has done."""

    counters: Counters
    buckets: tuple[BucketStats, ...]
    #: Ids in anonymous memory, not yet in a file.
    overlay_ids: int
    anonymous_bytes: int
    filter_bytes: int
    run_bytes: int

    @property
    def ids(self) -> int:
        """How many ids are held."""
        return self.overlay_ids + sum(bucket.ids for bucket in self.buckets)

    @property
    def alarm(self) -> str:
        """Say what is wrong with a filter and what to do; empty if nothing is."""
        count = sum(bucket.saturated for bucket in self.buckets)
        return alarm_of(count) if count else ""


def alarm_of(count: int) -> str:
    """Say what so many saturated filters mean and what to do."""
    return (
        f"{count} filters are saturated: verdicts stay right, each costs a look-up on this host's "
        "disk. If publishers name the records, somebody may have chosen names that crowd them: give "
        "filters a key, Delivery(filters=Filters(key=...)); else see that the directory of indexes "
        "has room, for a filter that is too full could not be made larger"
    )
