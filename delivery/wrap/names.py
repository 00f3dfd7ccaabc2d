"""How records of a wrapped job are named: as their publishers do, topic by topic.

What it is: `per_topic`.
What it must not know: verdicts, lanes.

Invariants:
    One lane reads several topics, and a name is one within its topic: the order 7 is not the
    customer 7.
    A record without a name is named by its place, which is of its topic anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from delivery.batch import Batch
from delivery.naming import Foreign, IdFrom, names_of
from delivery.records import Record

__all__ = ["per_topic"]


def per_topic(way: IdFrom) -> IdFrom:
    """Return the way of naming that tells topics apart; ids of other catalogs are told apart."""
    return way if isinstance(way, Foreign) else _PerTopic(way)


class _PerTopic:
    """A name with the identity of its topic in front."""

    def __init__(self, way: IdFrom) -> None:
        self.way = way

    def __call__(self, record: Record) -> bytes | None:
        name = self.way(record)
        return None if name is None else record.source.topic + name

    def column(self, batch: Batch, rows: npt.NDArray[np.intp]) -> Sequence[bytes | None]:
        topic = batch.source.topic
        return [None if name is None else topic + name for name in names_of(self.way, batch, rows)]
