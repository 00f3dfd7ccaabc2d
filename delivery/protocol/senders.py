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

from dedup.model import Frontier, Incarnation, LaneRow, ReadSeq, TopicId


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

    #: Ours, and named by the attempt that made it: look the id up among the internal ones.
    INTERNAL = "internal"
    #: Ours, but re-keyed: its id is its publisher's, who may repeat it in another lane.
    KEPT = "kept"
    #: Copied or forged: the header says nothing, its id included.
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
    found = _on_history(mark, row, topic)
    if found is None:
        if reads.get((mark.sender, mark.incarnation, topic), -1) >= mark.seq:
            return Standing.REMNANT
        return Standing.KEPT if mark.kept else Standing.INTERNAL
    return found if fresh else Standing.REREAD


def _on_history(mark: Mark, row: LaneRow | None, topic: TopicId) -> Standing | None:
    """Return None if the sender's history holds this very seq, else what the record is then."""
    if row is None:
        return Standing.STRANGER
    if topic not in row.head.writes:
        return Standing.EXTERNAL
    last = row.head.last_kept(mark.incarnation)
    if last is None:
        return Standing.ABANDONED
    if mark.seq > last:
        current = mark.incarnation == row.head.ref.incarnation
        return Standing.EXTERNAL if current else Standing.ABANDONED
    # Seqs go on counting through all incarnations, so each belongs to one of them.
    return None if row.head.incarnation_of(mark.seq) == mark.incarnation else Standing.EXTERNAL


def learned(sender: str, row: LaneRow, frontier: Frontier) -> list[ReadSeq]:
    """Return what sealing up to `frontier` proves to have been read of a sender.

    Every record of a seq up to the acknowledged one has a copy below the delivered offset; a
    partition that is not mentioned never got one. A read seq is kept per topic, so EVERY partition
    of it that the lane reads must be past its delivered offset.
    """
    reads = []
    for topic in sorted({source.topic for source, _ in frontier}.intersection(row.head.writes)):
        ours = [(source, offset) for source, offset in frontier if source.topic == topic]
        if all(offset >= (row.ack.delivered.at(source) or 0) for source, offset in ours):
            reads.append(ReadSeq(sender, row.ack.incarnation, topic, row.ack.seq))
            # Of an older incarnation everything up to the last kept is covered.
            reads += [
                ReadSeq(sender, kept.incarnation, topic, min(kept.seq, row.ack.seq))
                for kept in row.head.past
            ]
    return reads
