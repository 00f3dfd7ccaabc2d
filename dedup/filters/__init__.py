"""Bloom filters over a lane's ids: hints that spare exact look-ups, never the truth."""

from dedup.filters.choice import Filters
from dedup.filters.files import (
    ENGINE_DEFAULT,
    ENGINES,
    RATE_DEFAULT,
    create_filter,
    new_filter,
    open_filter,
)
from dedup.filters.port import KEY_BYTES, Filter
from dedup.filters.sizing import bits_per_id, grown, saturated

__all__ = [
    "ENGINES",
    "ENGINE_DEFAULT",
    "KEY_BYTES",
    "RATE_DEFAULT",
    "Filter",
    "Filters",
    "bits_per_id",
    "create_filter",
    "grown",
    "new_filter",
    "open_filter",
    "saturated",
]
