"""The one call: everything that is wrong with the lanes in question.

What it is: `check(evidence)`, the order of the checks.
What it must not know: the rules; each stands with what it is about.

Invariants:
    The store is only read.
    A lane that cannot be read is left out of what follows, not of the findings.
"""

from __future__ import annotations

from dedup.model import Frontier, TopicId
from delivery.checker.evidence import Evidence, Finding, Kind, Span
from delivery.checker.inputs import Ledger
from delivery.checker.rows import Book, check_chain, leave_believed, read_lane, read_span
from delivery.checker.sink import Sink
from delivery.checker.world import Seen, World


def check(evidence: Evidence) -> list[Finding]:
    """Return everything that is wrong; nothing means: proved, as far as the evidence goes.

    Raises:
        DeliveryError: the store did not answer, or a newer release wrote it.
    """
    world = World(evidence)
    written: set[TopicId] = set()
    for name, asked in evidence.lanes.items():
        book = _book(world, name, asked.span)
        if book is None:
            if evidence.finished and evidence.store.read(name) is None:
                world.findings.add(Kind.UNFINISHED, name, "lane", "it never was")
            continue
        ledger = Ledger(world, book, asked)
        ledger.check()
        Sink(world, book, ledger, asked.span).check()
        if evidence.finished:
            check_finished(world, book, asked.due)
        written.update(book.head.writes)
    for topic in sorted(written):
        for source in world.partitions(topic):
            foreign = world.log(source).foreign
            for seen in world.seen(source):
                if seen.record.offset not in foreign:
                    _check_sender(world, seen)
    return world.findings.found


def _book(world: World, name: str, span: Span | None) -> Book | None:
    """Return a lane with the seals in question, which follow from one another or are found not to."""
    store, findings = world.evidence.store, world.findings
    if span is None:
        book = read_lane(store, name, findings)
    else:
        book = read_span(store, name, span, findings)
    if book is not None:
        check_chain(book, findings)
        if span is not None:
            leave_believed(book, span.first - 1)
    return book


def check_finished(world: World, book: Book, due: Frontier | None) -> None:
    """Say what is due and neither sealed nor acknowledged."""
    frontier = dict(book.head.frontier)
    goal = dict(due) if due is not None else {s: world.log(s).end for s in frontier}
    for source, end in goal.items():
        if frontier.get(source, 0) < end:
            text = f"sealed up to {frontier.get(source, 0)} of {end}"
            world.findings.add(Kind.UNFINISHED, book.name, f"partition {source.partition}", text)
    if book.ack.seq < book.head.ref.seq:
        text = f"acknowledged {book.ack.seq}, sealed {book.head.ref.seq}"
        world.findings.add(Kind.UNFINISHED, book.name, "acknowledgement", text)


def _check_sender(world: World, seen: Seen) -> None:
    name = seen.header.mark.sender if seen.header is not None else ""
    sender = world.sender(name) if name else None
    if sender is None and name and world.knows(name):
        return
    if sender is None or seen.source.topic not in sender.head.writes:
        text = f"its header names {name}" if name else "it has no header of ours"
        subject = f"partition {seen.source.partition} offset {seen.record.offset}"
        world.findings.add(Kind.STRANGER, name, subject, text)
