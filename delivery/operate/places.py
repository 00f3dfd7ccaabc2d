"""One input offset of one lane: which seal read it, what became of it, what was made of it.

What it is: `place_of`, `verdict_of`, `outputs_of` and `attempts_at`, the look-ups that `lookup` and
`explain` share.
What it must not know: ids that publishers give, Kafka.

Invariants:
    A seal is found by halving what there is of the lane's history, never by reading all of it.
    What was collected is said to be collected, never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Verdict, decode_dropped
from dedup.model import Head, Seal, Source
from delivery.header import NAME, NO_PARENT, decode_headers
from delivery.lateness import JUDGING
from delivery.naming import NAMING
from delivery.operate.opening import database_of, name_of, next_batch_of
from delivery.outputs import decode_outputs
from delivery.recipe import recipe_in
from delivery.stage import ERROR
from delivery.timing import TIMING

__all__ = [
    "OUTPUTS_MAX",
    "Attempt",
    "Fate",
    "Made",
    "Place",
    "Together",
    "attempts_at",
    "error_of",
    "is_of_job",
    "is_remade",
    "outputs_of",
    "parent_of",
    "place_of",
    "readable",
    "together",
    "verdict_of",
]


class Fate(StrEnum):
    """What became of an offset in a lane."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    REMNANT = "remnant"
    ABANDONED = "abandoned"
    #: The lane has not sealed it yet.
    PENDING = "pending"
    #: It lies below the offset at which the lane began.
    BEFORE = "before the lane began"
    #: Its seal was collected: it was decided, and it is not known how any more.
    COLLECTED = "collected"
    #: A receiver keeps the lane in its user's database, which says what became of it.
    ELSEWHERE = "elsewhere"


_FATES = {
    Verdict.DUPLICATE: Fate.DUPLICATE,
    Verdict.REMNANT: Fate.REMNANT,
    Verdict.ABANDONED: Fate.ABANDONED,
}


#: Outputs without a parent that are told of one seal: those of a wrapped job are of a whole batch.
OUTPUTS_MAX = 100
#: What errors begin with for which a record is put aside before user code sees it.
_UNSEEN = tuple(f"{InvalidUsage.__name__}: {op}: " for op in (NAMING, TIMING, JUDGING))


