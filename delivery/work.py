"""What a lane runner holds between two instructions: rows, and the data of bundles under way.

What it is: two mutable values; everything else about a lane is the core's, and frozen. A bundle's
rows are replaced, never changed, once user code has run.
What it must not know: what happens next.

Invariants:
    A copy shares nothing that changes.
    Rows are kept until the core releases them; verdicts and outputs until their bundle is
    discarded or delivered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dedup.formats.segment import Part
from dedup.frozen import replace
from dedup.model import Attempt, Seal
from delivery.batch import Batch, Rows
from delivery.outputs import Origin
from delivery.protocol import messages as m
from delivery.protocol.state import Lane
from delivery.verdicts import Verdicts


@dataclass(slots=True, kw_only=True)
class Work:
    """The data of one bundle under way, by its ticket."""

    attempt: Attempt
    verdicts: Verdicts
    rows: Rows = field(default_factory=Rows)
    #: Where it stands, once it is being stored.
    origin: Origin | None = None
    #: What is appended, and the ids it decides, once it is stored.
    seal: Seal | None = None
    parts: tuple[Part, ...] = ()
    dead_letters: int = 0
    delivered: bool = False


@dataclass(slots=True, kw_only=True)
class State:
    """All that changes in a runner; `copy` makes a snapshot, as the explorer does at every step."""

    lane: Lane
    todo: deque[m.Instruction] = field(default_factory=deque)
    rows: tuple[Batch, ...] = ()
    work: dict[int, Work] = field(default_factory=dict)
    #: Tickets up to here were discarded or belong to a lane that stopped.
    dead: int = -1
    stopped: m.Stop | None = None
    error: BaseException | None = None

    def copy(self) -> State:
        """Return a snapshot that shares nothing that changes."""
        work = {ticket: replace(held) for ticket, held in self.work.items()}
        return replace(self, todo=deque(self.todo), work=work)
