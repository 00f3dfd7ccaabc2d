"""How the filters of this host's directory are: full, crowded, or fine; and how they did.

What it is: `filters`, which reads the files that lanes keep in a home.
What it must not know: how they are shown.

Invariants:
    Files are only read; no lock is taken, so nobody who works with them waits.
    What is of another boot, torn or gone is not there: lanes make it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.filters.files import open_filter
from dedup.filters.sizing import saturated
from dedup.formats.segment import Bucket
from dedup.local.home import Home
from dedup.local.stats import Asked

__all__ = ["Health", "LaneFilters", "filters"]

#: What each filter of a lane says of the lane.
_OF_LANE = ("lane", "target")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFilters:
    """The filters of one lane: how they were made, how they did, and each of them.

    Attributes:
        lane: its name.
        engine, target, keyed: how they were made.
        asked: how they did since they are made so, by all processes of this host, as far as these
            have published files.
        each: those that can be opened.
    """

    lane: str
    engine: str
    target: float
    keyed: bool
    asked: Asked
    each: tuple[Health, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data, without the lane."""
        return {
            "engine": self.engine,
            "target": self.target,
            "keyed": self.keyed,
            **asdict(self.asked),
            "avoided": self.asked.avoided,
            "measured": self.asked.rate,
            "each": [
                {name: value for name, value in asdict(one).items() if name not in _OF_LANE}
                for one in self.each
            ],
        }


def filters(catalog: Catalog, lanes: Iterable[str], home: Path) -> Iterator[LaneFilters]:
    """Yield the filters that lanes keep below a home, for each lane that keeps any."""
    for lane in lanes:
        place = Home(home).place(catalog.store.url, lane)
        manifest = place.read()
        if manifest is None:
            continue
        engine, target, key = manifest.filters.split(" ")
        yield LaneFilters(
            lane=lane,
            engine=engine,
            target=float(target),
            keyed=bool(key),
            asked=manifest.asked,
            each=tuple(
                found
                for group in manifest.groups
                if (found := _health(place.path / group.filter, lane, group.bucket, engine))
            ),
        )


def _health(path: Path, lane: str, bucket: Bucket, engine: str) -> Health | None:
    try:
        found = open_filter(path, lane=lane, bucket=bucket, engine=engine)
    except InvalidUsage:
        # Of an engine that is not installed where we look.
        return None
    if found is None:
        return None
    with closing(found):
        return Health(
            lane=lane,
            origin=bucket.origin.name.lower(),
            ids=found.count,
            size=found.nbytes,
            fill=found.fill(),
            rate=found.rate(),
            target=found.target_rate,
            saturated=saturated(found),
        )
