"""What a receiver may conclude from the mark a record carries and from its sender's row.

What it is: the verdict by sequence (external, internal, remnant, abandoned), what a sealed range
proves to have been read, and how far in time a re-keyed topic is known to have come.
What it must not know: ids and filters, clocks, how rows are read.

Invariants:
    The remnant test comes BEFORE any look-up of the id.
    A mark counts only from a lane that the catalog knows as a writer of this very topic; a copied
    header is an external record.
    A read seq is proven by the SEALED end of a range, never by what was merely polled, and is kept
    per (sender, incarnation, topic).
    Behind re-keying, lane time is the least over the lanes that re-key, each as far as all it sent
    is read: a publisher's retry may wait in any of them. What nothing is known of holds it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from dedup.model import Frontier, Incarnation, LaneRow, ReadSeq, Source, TopicId
from delivery.protocol.rest import Kind, rest_of


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
        if _past(row.ack.delivered, ours):
            reads.append(ReadSeq(sender, row.ack.incarnation, topic, row.ack.seq))
            # Of an older incarnation everything up to the last kept is covered.
            reads += [
                ReadSeq(sender, kept.incarnation, topic, min(kept.seq, row.ack.seq))
                for kept in row.head.past
            ]
    return reads


def _past(delivered: Frontier, read: Iterable[tuple[Source, int]]) -> bool:
    """Tell whether every partition that is read is past what was delivered to it."""
    return all(offset >= (delivered.at(source) or 0) for source, offset in read)


# Time behind re-keying ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Milestone:
    """Once all that a sender had delivered is read, what still comes of it is no older than this."""

    incarnation: Incarnation
    delivered: Frontier
    time_ms: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far in time the senders of a re-keyed topic have come, as far as it can be proven.

    A value: it holds for whatever frontier it is asked about, sealed or given up since.
    """

    #: Of each sender the last milestone that was passed, and one that is awaited.
    milestones: tuple[tuple[str, tuple[Milestone, ...]], ...] = ()
    #: Whether every partition that is re-keyed has a lane among them, or nothing to be read.
    whole: bool = False

    def awaits(self, sender: str, frontier: Frontier) -> bool:
        """Tell whether there is a milestone of a sender still to be passed: no need of another."""
        known = dict(self.milestones).get(sender, ())
        return any(not _past(one.delivered, frontier) for one in known)

    def looked(
        self,
        rows: Mapping[str, LaneRow],
        delivered_ms: Mapping[str, int],
        low: Frontier,
        high: Frontier,
        frontier: Frontier,
    ) -> Horizon:
        """Return what is known after a look at all senders.

        SUBTLE: the logs are looked at AFTER the rows. What of a log was not read by its lane, which
        had come to its end, was written after every seal that was seen here, and so no lane time of
        these rows is later than it. With the logs first, a process could stop between the two for
        a weekend, and take another lane's progress since for that of the one that stood still.

        Args:
            rows: of every sender.
            delivered_ms: lane time of the seal that each has acknowledged, where it is known.
            low: where the logs begin that they read.
            high: where those end.
            frontier: how far this lane has read.
        """
        latest = max(row.head.lane_time_ms for row in rows.values())
        known, covered = dict(self.milestones), set()
        milestones = []
        for sender, row in sorted(rows.items()):
            ended = _is_ended(row)
            time_ms = latest if ended or _is_at_end(row, high) else delivered_ms.get(sender)
            mine = [o for o in known.get(sender, ()) if o.incarnation == row.head.ref.incarnation]
            kept = [one for one in mine if _past(one.delivered, frontier)][-1:]
            ahead = [one for one in mine if not _past(one.delivered, frontier)]
            if not ahead and time_ms is not None:
                ahead = [Milestone(row.head.ref.incarnation, row.ack.delivered, time_ms)]
            milestones.append((sender, (*kept, *ahead)))
            covered |= set() if ended else {source for source, _ in row.head.frontier}
        # A lane begins at the first offset there is: before it does, that is what it has come to.
        whole = all(source in covered or low.at(source) == end for source, end in high)
        return Horizon(tuple(milestones), whole)

    def time_ms(self, frontier: Frontier) -> int:
        """Return what lane time may be once `frontier` is sealed; 0 if nothing is known."""
        if not self.whole:
            return 0
        passed = (
            [one.time_ms for one in mine if _past(one.delivered, frontier)]
            for _, mine in self.milestones
        )
        return min((max(times, default=0) for times in passed), default=0)


def _is_at_end(row: LaneRow, high: Frontier) -> bool:
    """Tell whether a lane has read its logs to the end, and delivered what became of it."""
    ends = dict(high)
    read = all(offset >= ends.get(source, offset + 1) for source, offset in row.head.frontier)
    return read and row.ack.seq == row.head.ref.seq


def _is_ended(row: LaneRow) -> bool:
    """Tell whether a lane will never send more than it has delivered."""
    rest = rest_of(row.head.state)
    under_way = rest is None or rest.kind in (Kind.UNDER_WAY, Kind.COPIED)
    return not under_way and row.ack.seq == row.head.ref.seq
