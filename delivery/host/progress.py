"""How a process's lanes stand, as values that travel: to the driver, to a terminal, to a listener.

What it is: `LaneProgress` and `Progress`, and their plain form.
What it must not know: who looks.

Invariants:
    A lag that is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delivery.host.lane import LaneTask


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneProgress:
    """One lane: its last seal's seq, its frontier, the end of its log, what it has done."""

    lane: str
    stage: str
    seq: int
    frontier: int
    end: int | None
    counters: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(lane: LaneTask, end: int | None) -> LaneProgress:
        """Return how a lane stands, whose log ends there as far as anybody knows."""
        return LaneProgress(
            lane=lane.name,
            stage=lane.spec.name,
            seq=lane.seq,
            frontier=lane.frontier,
            end=end,
            counters=lane.counters.document(),
        )

    @property
    def words(self) -> str:
        """How it stands, in a line of a log."""
        return f"{self.lane} seq {self.seq} at {self.frontier}, lag {self.lag}"

    @property
    def lag(self) -> int | None:
        """Offsets that no seal covers yet."""
        return None if self.end is None else max(0, self.end - self.frontier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All lanes of a process, and what they and those before them have done."""

    lanes: tuple[LaneProgress, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"lanes": [asdict(lane) for lane in self.lanes], "counters": dict(self.counters)}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Progress:
        """Return what `document` was made from."""
        return Progress(
            lanes=tuple(LaneProgress(**lane) for lane in document["lanes"]),
            counters=dict(document["counters"]),
        )
