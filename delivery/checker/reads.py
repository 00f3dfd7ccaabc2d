"""What a lane says it has read of its senders, held against what they emitted and acknowledged.

What it is: `check_read_seqs`.
What it must not know: which inputs took effect.

Invariants:
    A read seq covers nothing that lies behind the frontier of the seal that learned it.
"""

from __future__ import annotations

from dedup.model import ReadSeq, Source
from delivery.checker.evidence import Kind
from delivery.checker.rows import Book, frontiers, kept_until
from delivery.checker.world import World


def check_read_seqs(world: World, book: Book) -> None:
    """Say which read seqs cover more than the lane has read."""
    known = frontiers(book)
    for seq, seal in book.seals.items():
        for read in seal.learned:
            _check_read(world, book, f"seal {seq}", read, known[seq])
    if book.cut:
        return  # what the head says was learned later
    for read in book.head.read_seqs:
        _check_read(world, book, "head", read, dict(book.head.frontier))


def _check_read(
    world: World, book: Book, subject: str, read: ReadSeq, frontier: dict[Source, int]
) -> None:
    def too_far(text: str) -> None:
        words = f"read {read.sender} up to {read.seq}, {text}"
        world.findings.add(Kind.READ_TOO_FAR, book.name, subject, words)

    sender = world.sender(read.sender)
    if sender is None and world.knows(read.sender):
        return
    if sender is None or read.topic not in sender.head.writes:
        if sender is not None and _given_up(book, read):
            return
        too_far("which writes no such topic")
        return
    last = kept_until(sender.head, read.incarnation)
    if read.incarnation == sender.head.ref.incarnation or not world.evidence.restored:
        proven = -1 if last is None else min(last, sender.ack.seq)
        if read.seq > proven:
            too_far(f"which acknowledged {proven}")
    for source, offset in frontier.items():
        if source.topic != read.topic:
            continue
        end = world.first_copies_end(source, read.sender, read.incarnation, read.seq)
        if end > offset:
            too_far(f"partition {source.partition}: {end} > {offset}")


def _given_up(book: Book, read: ReadSeq) -> bool:
    """Tell whether a lane has read this in a topic that it was made to read no more.

    No record of that topic comes to it again, so that nothing is dropped for it.
    """
    return bool(book.head.past) and read.topic not in {topic for _, topic in book.head.topics}
