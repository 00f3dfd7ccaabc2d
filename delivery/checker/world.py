"""The evidence, read once: every log with the headers of its records, and the rows of senders.

What it is: the look-ups that the checks share.
What it must not know: what is right and what is wrong.

Invariants:
    Every header is decoded once; the last of several counts, as for every Kafka client.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

from dedup.model import Incarnation, RecordId, Source, TopicId
from delivery.checker.evidence import Evidence, Findings, Log, Logged
from delivery.checker.rows import Book, read_head
from delivery.header import NAME, Header, decode_header

#: Every copy of a record carries the same header.
REMEMBERED = 4096
_decode = lru_cache(maxsize=REMEMBERED)(decode_header)

#: Of one sender's incarnation in one partition: seqs in order, and beside each the highest offset
#: at which any id of a seq up to it appears first.
_Firsts = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of a log, with its header if it has one of ours."""

    source: Source
    record: Logged
    header: Header | None

    @property
    def place(self) -> tuple[int, int]:
        """What headers of its outputs name as their parent."""
        return (self.source.partition, self.record.offset)


@dataclass(slots=True)
class World:
    """What all checks look at, and where they say what they found."""

    evidence: Evidence
    findings: Findings = field(default_factory=Findings)
    _logs: dict[Source, tuple[list[int], list[Seen]]] = field(default_factory=dict)
    _senders: dict[str, Book | None] = field(default_factory=dict)
    _firsts: dict[Source, dict[tuple[str, Incarnation], _Firsts]] = field(default_factory=dict)

    def log(self, source: Source) -> Log:
        """Return a log; an empty one where the evidence has none."""
        return self.evidence.logs.get(source, Log((), 0))

    def seen(self, source: Source, start: int = 0, end: int | None = None) -> list[Seen]:
        """Return the records of a partition in [start, end)."""
        if source not in self._logs:
            held = [record for record in self.log(source).records if record is not None]
            seen = [Seen(source, record, _header(record)) for record in held]
            self._logs[source] = ([record.offset for record in held], seen)
        offsets, seen = self._logs[source]
        stop = len(offsets) if end is None else bisect_left(offsets, end)
        return seen[bisect_left(offsets, start) : stop]

    def partitions(self, topic: TopicId) -> list[Source]:
        """Return the partitions of a topic that the evidence has."""
        return sorted(source for source in self.evidence.logs if source.topic == topic)

    def sender(self, name: str) -> Book | None:
        """Return a sender's head and acknowledgement; None if the catalog has none to be read."""
        if name not in self._senders:
            # What is wrong with its rows is said where the sender itself is checked.
            self._senders[name] = read_head(self.evidence.store, name, Findings())
        return self._senders[name]

    def knows(self, name: str) -> bool:
        """Tell whether the catalog has a sender, readable or not."""
        return self.sender(name) is not None or self.evidence.store.read(name) is not None

    def first_copies_end(
        self, source: Source, sender: str, incarnation: Incarnation, seq: int
    ) -> int:
        """Return the offset behind the first copies of all that a sender emitted up to `seq`."""
        if source not in self._firsts:
            self._firsts[source] = self._first_copies(source)
        seqs, offsets = self._firsts[source].get((sender, incarnation), ([], []))
        found = bisect_right(seqs, seq)
        return offsets[found - 1] + 1 if found else 0

    def _first_copies(self, source: Source) -> dict[tuple[str, Incarnation], _Firsts]:
        foreign = self.log(source).foreign
        met: set[tuple[str, RecordId]] = set()
        firsts: dict[tuple[str, Incarnation], dict[int, int]] = {}
        for seen in self.seen(source):
            header, offset = seen.header, seen.record.offset
            if header is None or offset in foreign or (header.mark.sender, header.id) in met:
                continue
            met.add((header.mark.sender, header.id))
            highest = firsts.setdefault((header.mark.sender, header.mark.incarnation), {})
            highest[header.mark.seq] = max(offset, highest.get(header.mark.seq, 0))
        return {key: _running(highest) for key, highest in firsts.items()}


def _header(record: Logged) -> Header | None:
    values = [value for name, value in record.headers if name == NAME]
    return _decode(values[-1]) if values else None


def _running(highest: dict[int, int]) -> _Firsts:
    seqs, offsets, last = sorted(highest), [], 0
    for seq in seqs:
        last = max(last, highest[seq])
        offsets.append(last)
    return seqs, offsets
