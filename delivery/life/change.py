"""What is said of a change before it is made, and after: plain values for people and programs.

What it is: `Change` and `LaneChange`.
What it must not know: how anything is done.

Invariants:
    A dry run and the deed say the same, but for `done`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Change", "LaneChange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """One lane.

    Attributes:
        lane: its name.
        what: what becomes of it, in words.
        before, after: offsets at which it goes on, by topic and partition.
    """

    lane: str
    what: str
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a verb does to a stage.

    Attributes:
        verb: which.
        stage: "pipeline/stage".
        done: whether it was done.
        lanes: each lane that it concerns.
        means: what it means for the data, in sentences.
        depends: who else has to do with the stage.
        offsets: of a stage that is left: where a job of its own begins, by topic and partition.
    """

    verb: str
    stage: str
    done: bool
    lanes: tuple[LaneChange, ...] = ()
    means: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)
