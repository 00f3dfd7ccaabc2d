"""Faulty wrappers for sinks and sources, and what every emitter must hold.

What it is: `FaultyEmitter` and `FaultyReader`, which send their calls over a `Wire`, and
`check_emitter`, the conformance check that the author of a sink calls from a test.
What it must not know: the protocol, lanes, which sink or source it is given.

Invariants:
    Where a record goes and what a sink writes to are asked directly: they are facts, not calls.
    `check_emitter` judges by what can be read back, never by what the emitter says alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from dedup.arrays import pack
from dedup.errors import Indeterminate
from dedup.ids import positional
from delivery.ports import (
    Batch,
    Counting,
    Emissions,
    Emitter,
    Frontier,
    Log,
    Output,
    Reader,
    Record,
    Rows,
    Source,
    TopicId,
)
from delivery.testing.explore import Violation
from delivery.testing.faulty import Fault, Wire

#: Name of the header by which `check_emitter` knows its records again.
CHECK_HEADER = "check-emitter"
#: Records that `check_emitter` sends to each topic.
CHECK_RECORDS = 5


class FaultyEmitter:
    """An emitter whose `emit` goes over a wire, as calls of "sink".

    Args:
        emitter: the real one.
        wire: what lets calls fail.
        one_by_one: send every record in a call of its own, so that a process can die in the middle
            of a bundle.
    """

    def __init__(self, emitter: Emitter, wire: Wire, *, one_by_one: bool = False) -> None:
        self.writes: tuple[TopicId, ...] = emitter.writes
        self._emitter = emitter
        self._wire = wire
        self._one_by_one = one_by_one
        wire.targets["sink"] = emitter

    def place(self, rows: Rows) -> Sequence[int]:
        """Return the partitions outputs go to."""
        return self._emitter.place(rows)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many partitions each edge has, if the real one counts them."""
        return cast("Counting", self._emitter).counts

    def place_among(self, rows: Rows, counts: Sequence[int]) -> Sequence[int]:
        """Return the partitions outputs go to where there are so many."""
        return cast("Counting", self._emitter).place_among(rows, counts)

    def emit(self, emissions: Emissions) -> Frontier:
        """Send in order, or fail."""
        if not self._one_by_one:
            return self._send(emissions)
        behind = Frontier()
        for place in range(len(emissions)):
            behind = behind.merged(self._send(emissions.cut(place, place + 1)))
        return behind

    def _send(self, emissions: Emissions) -> Frontier:
        behind: Frontier = self._wire.call("sink", "emit", emissions)
        return behind


class RangeReader(Reader, Protocol):
    """A reader that also gives the records of a planned range, as `connectors.memory` does."""

    def read(self, start: Frontier, end: Frontier) -> list[Batch]:
        """Return the records of [start, end), a batch for each source."""

    def reread(self, start: Frontier, end: Frontier) -> list[Batch]:
        """Return them again."""


class FaultyReader:
    """A reader whose calls go over a wire, as calls of "source"."""

    def __init__(self, reader: RangeReader, wire: Wire) -> None:
        self._wire = wire
        wire.targets["source"] = reader

    def log(self) -> Log:
        """Return topics and bounds, or fail."""
        log: Log = self._wire.call("source", "log")
        return log

    def read(self, start: Frontier, end: Frontier) -> list[Batch]:
        """Return the records of a planned range, or fail."""
        batches: list[Batch] = self._wire.call("source", "read", start, end)
        return batches

    def reread(self, start: Frontier, end: Frontier) -> list[Batch]:
        """Return the records of a range again, or fail."""
        batches: list[Batch] = self._wire.call("source", "reread", start, end)
        return batches


#: Returns every record of a partition, in order, with its offset.
ReadBack = Callable[[Source], Sequence[Record]]


def check_emitter(make: Callable[[], tuple[Emitter, ReadBack]]) -> None:
    """Check that an emitter keeps what its port promises.

    Args:
        make: returns a new emitter with topics that nobody has written to yet, and a function that
            reads them back.

    Raises:
        Violation: order, bytes or offsets are not what the port promises, or a repeat does harm.
    """
    emitter, read_back = make()
    if not emitter.writes:
        raise Violation("an emitter names the topic behind each of its edges; this one has none")
    if dict(emitter.emit(Emissions.join([]))):
        raise Violation("emitting nothing delivers nothing; it returned offsets")
    sent = _emissions(emitter)
    behind = emitter.emit(sent)
    _compare(emitter, sent, read_back, behind)

    emitter, read_back = make()
    sent = _emissions(emitter)
    losing = Wire({}, lambda number, _: Fault.LOST_REPLY if number == 0 else None)
    faulty = FaultyEmitter(emitter, losing)
    try:
        faulty.emit(sent)
    except Indeterminate:
        # What the runner does: nobody knows whether it happened, so all of it goes again.
        behind = faulty.emit(sent)
    _compare(emitter, sent, read_back, behind)


def _emissions(emitter: Emitter) -> Emissions:
    """Make records for every edge, with and without key, value and headers."""
    topic = emitter.writes[0]
    rows, ids = Rows(), []
    for number in range(CHECK_RECORDS):
        for edge in range(len(emitter.writes)):
            output = Output(
                value=None if number == 1 else b"value %d" % number,
                key=b"key %d" % (number % 2) if number != 2 else None,  # noqa: PLR2004 - any one of them
                headers=(("kept", b"\x00\xff"), ("kept", b"twice")) if number else (),
                edge=edge,
            )
            rows.add([output], Record(source=Source(topic, 0), offset=number), None)
            ids.append(positional(Source(topic, edge), number))
    partitions = list(emitter.place(rows))
    if partitions != list(emitter.place(rows)) or min(partitions) < 0:
        raise Violation("the partition must be a function of the output and its parent")
    headers = [
        (*theirs, (CHECK_HEADER, f"{edge}.{offset}".encode()))
        for theirs, edge, offset in zip(rows.headers, rows.edges, rows.parent_offsets, strict=True)
    ]
    return Emissions(rows.edges, partitions, rows.keys, rows.values, headers, pack(ids))


def _compare(emitter: Emitter, sent: Emissions, read_back: ReadBack, behind: Frontier) -> None:
    for source in sorted({Source(emitter.writes[e.edge], e.partition) for e in sent}):
        wanted = [
            (e.key, e.value, e.headers)
            for e in sent
            if (emitter.writes[e.edge], e.partition) == (source.topic, source.partition)
        ]
        firsts: dict[bytes, Record] = {}
        for record in read_back(source):
            name = record.header(CHECK_HEADER)
            if name is None:
                raise Violation(f"{source}: offset {record.offset} lost its headers")
            first = firsts.setdefault(name, record)
            if _bytes(first) != _bytes(record):
                raise Violation(f"{source}: two copies of {name.decode()} differ")
        if [_bytes(record) for record in firsts.values()] != wanted:
            raise Violation(
                f"{source}: sent {[h[-1][1] for _, _, h in wanted]}, "
                f"read back {list(firsts)}, in other order, number or bytes"
            )
        last = max(record.offset for record in firsts.values())
        told = behind.at(source)
        if told is None or told <= last:
            raise Violation(
                f"{source}: the offset behind the last record is {last + 1}, it returned {told}: "
                "a receiver would take what is not yet delivered for read"
            )


def _bytes(record: Record) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]:
    return (record.key, record.value, record.headers)
