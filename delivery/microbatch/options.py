"""What a user may say about the micro-batch engine, and the bounds of its waiting.

What it is: `Options`.
What it must not know: how any of it is used.

Invariants:
    Nothing waits without a bound that stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dedup.errors import InvalidUsage
from delivery.microbatch.source import LOOSE, SAID, refuse_ours

__all__ = ["Options"]

#: How long `stop` lets the batch that is under way come to its end; then Spark cancels it.
DRAIN_SECONDS = 60.0
#: How often somebody who waits for a query of Spark's looks whether it was told to stop.
LOOK_SECONDS = 1
#: The pause before a query that failed begins again, doubled each time up to the longest.
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 10.0
#: Failures without a batch in between that nobody can explain; then it is given up.
FAILURES_MAX = 5
#: How many progresses are kept, as Spark keeps of its own queries.
RECENT_MAX = 100

_TRIGGERS = ("availableNow", "processingTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the micro-batch engine.

    Attributes:
        checkpoint: directory under which Spark keeps its memory of each run; it is scratch, made
            anew at each start and deleted at its end. None: a temporary one of the driver's.
        trigger: as PySpark's `trigger(...)`: {"processingTime": "5 seconds"} or
            {"availableNow": True}; None: the next batch as soon as the last is done.
        source: further options of Spark's Kafka source, such as maxOffsetsPerTrigger.
        create_topics: whether output topics that are missing are created, each with as many
            partitions as its stage's input has.
        live: whether to show a line with the progress; None: if standard error is a terminal, and
            where it is none, a line says that it began and another that it ended.
        drain_seconds: how long `stop` lets the batch that is under way come to its end.
        name: of the query; by default the pipeline's.
    """

    checkpoint: str | None = None
    trigger: Mapping[str, Any] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    create_topics: bool = False
    live: bool | None = None
    drain_seconds: float = DRAIN_SECONDS
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        refuse_ours(self.source, *SAID, *LOOSE)
        if self.trigger is not None and (
            len(self.trigger) != 1 or next(iter(self.trigger)) not in _TRIGGERS
        ):
            raise InvalidUsage(
                "start a pipeline",
                f"trigger={dict(self.trigger)!r}",
                'nothing was started: say {"processingTime": "5 seconds"}, {"availableNow": True}, '
                "or nothing",
            )

    @property
    def bounded(self) -> bool:
        """Whether it ends once what was there is done."""
        return bool(self.trigger and self.trigger.get("availableNow"))
