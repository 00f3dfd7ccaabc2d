"""The decided ids of lanes on this host: memory-mapped, shared by its processes, and only a cache."""

from dedup.local.home import Home
from dedup.local.index import LaneIndex
from dedup.local.stats import BucketStats, Stats

__all__ = ["BucketStats", "Home", "LaneIndex", "Stats"]
