"""Opening a catalog that is there, and choosing among its lanes.

What it is: `opened`, `chosen`, what a lane's name says of it, and what its head: where it is kept
(`database_of`), where it stands in its topics (`inputs_of`) and in Spark's batches (`next_batch_of`).
What it must not know: what is done with the lanes.

Invariants:
    Nothing is made: a mistyped URL, stage or lane is an error that names what there is.
    The state of a wrapped job, which stands in its frontier like a topic, is never taken for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from dedup.model import Frontier, Head, Source, TopicId
from delivery.protocol.rest import rest_of

__all__ = [
    "LaneName",
    "chosen",
    "database_id_of",
    "database_of",
    "inputs_of",
    "name_of",
    "next_batch_of",
    "opened",
    "present",
]

#: A message that names what there is names so many.
NAMED_MAX = 8
#: What is said of a catalog that is not there.
ABSENT = "there is no catalog"
#: What the state of a lane's row begins with if the lane is kept in a user's database; 16 bytes of
#: the database's identity and its path follow.
_IN_DATABASE = b"database\x01"
_IDENTITY_BYTES = 16


@dataclass(frozen=True, slots=True)
class LaneName:
    """A lane's name, taken apart."""

    lane: str
    pipeline: str
    stage: str
    #: What it reads, "topic-partition" for a partition lane.
    reads: str


@contextmanager
def opened(url: str) -> Iterator[Catalog]:
    """Open the catalog at `url`, which must be there, and close it behind the body.

    Raises:
        InvalidUsage: there is none; nothing was made.
        Unavailable: it cannot be reached now.
    """
    catalog = open_catalog(url, create=False)
    try:
        yield catalog
    finally:
        catalog.store.close()


def present(url: str, *, restoring: bool = False) -> Catalog | None:
    """Open the catalog at `url`; None if there is none, and nothing was made."""
    try:
        return open_catalog(url, create=False, restoring=restoring)
    except InvalidUsage as error:
        if ABSENT in error.hint:
            return None
        raise


def name_of(lane: str) -> LaneName:
    """Take a lane's name apart; one of another form is all pipeline."""
    pipeline, _, rest = lane.partition("/")
    stage, _, reads = rest.partition("/")
    return LaneName(lane, pipeline, stage, reads)


def chosen(catalog: Catalog, stage: str | None = None, lane: str | None = None) -> list[str]:
    """Return the lanes of a stage, or one of them; all lanes if nothing is named.

    Args:
        catalog: where they are.
        stage: "stage" or "pipeline/stage".
        lane: a whole name, or what its stage reads there: "topic-partition".

    Raises:
        InvalidUsage: there are none of these names.
    """
    there = [name_of(name) for name in catalog.lanes()]
    found = [one for one in there if stage is None or _is_of(one, stage)]
    if stage is not None and not found:
        stages = sorted({f"{one.pipeline}/{one.stage}" for one in there})
        raise _nothing(catalog, f"stage {stage}", stages)
    of_stage = found
    if lane is not None:
        found = [one for one in found if lane in (one.lane, one.reads)]
        if not found:
            raise _nothing(catalog, f"lane {lane}", [one.lane for one in of_stage])
    return [one.lane for one in found]


def database_of(head: Head) -> str | None:
    """Return where the lane is kept if that is a user's database; None: in the catalog."""
    if not head.state.startswith(_IN_DATABASE):
        return None
    return head.state[len(_IN_DATABASE) + _IDENTITY_BYTES :].decode(errors="replace")


def database_id_of(head: Head) -> bytes:
    """Return the identity of the user's database that keeps a lane, which moves and copies keep."""
    return head.state[len(_IN_DATABASE) : len(_IN_DATABASE) + _IDENTITY_BYTES]


def inputs_of(head: Head, frontier: Frontier | None = None) -> Frontier:
    """Return where a lane stands in its topics, or another frontier of it does.

    What is left out is no topic: in the lane of a wrapped job with state the next batch of Spark's
    checkpoint is a position too, and so is that of every checkpoint that was given up for another.
    """
    every = head.frontier if frontier is None else frontier
    if _state_of(head) is None:
        return every
    topics = {identity for _, identity in head.topics}
    return Frontier.of((source, offset) for source, offset in every if source.topic in topics)


def next_batch_of(head: Head) -> int | None:
    """Return the next batch of the checkpoint of a wrapped job with state; None: it has none."""
    state = _state_of(head)
    return None if state is None else head.frontier.at(Source(state, 0))


def _state_of(head: Head) -> TopicId | None:
    """Return what a wrapped job's state is called in its lane's frontier, at rest or not."""
    state = head.state
    while (rest := rest_of(state)) is not None:
        state = rest.state
    return TopicId(state) if len(state) == _IDENTITY_BYTES else None


def _is_of(name: LaneName, stage: str) -> bool:
    return stage in (name.stage, f"{name.pipeline}/{name.stage}")


def _nothing(catalog: Catalog, what: str, there: Sequence[str]) -> InvalidUsage:
    named = ", ".join(there[:NAMED_MAX]) + (" and more" if len(there) > NAMED_MAX else "")
    hint = f"name one of {named}" if there else "it holds no lanes yet: no stage ever ran on it"
    return InvalidUsage(
        "look for lanes",
        f"{what} in {catalog.store.url}",
        f"there is none; nothing was done; {hint}",
    )
