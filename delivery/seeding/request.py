"""What a stage is to be seeded with, as its caller says it.

What it is: `Request`, checked where it is made.
What it must not know: topics as they are, lanes, how anything is read.

Invariants:
    Two requests that say the same have the same mark, in whatever process: lanes that one of them
    began are finished by the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import xxhash

from dedup.errors import InvalidUsage
from delivery.naming import IdFrom
from delivery.seeding.checkpoint import Uncommitted

__all__ = ["Request", "Start", "mark_of"]

#: Where a stage is to begin: a word, offsets by partition, or None: what the stage says itself.
Start = Literal["earliest", "latest"] | Mapping[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What a stage is to be seeded with.

    Attributes:
        topic: records of it name the ids.
        offsets: by partition the first offset and the one behind the last; None: all of it.
        data: a column of it holds the names; see `delivery.seeding.names.of_column`.
        column: which; None: there is only one.
        named: how the topic's records name themselves; None: as those of the stage's input.
        start: where the stage begins.
        checkpoint: of a Spark query that did the work until now: the stage begins where it stands.
        uncommitted: what becomes of a batch that query planned and did not commit.
    """

    topic: str | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    data: Any = None
    column: str | None = None
    named: str | IdFrom | None = None
    start: Start = None
    checkpoint: str | None = None
    uncommitted: Uncommitted = "refuse"

    def __post_init__(self) -> None:
        """Refuse what says too much or too little."""
        if (self.topic is None) == (self.data is None):
            raise _unusable("say either topic=... or parquet=...")
        if self.start is not None and self.checkpoint is not None:
            raise _unusable("say either start=... or checkpoint=...")
        if self.topic is None and self.offsets is not None:
            raise _unusable("offsets=... are of a topic; a column is read whole")
        if self.topic is None and self.named is not None:
            raise _unusable("id_from=... is of a topic; say column=... of the data")

    @property
    def says_start(self) -> bool:
        """Whether it says where the stage begins."""
        return self.start is not None or self.checkpoint is not None

    def mark(self, stage: str) -> str:
        """Return what the first seal of a lane says that this request begins."""
        data = str(self.data) if isinstance(self.data, str) else type(self.data).__name__
        named = getattr(self.named, "__qualname__", self.named)
        where = (self.start, self.checkpoint, self.uncommitted)
        return mark_of("seed", stage, self.topic, self.offsets, data, self.column, named, *where)


def mark_of(*words: object) -> str:
    """Return a short name of what was asked for."""
    return f"{words[0]}-{xxhash.xxh3_64_hexdigest(repr(words).encode())}"


def _unusable(hint: str) -> InvalidUsage:
    return InvalidUsage("seed a stage", "what it is called with", f"nothing was read: {hint}")