@dataclass(frozen=True, slots=True)
class Place:
    """The seal that read an offset; none where the fate says why."""

    seal: Seal | None
    fate: Fate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One output: its id, where it goes, and its key in words; of a dead letter why it is one."""

    id: str
    edge: int
    topic: str
    partition: int
    key: str | None
    size: int
    error: str | None = None

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a position that left something behind.

    Attributes:
        attempt: in hex.
        won: whether it was sealed.
        digest: of what it had made, if it noted that when it lost.
        stored: kinds of chunks of it that are stored.
    """

    attempt: str
    won: bool
    digest: str | None
    stored: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A batch of a wrapped job, whose outputs are of all of its inputs together.

    Attributes:
        inputs: what it read, and `fresh`, what of that took effect.
        outputs: how many it made.
        state: whether the job keeps state: what it took in may come out of a later batch.
    """

    inputs: int
    fresh: int
    outputs: int
    state: bool

    def line(self, told: int) -> str:
        """Return it in words, in front of so many outputs that are told one by one."""
        later = "; what its state took in may come out of a later batch" if self.state else ""
        if not self.outputs:
            return f"its batch of {self.inputs} inputs made no outputs{later}"
        first = f"; the first {told} are told" if told < self.outputs else ""
        return (
            f"it is one of {self.inputs} inputs, {self.fresh} of them fresh, of a batch that made "
            f"{self.outputs} outputs; which of them come of which, only the job's plan knows{later}"
            f"{first}"
        )


def together(lane: str, head: Head, seal: Seal) -> Together | None:
    """Return what the batch was that a seal of a wrapped job is of; None: it is of no such job."""
    if not is_of_job(lane):
        return None
    return Together(
        inputs=seal.counts.read,
        fresh=seal.counts.fresh,
        outputs=seal.outputs.rows,
        state=next_batch_of(head) is not None,
    )


def parent_of(lane: str, source: Source, offset: int) -> tuple[int, int]:
    """Return what outputs of an input name as their parent: those of a wrapped job name none."""
    return NO_PARENT if is_of_job(lane) else (source.partition, offset)


def is_of_job(lane: str) -> bool:
    """Tell whether it is the one lane of a wrapped job."""
    return name_of(lane).reads == "all"


def place_of(catalog: Catalog, lane: str, head: Head, source: Source, offset: int) -> Place:
    """Return the seal whose range holds an offset.

    Of a lane that is kept in a user's database, a catalog without that database (see
    `delivery.operate.databases`) has nothing but its beginning.
    """
    if database_of(head) is not None:
        begun = catalog.seal(lane, head.incarnation_of(0), 0)
        before = begun is not None and offset < (begun.end.at(source) or 0)
        return Place(None, Fate.BEFORE if before else Fate.ELSEWHERE)
    end = head.frontier.at(source)
    if end is None or offset >= end:
        return Place(None, Fate.PENDING)
    low, high = 0, head.ref.seq
    while low < high:
        middle = (low + high) // 2
        seal = catalog.seal(lane, head.incarnation_of(middle), middle)
        # Entries go from the oldest on: behind one that is gone there may be one that is there.
        if seal is None or (seal.end.at(source) or 0) <= offset:
            low = middle + 1
        else:
            high = middle
    seal = catalog.seal(lane, head.incarnation_of(low), low)
    if seal is None:
        return Place(None, Fate.COLLECTED)
    start = seal.start.at(source)
    if start is not None and start <= offset < (seal.end.at(source) or 0):
        return Place(seal, None)
    begun = catalog.seal(lane, head.incarnation_of(0), 0)
    return Place(None, Fate.BEFORE if begun is not None else Fate.COLLECTED)


def verdict_of(catalog: Catalog, lane: str, seal: Seal, source: Source, offset: int) -> Fate:
    """Return what a seal made of an offset that it read.

    An offset that holds no record is said to be fresh: only the log knows it.
    """
    chunks = catalog.get(Blob.DROPPED, lane, seal)
    if chunks is None:
        return Fate.COLLECTED
    for chunk in chunks:
        for run in decode_dropped(chunk, f"dropped offsets of {lane} seq {seal.ref.seq}"):
            if run.source == source and run.offset <= offset < run.offset + run.count:
                return _FATES[run.verdict]
    return Fate.FRESH


def is_remade(catalog: Catalog, lane: str, seal: Seal) -> bool:
    """Tell whether a seal keeps a recipe in place of its outputs."""
    chunks = catalog.get(Blob.OUTPUTS, lane, seal)
    return recipe_in(chunks or [], f"outputs of {lane} seq {seal.ref.seq}") is not None


def outputs_of(
    catalog: Catalog,
    head: Head,
    seal: Seal,
    parent: tuple[int, int],
    *,
    lane: str,
    names: dict[bytes, str],
) -> tuple[Made, ...] | None:
    """Return what was made of one input; None if outputs of this seal are not stored (any more).

    Of those that have no parent only the first `OUTPUTS_MAX` are.

    Args:
        catalog: where they are stored.
        head: the lane's head, which says what it writes.
        seal: the seal that read the input.
        parent: partition and offset of the input, as `parent_of` says.
        lane: the lane.
        names: of topics, by their identities.
    """
    chunks = catalog.get(Blob.OUTPUTS, lane, seal)
    if chunks is None or is_remade(catalog, lane, seal):
        return None
    rows = decode_outputs(chunks, f"outputs of {lane} seq {seal.ref.seq}")
    columns = decode_headers([dict(headers).get(NAME) for headers in rows.headers])
    mine = np.flatnonzero((columns.partitions == parent[0]) & (columns.offsets == parent[1]))
    found = []
    most = OUTPUTS_MAX if parent == NO_PARENT else None
    for at in mine[:most].tolist():
        (one,) = rows.cut(at, at + 1)
        topic = head.writes[one.edge] if one.edge < len(head.writes) else b""
        found.append(
            Made(
                id=one.id.hex(),
                edge=one.edge,
                topic=names.get(topic, topic.hex()),
                partition=one.partition,
                key=readable(one.key),
                size=len(one.value or b""),
                error=error_of(head, seal, topic, rows.headers[at]),
            )
        )
    return tuple(found)


def error_of(
    head: Head, seal: Seal | None, topic: bytes, headers: Iterable[tuple[str, bytes]] | None
) -> str | None:
    """Return why an output is a dead letter, as its headers say; None if it is none.

    Args:
        head: of the lane that made it. Dead letters go to the last topic that it writes.
        seal: that it was made by; None: it was collected.
        topic: the topic it is in, or goes to.
        headers: its headers. Others than a dead letter's may have passed such a header on.
    """
    if topic != next(reversed(head.writes), None) or (seal and not seal.counts.dead_letter):
        return None
    said = [value.decode(errors="replace") for name, value in headers or () if name == ERROR]
    if not said:
        return None
    unseen = said[-1].startswith(_UNSEEN)
    return f"{'put aside before user code saw it' if unseen else 'user code failed'}: {said[-1]}"


def attempts_at(catalog: Catalog, lane: str, seal: Seal) -> tuple[Attempt, ...]:
    """Return every attempt at a seal's position that left something behind, the winner first."""
    at = seal.ref
    digests: dict[bytes, bytes] = {
        slot.attempt: digest
        for slot, digest in catalog.store.losers(lane)
        if (slot.seq, slot.incarnation) == (at.seq, at.incarnation)
    }
    stored: dict[bytes, list[str]] = {at.attempt: []}
    for attempt in digests:
        stored.setdefault(attempt, [])
    for kind in Blob:
        for slot in catalog.store.slots(kind, lane, last=at.seq):
            if (slot.seq, slot.incarnation) == (at.seq, at.incarnation):
                stored.setdefault(slot.attempt, []).append(kind.value)
    return tuple(
        Attempt(
            attempt=attempt.hex(),
            won=attempt == at.attempt,
            digest=digests[attempt].hex() if attempt in digests else None,
            stored=tuple(kinds),
        )
        for attempt, kinds in stored.items()
    )


def readable(data: bytes | None) -> str | None:
    """Return bytes as text where they are text, else in hex behind 0x."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"
