"""How the filters of this host's directory are: full, crowded, or fine.

What it is: `filters`, which reads the files that lanes keep in a home.
What it must not know: how they are shown.

Invariants:
    Files are only read; no lock is taken, so nobody who works with them waits.
    What is of another boot, torn or gone is not there: lanes make it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dedup.catalog.catalog import Catalog
from dedup.filters.files import open_filter
from dedup.filters.sizing import saturated
from dedup.local.home import Home

__all__ = ["Health", "filters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One filter: its ids, how full its bits are, and the share of false hits to be expected."""

    lane: str
    origin: str
    ids: int
    size: int
    fill: float
    rate: float
    target: float
    saturated: bool


def filters(catalog: Catalog, lanes: Iterable[str], home: Path) -> Iterator[Health]:
    """Yield the filters that lanes keep below a home."""
    for lane in lanes:
        place = Home(home).place(catalog.store.url, lane)
        manifest = place.read()
        if manifest is None:
            continue
        engine = manifest.filters.partition(" ")[0]
        for group in manifest.groups:
            found = open_filter(
                place.path / group.filter, lane=lane, bucket=group.bucket, engine=engine
            )
            if found is None:
                continue
            try:
                yield Health(
                    lane=lane,
                    origin=group.bucket.origin.name.lower(),
                    ids=found.count,
                    size=found.nbytes,
                    fill=found.fill(),
                    rate=found.rate(),
                    target=found.target_rate,
                    saturated=saturated(found),
                )
            finally:
                found.close()
