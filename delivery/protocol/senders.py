"""What a receiver may conclude from the mark a record carries and from its sender's row.

What it is: the verdict by sequence (external, internal, remnant, abandoned), and what a sealed
range proves to have been read.
What it must not know: ids and filters, clocks, how rows are read.

Invariants:
    The remnant test comes BEFORE any look-up of the id.
    A mark counts only from a lane that the catalog knows as a writer of this very topic; a copied
    header is an external record.
    A read seq is proven by the SEALED end of a range, never by what was merely polled, and is kept
    per (sender, incarnation, topic).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dedup.model import Incarnation, LaneRow, ReadSeq, Source, TopicId


@dataclass(frozen=True, slots=True)
class Mark:
    """What our header says of the record it rides on."""

    sender: str
    incarnation: Incarnation
    seq: int
    minted_at_ms: int
    #: The id is kept from further up (re-keying): its publisher may repeat it, so it is external.
    kept: bool = False


class Standing(Enum):
    """What a mark makes of a record."""

    #: Look the id up among the internal ones.
    INTERNAL = "internal"
    #: Look the id up among the external ones.
    EXTERNAL = "external"
    #: Everything of its seq has been read: provably a repeat.
    REMNANT = "remnant"
    #: Sealed in a history that was given up by a restore.
    ABANDONED = "abandoned"
    #: The sender's row is older than the record: read it again and ask again.
    REREAD = "reread"
    #: The catalog does not know the sender: stop and ask.
    STRANGER = "stranger"


def standing(
    mark: Mark,
    row: LaneRow | None,
    topic: TopicId,
    reads: Mapping[tuple[str, Incarnation, TopicId], int],
    *,
    fresh: bool,
) -> Standing:
    """Judge a record by its mark.

    Args:
        mark: what the record's header says.
        row: the sender's row as this receiver read it; None if the catalog has no such lane.
        topic: the topic the record was read from.
        reads: the read seqs of this lane's sealed head.
        fresh: whether `row` was read AFTER the record was.
    """
    if row is None:
        return Standing.STRANGER if fresh else Standing.REREAD
    if topic not in row.head.writes:
        return Standing.EXTERNAL if fresh else Standing.REREAD
    last = row.head.last_kept(mark.incarnation)
    if last is None or (mark.seq > last and mark.incarnation != row.head.ref.incarnation):
        return Standing.ABANDONED if fresh else Standing.REREAD
    if mark.seq > last:
        return Standing.EXTERNAL if fresh else Standing.REREAD
    if reads.get((mark.sender, mark.incarnation, topic), -1) >= mark.seq:
        return Standing.REMNANT
    return Standing.EXTERNAL if mark.kept else Standing.INTERNAL


def learned(sender: str, row: LaneRow, source: Source, end: int) -> list[ReadSeq]:
    """Return what sealing `source` up to `end` proves to have been read of a sender.

    Every record of a seq up to the acknowledged one has a copy below the delivered offset; a
    partition that is not mentioned never got one.
    """
    behind = row.ack.delivered.at(source) or 0
    if source.topic not in row.head.writes or end < behind:
        return []
    reads = [ReadSeq(sender, row.ack.incarnation, source.topic, row.ack.seq)]
    # The seqs go on counting: of an older incarnation everything up to the last kept is covered.
    reads += [
        ReadSeq(sender, kept.incarnation, source.topic, min(kept.seq, row.ack.seq))
        for kept in row.head.past
    ]
    return reads
