"""What an index says about itself: counters and sizes, for operators and for benchmarks.

What it is: plain values.
What it must not know: how anything is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

from dedup.formats.segment import Bucket


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
        full = [bucket.bucket for bucket in self.buckets if bucket.saturated]
        if not full:
            return ""
        return (
            f"{len(full)} filters are saturated: verdicts stay right, each costs a look-up. If ids "
            "are named by strangers, somebody may have chosen them: give filters a key, "
            "Filters(key=...)"
        )
