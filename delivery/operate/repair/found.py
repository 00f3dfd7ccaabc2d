"""What a look at the topics found of a lost catalog: lanes to be rebuilt, and what nobody can know.

What it is: frozen values, and their form as plain data.
What it must not know: how anything is found, or written.

Invariants:
    Every input below a lane's `end` is told: it has an output, runs again, or is taken for done;
    or it repeats one that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from dedup.formats.segment import Part
from dedup.model import LaneRow

__all__ = ["Lane", "Lost", "Terms", "stretches"]

#: Stretches of offsets that are named; the rest are counted.
STRETCHES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What only the operator knows.

    Attributes:
        late: stages that did not begin at the earliest record; their inputs before the first
            output are taken for done.
        skip: stages whose inputs without output are taken for done, instead of running again.
    """

    late: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane that can be rebuilt.

    Attributes:
        lane: its name.
        frontier: where it goes on.
        end: the offset behind the last input that has an output.
        outputs: how many inputs have one.
        ids: how many ids were recalled.
        again: how many inputs below `end` have no output and run, and the first stretches of them.
        taken: how many inputs without output are taken for done.
        behind: how many offsets of the input's log lie at or behind `end`.
        gone: how many inputs that have an output are in the log no more: their ids are not known.
        skipped: offsets that are gone from the log unread, as far as anybody can tell.
        abandoned: outputs of seqs that a restore gave up.
        last: how many inputs have an output of the last seal seen.
        unfinished: whether its head is there already, from a repair that was killed.
    """

    lane: str
    frontier: int
    end: int
    outputs: int
    ids: int
    again: int
    stretches: tuple[tuple[int, int], ...]
    taken: int
    behind: int
    gone: int
    skipped: int
    abandoned: int
    last: int
    unfinished: bool
    row: LaneRow = field(repr=False)
    segments: tuple[tuple[Part, ...], ...] = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        kept = {one.name: getattr(self, one.name) for one in fields(self)[:-2]}
        return kept | {"stretches": [list(one) for one in self.stretches]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What was found.

    Attributes:
        lanes: what can be rebuilt, senders before receivers.
        present: lanes that the catalog has.
        silent: lanes that left no output: they begin as if they never ran.
        unknown: stages, or lanes, of which topics say nothing, and why.
    """

    lanes: tuple[Lane, ...]
    present: tuple[str, ...]
    silent: tuple[str, ...]
    unknown: dict[str, str]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "lanes": [lane.document() for lane in self.lanes],
            "present": list(self.present),
            "silent": list(self.silent),
            "unknown": self.unknown,
        }


def stretches(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the first stretches of offsets that follow each other: first and last of each."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        elif len(found) == STRETCHES_MAX:
            break
        else:
            found.append((offset, offset))
    return tuple(found)
