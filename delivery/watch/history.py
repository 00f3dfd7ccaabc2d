"""What stages did over time, from the seals that can still be read.

What it is: `history`, one pass over the seals, and its values: sums by slice of time, classes of
bundles, delays.
What it must not know: how it is shown, Kafka, the clock.

Invariants:
    All stages share one axis of time, so that what happened at once stands one below the other.
    What was collected is not in it: `since_ms` says from when on anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup.catalog.catalog import Catalog
from dedup.model import Seal
from delivery.watch.rows import Rows, StageRows
from delivery.watch.tally import BUNDLE_BOUNDS, VERDICTS, Histogram, seals_of

__all__ = ["SLICES", "History", "StageHistory", "history"]

#: Slices of the axis of time: as many as a phone can show and a person can tell apart.
SLICES = 72
#: Seals of a lane that are read, the newest.
SEALS_MAX = 50_000

_Numbers = npt.NDArray[np.float64]
_COLUMNS = (*VERDICTS, "read", "conflict", "dead_letter", "outputs", "bytes", "seals")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHistory:
    """One stage.

    Attributes:
        pipeline, stage: its names.
        sums: per slice of time, by name: the verdicts, `read`, `conflict`, `dead_letter`,
            `outputs`, `bytes` (of outputs as stored) and `seals`.
        delay_ms: per slice: the median and the 99th percentile from the newest timestamp that a
            lane had sealed to its seal; not a number where there was none.
        bundles: records that each seal read.
        lanes: records read, by lane.
        losers: attempts that lost a race and left a digest, by lane.
    """

    pipeline: str
    stage: str
    sums: Mapping[str, _Numbers]
    delay_ms: tuple[_Numbers, _Numbers]
    bundles: Histogram
    lanes: Mapping[str, int]
    losers: Mapping[str, int]

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"

    def total(self, name: str) -> int:
        """Return the sum over all time."""
        return int(self.sums[name].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All stages on one axis: `since_ms` to `until_ms` in `SLICES` slices."""

    since_ms: int
    until_ms: int
    stages: tuple[StageHistory, ...]

    @property
    def slice_seconds(self) -> float:
        """How long a slice is."""
        return max(1, self.until_ms - self.since_ms) / SLICES / 1000


@dataclass(slots=True)
class _Read:
    """The seals of one stage as columns."""

    rows: list[tuple[float, ...]] = field(default_factory=list)
    lanes: dict[str, int] = field(default_factory=dict)

    def add(self, lane: str, seal: Seal) -> None:
        counts = seal.counts
        # A lane that has seen no timestamp has no delay.
        delay = seal.minted_at_ms - seal.lane_time_ms if seal.lane_time_ms else np.nan
        self.rows.append(
            (
                seal.minted_at_ms,
                max(0.0, delay) if counts.read else np.nan,
                *(getattr(counts, name) for name in VERDICTS),
                counts.read,
                counts.conflict,
                counts.dead_letter,
                seal.outputs.rows,
                seal.outputs.size,
                1,
            )
        )
        self.lanes[lane] = self.lanes.get(lane, 0) + counts.read


def history(
    catalog: Catalog,
    rows: Rows,
    *,
    since_ms: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> History:
    """Read the seals of all lanes.

    Args:
        catalog: where they are.
        rows: of the lanes.
        since_ms: older ones are left out.
        report: is told how far it is.
    """
    found: list[tuple[StageRows, _Read]] = []
    for stage in rows.stages:
        read = _Read()
        for lane, row in stage.lanes.items():
            first = max(1, row.head.ref.seq - SEALS_MAX + 1)
            for seal in seals_of(catalog, lane, row, first):
                if seal.minted_at_ms >= since_ms:
                    read.add(lane, seal)
            report(f"{len(read.rows)} seals of {stage.name} read")
        found.append((stage, read))
    times = [row[0] for _, read in found for row in read.rows]
    begin, end = (min(times), max(times)) if times else (0, 0)
    return History(
        since_ms=int(begin),
        until_ms=int(end),
        stages=tuple(_stage(catalog, stage, read, begin, end) for stage, read in found),
    )


def _stage(
    catalog: Catalog, stage: StageRows, read: _Read, begin: float, end: float
) -> StageHistory:
    table = np.array(read.rows, dtype=np.float64).reshape(-1, 2 + len(_COLUMNS))
    width = max(1.0, end - begin) / SLICES
    at = np.minimum(((table[:, 0] - begin) / width).astype(int), SLICES - 1)
    sums = {
        name: np.bincount(at, weights=table[:, 2 + number], minlength=SLICES).astype(np.float64)
        for number, name in enumerate(_COLUMNS)
    }
    middle, late = np.full(SLICES, np.nan), np.full(SLICES, np.nan)
    for one in range(SLICES):
        delays = table[at == one, 1]
        delays = delays[~np.isnan(delays)]
        if len(delays):
            middle[one], late[one] = np.percentile(delays, (50, 99))
    bundles = Histogram(BUNDLE_BOUNDS)
    for size in table[:, 2 + _COLUMNS.index("read")]:
        if size:
            bundles.add(size)
    return StageHistory(
        pipeline=stage.pipeline,
        stage=stage.stage,
        sums=sums,
        delay_ms=(middle, late),
        bundles=bundles,
        lanes={lane: read.lanes.get(lane, 0) for lane in stage.lanes},
        losers={lane: sum(1 for _ in catalog.store.losers(lane)) for lane in stage.lanes},
    )
