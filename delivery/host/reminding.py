"""What the log says where a publisher's repeats may count twice, though nothing is wrong with a stage.

What it is: `remind`, of stages whose records nobody names; `remind_of_lanes`, of what changed since a
stage's lanes were sealed last: how records are named, partitions; `warn_grown`, of partitions that
appear meanwhile; `warn_unnamed`, of records without the name they should have.
What it must not know: who runs the lanes, what is refused.

Invariants:
    Nothing depends on it, and nothing is written.
    What all lanes of a stage would say is said by one of them, and not again for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from dedup.catalog.catalog import Catalog
from dedup.model import Counts, Head
from delivery.host.spec import StageSpec
from delivery.naming import BY_PLACE, EACH_TOPICS, KEYS_MOVED, PLACE, said_of

__all__ = ["remind", "remind_of_lanes", "warn_grown", "warn_unnamed"]

LOG = logging.getLogger(__name__)
#: How long a process says nothing more of a stage's missing names.
QUIET_SECONDS = 3600.0
_HOUR_MS = 60 * 60 * 1000
#: When that was said last, by pipeline, stage and naming.
_told: dict[tuple[str, str, str], float] = {}


def remind(stages: Sequence[StageSpec], topics: Sequence[str] = ()) -> None:
    """Say once of each stage at its start what nobody would see until it is too late.

    Args:
        stages: the stages.
        topics: what they read, where they do not say it themselves.
    """
    made = {name for spec in stages for name in spec.writes}
    for spec in stages:
        reads = [name for name in topics or (spec.reads,) if name not in made]
        if spec.named is None and reads:
            LOG.warning(
                "stage %s reads %s: where no stage of this catalog made them, %s",
                spec.name,
                ", ".join(reads),
                BY_PLACE,
            )


def remind_of_lanes(catalog: Catalog, spec: StageSpec, lanes: Mapping[str, int | None]) -> None:
    """Say once of a stage at its start what changed since its lanes were sealed.

    Args:
        catalog: where they are.
        spec: the stage.
        lanes: the partition that each reads; None: all of them.
    """
    rows = {lane: catalog.load(lane) for lane in lanes}
    heads = {lane: row.head for lane, row in rows.items() if row is not None}
    _remind_of_names(spec, heads)
    if any(head.ref.seq for head in heads.values()):
        had = [at for lane in heads if (at := lanes[lane]) is not None]
        warn_grown(spec, had, [at for at in lanes.values() if at is not None])


def warn_grown(spec: StageSpec, had: Collection[int], now: Iterable[int]) -> set[int]:
    """Warn of partitions that appeared behind those that a stage has; return all there are."""
    there = {*had, *now}
    new = sorted(at for at in there if at > max(had, default=-1))
    # What is told from its place alone, or wherever it lies, loses nothing by it.
    if had and new and spec.named is not None and not (spec.by_id or spec.rekeyed):
        LOG.warning(
            "stage %s reads %s: %s. `delivery guarantee` says until when; deduplicate the whole topic "
            'before it grows again (dedup="topic")',
            spec.name,
            spec.reads,
            KEYS_MOVED.format(", ".join(map(str, new))),
        )
    return there


def warn_unnamed(spec: StageSpec, lane: str, counts: Counts) -> None:
    """Warn of a bundle of which no record has the name that the stage was told of."""
    if not counts.unnamed or counts.unnamed < counts.read:
        return
    key, now = (spec.pipeline, spec.name, said_of(spec.named)), time.monotonic()
    if key in _told and now - _told[key] < QUIET_SECONDS:
        return
    _told[key] = now
    LOG.warning(
        "stage %s: none of %d records has the name that id_from=%r says (lane %s; others are not named "
        "here), so their places name them: one that its publisher sends twice takes effect twice. "
        "Nothing is lost. See whether it is spelt as the publisher does, stop the stage and mend it; "
        "give a function that returns None if it is meant",
        spec.name,
        counts.read,
        spec.named,
        lane,
    )


def _remind_of_names(spec: StageSpec, heads: Mapping[str, Head]) -> None:
    now = said_of(spec.named)
    # Where places named the records, every repeat counted before as well.
    had = {lane: head.named.removeprefix(EACH_TOPICS) for lane, head in heads.items()}
    other = {lane: heads[lane] for lane, said in had.items() if said not in ("", PLACE, now)}
    if not other:
        return
    lane, head = next(iter(other.items()))
    LOG.warning(
        "stage %s names its records by %s now, and %d of its lanes were sealed with names by %s (%s, up "
        "to seq %d): what publishers sent before and repeat now takes effect a second time, until a "
        "window of %g h of what they publish has passed. If that is not meant, stop the stage and put "
        "id_from= back; if it is, change it when publishers have nothing more to repeat",
        spec.name,
        now,
        len(other),
        had[lane],
        lane,
        head.ref.seq,
        spec.window_ms / _HOUR_MS,
    )
