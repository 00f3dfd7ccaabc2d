"""Where a wrapped source begins, and where a bounded one ends, by topic and partition.

What it is: `starts`, `ends` and `taken_over`.
What it must not know: Spark's plans, how a range is read.

Invariants:
    Reading begins at the stage's frontier; where there is none, where the reader was told to begin.
    A range ends at what is committed there now, or before it; never before it begins.
    What is not said plainly is refused, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from delivery.kafka.port import Bounds, Client, Topic
from delivery.microbatch.offsets import Offsets
from delivery.seeding.checkpoint import Uncommitted, positions

if TYPE_CHECKING:
    from delivery.wrap.source import Wrapped

__all__ = ["ends", "starts", "taken_over"]

#: As Spark has it in JSON.
_EARLIEST, _LATEST = -2, -1


def starts(wrapped: Wrapped, client: Client, topics: Sequence[Topic], begins: str) -> Offsets:
    """Return where reading begins: at the frontier, or where the reader was told to."""
    catalog = open_catalog(wrapped.plan.catalog)
    with closing(catalog.store) as store:
        row = catalog.load(wrapped.lane)
        others = [
            lane
            for lane in store.lanes()
            if lane.startswith(wrapped.spec.prefix) and lane != wrapped.lane
        ]
    if others:
        raise InvalidUsage(
            "wrap a source",
            f"stage {wrapped.spec.name}",
            f"it has lanes of another kind ({others[0]}), which are frozen with their first seal; "
            "nothing was read: give the job another stage name",
        )
    wrapped.begun = row is not None
    start: Offsets = {}
    for topic in topics:
        bounds = client.bounds(topic.name, topic.sources)
        told = _told(topic, bounds, begins)
        start[topic.name] = {
            source.partition: (
                told[source.partition]
                if row is None
                # A partition that appeared since begins at its first offset, whatever was said.
                else row.head.frontier.at(source) or bounds.low.at(source) or 0
            )
            for source in topic.sources
        }
    return start


def _told(topic: Topic, bounds: Bounds, begins: str) -> dict[int, int]:
    """Return what Spark's option startingOffsets means, by partition."""
    low = {source.partition: bounds.low.at(source) or 0 for source in topic.sources}
    high = {source.partition: bounds.high.at(source) or 0 for source in topic.sources}
    if begins in {"earliest", "latest"}:
        return low if begins == "earliest" else high
    try:
        said: Mapping[str, int] = json.loads(begins).get(topic.name, {})
        found = {int(partition): int(offset) for partition, offset in said.items()}
    except (ValueError, AttributeError) as error:
        raise InvalidUsage(
            "wrap a source",
            f"startingOffsets {begins[:200]}",
            f"it cannot be read ({error}); nothing was read: mend it",
        ) from error
    words = {_EARLIEST: low, _LATEST: high}
    return low | {p: words[o][p] if o in words else o for p, o in found.items() if p in low}


def ends(client: Client, topics: Sequence[Topic], said: str | None, start: Offsets) -> Offsets:
    """Return where a bounded source ends: Spark's option endingOffsets, as offsets.

    Raises:
        InvalidUsage: it cannot be read, or names what is not there.
    """
    found: Offsets = {}
    for topic in topics:
        high = client.bounds(topic.name, topic.sources).high
        latest = {source.partition: high.at(source) or 0 for source in topic.sources}
        told = latest if said in {None, "latest"} else _ending(topic, latest, str(said))
        begun = start[topic.name]
        # What is before the frontier is sealed: of that partition nothing is read.
        found[topic.name] = {p: max(begun[p], offset) for p, offset in told.items()}
    return found


def _ending(topic: Topic, latest: Mapping[int, int], said: str) -> dict[int, int]:
    """Return what endingOffsets means where it names partitions."""
    try:
        given = {int(p): int(offset) for p, offset in json.loads(said)[topic.name].items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise _unclear(said, f"it says nothing of topic {topic.name} ({error!r})") from error
    if set(given) != set(latest):
        raise _unclear(said, f"topic {topic.name} has the partitions {sorted(latest)}")
    for partition, offset in given.items():
        if offset > latest[partition] or offset < _LATEST:
            raise _unclear(
                said,
                f"partition {partition} of topic {topic.name} ends at {latest[partition]}, as far as "
                "it is committed",
            )
    return {p: latest[p] if offset == _LATEST else offset for p, offset in given.items()}


def _unclear(said: str, why: str) -> InvalidUsage:
    return InvalidUsage(
        "wrap a source",
        f"endingOffsets {said[:200]}",
        f"{why}; nothing was read: name every partition of the topic once, with an offset that is there "
        "or -1 for the latest, or leave the option out",
    )


def taken_over(checkpoint: str, uncommitted: Uncommitted, start: Offsets) -> Offsets:
    """Return where an old job stood in these topics."""
    found = positions(checkpoint, uncommitted)
    missing = [name for name in start if name not in found]
    if missing:
        raise InvalidUsage(
            "take over from a checkpoint",
            checkpoint,
            f"it says nothing of topic {', '.join(missing)}; nothing was read: give the checkpoint of "
            "the job that read them",
        )
    return {name: start[name] | dict(found[name].offsets) for name in start}
