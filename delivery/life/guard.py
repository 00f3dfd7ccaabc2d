"""What keeps a stage from being started that rests, or that is declared as another one.

What it is: `refuse_at_rest`, asked once before lanes of a stage run, whichever engine runs them.
What it must not know: engines, how a stage came to rest.

Invariants:
    Nothing depends on it: each lane refuses by itself what is refused here. This says it of the
    stage, before a lane of it begins that was not there before.
"""

from __future__ import annotations

from collections.abc import Collection

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from delivery.operate.opening import database_of, name_of
from delivery.protocol.rest import Kind, rest_of

__all__ = ["refuse_at_rest"]

_OP = "start a stage"


def refuse_at_rest(catalog: Catalog, prefix: str, reads: Collection[str]) -> None:
    """Refuse a stage of which a lane rests, or whose lanes read another topic.

    Args:
        catalog: where its lanes are.
        prefix: "pipeline/stage/".
        reads: the topics it is declared to read.

    Raises:
        InvalidUsage: it may not be started so. Nothing was begun.
    """
    others: set[str] = set()
    for lane in catalog.lanes(prefix):
        row = catalog.load(lane)
        if row is None:
            continue
        topics = {topic for topic, _ in row.head.topics}
        rest = rest_of(row.head.state)
        if rest is None:
            partition_lane = name_of(lane).reads not in {"", "all"}
            if partition_lane and database_of(row.head) is None:
                others |= topics - set(reads)
        elif rest.kind is not Kind.REKEYED or not topics.isdisjoint(reads):
            raise InvalidUsage(_OP, lane, f"{rest.why()}; nothing was started")
    if others:
        raise InvalidUsage(
            _OP,
            prefix.rstrip("/"),
            f"its lanes read {', '.join(sorted(others))}, and it is declared to read "
            f"{', '.join(sorted(reads))}: what a stage reads is frozen with its first seal, and its "
            "ids are of there; nothing was started. If it is to deduplicate otherwise, say "
            "`delivery stage change-dedup`; if it is another stage now, give it another name",
        )
