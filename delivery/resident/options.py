"""What a user may say about the resident engine, and what holds if nothing is said.

What it is: `Options`, the named bounds of driver-side waiting, and `refuse_unknown`, for either engine.
What it must not know: how any of it is used.

Invariants:
    Nothing waits without a bound that stands here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from dedup.errors import InvalidUsage

__all__ = ["Options", "refuse_unknown"]

#: How often topics are looked at for new partitions.
GROWTH_SECONDS = 5.0
#: How long slots have to stay different before lanes are shared out anew: an executor that died is
#: usually back after five seconds, and sharing out costs half a second of silence.
REBALANCE_SECONDS = 10.0
#: How long tasks may take to finish what is under way; then the job is cancelled.
DRAIN_SECONDS = 30.0
#: How long Spark may take to notice that all tasks have ended.
RETURN_SECONDS = 5.0
#: How long Spark may take to end a job that was cancelled.
CANCEL_SECONDS = 30.0
#: The pause before a job that failed is submitted again, doubled each time up to the longest.
RESUBMIT_SECONDS = 0.5
RESUBMIT_SECONDS_MAX = 30.0
#: Failures in a row after which it is given up, if no task was heard of in any: a closure that
#: cannot be unpickled and a package that is missing do not mend themselves.
SILENT_FAILURES_MAX = 3
#: How many progresses are kept, as Spark keeps of its own queries.
RECENT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the resident engine.

    Attributes:
        tasks: how many tasks share the lanes; None: one less than Spark has slots, at least one
            and at most one a lane, and shared out anew when executors join or leave for good.
        create_topics: whether output topics that are missing are created, each with as many
            partitions as its stage's input has.
        live: whether a line on standard error shows how it goes; None: if that is a terminal, and
            where it is none, a line says that it began and another that it ended.
        control_port: which port of the driver tasks call; 0: a free one.
        drain_seconds: how long `stop` lets tasks finish what is under way.
        name: of the query; by default the pipeline's.
    """

    tasks: int | None = None
    create_topics: bool = False
    live: bool | None = None
    control_port: int = 0
    drain_seconds: float = DRAIN_SECONDS
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.tasks is not None and self.tasks < 1:
            raise InvalidUsage(
                "start a pipeline",
                f"tasks={self.tasks}",
                "nothing was started: say at least 1, or leave it to the engine",
            )


def refuse_unknown(engine: str, said: Collection[str], known: Collection[str]) -> None:
    """Refuse options that an engine does not have."""
    for name in said:
        if name not in known:
            like = get_close_matches(name, known, n=1)
            meant = f"did you mean {like[0]}? " if like else ""
            raise InvalidUsage(
                "start a pipeline",
                f"option {name}",
                f"the {engine} engine has no such option; nothing was started: {meant}It takes "
                f"{', '.join(known)}",
            )
