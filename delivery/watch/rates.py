"""What stages do from one look to the next: rates, and the shares of what was read.

What it is: `Rates`, which remembers the look before, and `StageRate`.
What it must not know: how it is shown, how often it is looked.

Invariants:
    A rate is a difference of two looks; the first has none, and says so.
    Each seal is read once, however long one looks.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from dedup.catalog.catalog import Catalog
from delivery.kafka.port import Client
from delivery.watch.guarantee import guarantee, settings_in
from delivery.watch.lag import Holdup, lag
from delivery.watch.rows import Rows, StageRows, read_rows
from delivery.watch.tally import VERDICTS, Tallies
from delivery.watch.waiting import Doors

__all__ = ["Rates", "Screen", "StageRate"]

#: Settings of topics change rarely, and each costs a question.
SETTINGS_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """One stage between two looks; what a first look cannot know is None.

    Attributes:
        pipeline, stage: its names.
        state: of its guarantee.
        behind, pending, late_ms, sealed_ms: as of `delivery.watch.lag.StageLag`.
        records_a_second, outputs_a_second, seals_a_second: what was sealed.
        repeats: the share of the records read that were dropped as repeats; None: none were read.
        dead_letters: records that became one, by the seals that could be read at any look.
    """

    pipeline: str
    stage: str
    state: str
    behind: int | None
    pending: int
    late_ms: int | None
    sealed_ms: int | None
    records_a_second: float | None
    outputs_a_second: float | None
    seals_a_second: float | None
    repeats: float | None
    dead_letters: int = 0

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One look: when, how long after the one before, and all stages in the order of the flow."""

    at_ms: int
    seconds: float | None
    stages: tuple[StageRate, ...]
    holdup: Holdup | None

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


class Rates:
    """Looks again and again.

    Args:
        catalog: it is only read.
        client: Kafka; None: what only Kafka knows is unknown.
    """

    def __init__(self, catalog: Catalog, client: Client | None) -> None:
        self._catalog = catalog
        self._client = client
        self._tallies = Tallies()
        self._before: tuple[float, dict[str, Counter[str]]] | None = None
        self._settings: tuple[float, dict[str, dict[str, str]]] | None = None

    def look(self, now_ms: int) -> Screen:
        """Look once.

        Raises:
            Unavailable: catalog or Kafka does not answer; it may be called again.
        """
        rows = read_rows(self._catalog)
        doors = Doors(self._client) if self._client is not None else None
        self._tallies.look(self._catalog, rows)
        now = time.monotonic()
        sums = {one.name: self._sum(rows, one.name) for one in rows.stages}
        letters = {one.name: self._letters(one) for one in rows.stages}
        before, self._before = self._before, (now, sums)
        seconds = None if before is None else max(now - before[0], 1e-3)
        late = lag(self._catalog, rows, doors, now_ms)
        judged = guarantee(rows, doors, self._tallies, self._settings_of(rows, doors))
        states = {one.name: one.state.value for one in judged.stages}
        found = []
        for one in late.stages:
            had = None if before is None else before[1].get(one.name, Counter())
            new = None if had is None else sums[one.name] - had
            read = 0 if new is None else sum(new[verdict] for verdict in VERDICTS)
            found.append(
                StageRate(
                    pipeline=one.pipeline,
                    stage=one.stage,
                    state=states[one.name],
                    behind=one.behind,
                    pending=one.pending,
                    late_ms=one.late_ms,
                    sealed_ms=one.sealed_ms,
                    records_a_second=_rate(read, seconds),
                    outputs_a_second=_rate(new["outputs"] if new else 0, seconds),
                    seals_a_second=_rate(new["seals"] if new else 0, seconds),
                    repeats=(read - new["fresh"]) / read if new and read else None,
                    dead_letters=letters[one.name],
                )
            )
        return Screen(at_ms=now_ms, seconds=seconds, stages=tuple(found), holdup=late.holdup)

    def _sum(self, rows: Rows, name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for stage in rows.stages:
            if stage.name == name:
                for lane in stage.lanes:
                    total.update(self._tallies.lanes[lane].counts)
        return total

    def _letters(self, stage: StageRows) -> int:
        tallies = [self._tallies.lanes[lane] for lane in stage.lanes]
        return sum(one.before["dead_letter"] + one.counts["dead_letter"] for one in tallies)

    def _settings_of(self, rows: Rows, doors: Doors | None) -> dict[str, dict[str, str]]:
        now = time.monotonic()
        if self._settings is None or now - self._settings[0] >= SETTINGS_SECONDS:
            self._settings = (now, settings_in(rows, doors))
        return self._settings[1]


def _rate(count: float, seconds: float | None) -> float | None:
    return None if seconds is None else count / seconds
