"""What became of every record of a trial, as its raw topics and its raw catalog show.

What it is: `Truth`, over whole logs and the rows of a catalog.
What it must not know: how an operator is told; not a line of `delivery.operate` is used.

Invariants:
    The first record of an id in a lane's log is the one that takes effect; why a later one did not
    is what the runs beside its seal say.
    An attempt is whatever left chunks or a digest at a seal's position, the sealed one included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.formats.dropped import Verdict, decode_dropped
from dedup.ids import named
from dedup.model import RecordId, Seal, Source
from delivery.checker import Log
from delivery.header import NAME, Header, decode_header
from delivery.host.spec import StageSpec
from delivery.records import Record

#: Offsets behind a record in which its repeats are told, as docs/operations.md says.
REPEATS_OFFSETS = 20_000
#: Seals behind its own in which they are.
REPEATS_SEALS = 1_000

Logs = Mapping[str, Mapping[Source, Log]]
_Made = list[tuple[str, Source, Record]]
_Position = tuple[bytes, int]
#: Digest and kinds of chunks of each.
_Attempts = dict[str, tuple[str | None, set[str]]]


class Truth:
    """A trial as it is.

    Args:
        catalog: its raw rows.
        stages: what reads which topic, and how records are named there.
        topics: whole logs.
    """

    def __init__(self, catalog: Catalog, stages: Sequence[StageSpec], topics: Logs) -> None:
        self._stages = stages
        self._lanes = {
            spec.lane(source): _Lane(catalog, spec, source, log)
            for spec in stages
            for source, log in topics[spec.reads].items()
        }
        self._made: dict[tuple[str, tuple[int, int]], _Made] = defaultdict(list)
        for topic, logs in topics.items():
            for source, log in logs.items():
                for record in log.records:
                    header = _header(record) if isinstance(record, Record) else None
                    if isinstance(record, Record) and header is not None:
                        self._note(topic, source, record, header)

    def _note(self, topic: str, source: Source, record: Record, header: Header) -> None:
        """Note what a lane made; whoever does not write this topic made nothing that lies in it."""
        sender = header.mark.sender
        if sender in self._lanes and source.topic in self._lanes[sender].writes:
            self._made[sender, header.parent].append((topic, source, record))

    # Of one input -----------------------------------------------------------------------------

    def made(self, spec: StageSpec, source: Source, record: Record) -> _Made:
        """Return every copy of what was made of an input, by topic, partition and offset."""
        return self._made.get((spec.lane(source), (source.partition, record.offset)), [])

    def is_copied(self, spec: StageSpec, source: Source, record: Record) -> bool:
        """Tell whether an output of it was sent more than once."""
        made = self.made(spec, source, record)
        return len(made) > len({(topic, one.header(NAME)) for topic, _, one in made})

    def is_contested(self, spec: StageSpec, source: Source, record: Record) -> bool:
        """Tell whether somebody lost the position of the seal that read it."""
        lane = self._lanes[spec.lane(source)]
        return len(lane.attempts(lane.seal(record.offset))) > 1

    def id_of(self, spec: StageSpec, record: Record) -> RecordId | None:
        """Return an input's id; None if only its place names it."""
        return _id(spec, record)

    def first(self, spec: StageSpec, source: Source, record: Record) -> Record:
        """Return the record that took effect by an input's id."""
        return self._lanes[spec.lane(source)].first(record)

    def receivers(self, topic: str, source: Source, record: Record) -> dict[str, str]:
        """Return what every lane that reads a partition made of a record there."""
        lanes = [spec.lane(source) for spec in self._stages if spec.reads == topic]
        return {lane: self._lanes[lane].fate(record) for lane in lanes}

    def reading(self, spec: StageSpec, source: Source, record: Record) -> dict[str, Any]:
        """Return what a stage's lane made of an input."""
        lane = self._lanes[spec.lane(source)]
        seal, fate = lane.seal(record.offset), lane.fate(record)
        original = None
        if fate == "duplicate":
            first = lane.first(record)
            by = lane.seal(first.offset)
            original = (by.ref.seq, by.minted_at_ms, (source.partition, first.offset))
        told = fate == "fresh" and _id(spec, record) is not None
        upto = min(record.offset + 1 + REPEATS_OFFSETS, lane.looked_through(seal))
        outputs: dict[tuple[Any, ...], dict[int, dict[str, str]]] = defaultdict(dict)
        for topic, target, one in self.made(spec, source, record):
            header = _header(one)
            assert header is not None, "what was made is told by its header"
            key = one.key.decode() if one.key is not None else None
            name = (header.id.hex(), topic, target.partition, key, len(one.value or b""))
            outputs[name][one.offset] = self.receivers(topic, target, one)
        return {
            "fate": fate,
            "seal": (seal.ref.seq, seal.minted_at_ms, seal.code),
            "winner": [seal.ref.attempt.hex()],
            "attempts": lane.attempts(seal),
            "original": original,
            "repeats": [
                (source.partition, one.offset, lane.seal(one.offset).ref.seq)
                for one in (lane.repeats(record) if told else ())
                if one.offset < upto
            ],
            "repeats_upto": upto if told else None,
            "outputs": dict(outputs),
        }

    # Of a record that a stage made ------------------------------------------------------------

    def origin(self, source: Source, record: Record) -> dict[str, Any] | None:
        """Return where a record comes from; None if it carries no header of ours."""
        header = _header(record)
        if header is None:
            return None
        mark, lane = header.mark, self._lanes.get(header.mark.sender)
        told = {
            "lane": mark.sender,
            "seq": mark.seq,
            "incarnation": mark.incarnation.hex(),
            "minted_ms": mark.minted_at_ms,
            "kept": mark.kept,
            "parent": header.parent,
        }
        if lane is None or source.topic not in lane.writes:
            words = "of a sender that this catalog does not know as one of this topic"
            return told | {"standing": words, "attempt": None}
        return told | {"standing": "sealed", "attempt": lane.sealed[mark.incarnation, mark.seq]}


class _Lane:
    """One lane: its log, its seals, and what was left at their positions."""

    def __init__(self, catalog: Catalog, spec: StageSpec, source: Source, log: Log) -> None:
        name = spec.lane(source)
        row = catalog.load(name)
        assert row is not None, f"{name} never was"
        self._spec = spec
        self.writes = row.head.writes
        self.end = row.head.frontier.at(source) or 0
        self._seals = catalog.history(name, row.head)
        self.sealed = {
            (seal.ref.incarnation, seal.ref.seq): seal.ref.attempt.hex() for seal in self._seals
        }
        self._starts = [seal.start.at(source) or 0 for seal in self._seals]
        self._ends = {seal.ref.seq: seal.end.at(source) or 0 for seal in self._seals}
        self._verdicts: dict[int, Verdict] = {}
        for seal in self._seals:
            for chunk in catalog.get(Blob.DROPPED, name, seal) or ():
                for run in decode_dropped(chunk, name):
                    places = range(run.offset, run.offset + run.count)
                    self._verdicts |= dict.fromkeys(places, run.verdict)
        self._same: dict[RecordId, list[Record]] = defaultdict(list)
        for record in log.records:
            record_id = _id(spec, record) if isinstance(record, Record) else None
            if isinstance(record, Record) and record_id is not None:
                self._same[record_id].append(record)
        self._tried: dict[_Position, _Attempts] = defaultdict(dict)
        for position, attempt in self.sealed.items():
            self._tried[position][attempt] = (None, set())
        for slot, digest in catalog.store.losers(name):
            self._tried[slot.incarnation, slot.seq][slot.attempt.hex()] = (digest.hex(), set())
        for kind in Blob:
            for slot in catalog.store.slots(kind, name):
                tried = self._tried[slot.incarnation, slot.seq]
                tried.setdefault(slot.attempt.hex(), (None, set()))[1].add(kind.value)

    def seal(self, offset: int) -> Seal:
        """Return the seal that read an offset."""
        assert offset < self.end, "everything that is asked about is sealed"
        return self._seals[bisect_right(self._starts, offset) - 1]

    def looked_through(self, seal: Seal) -> int:
        """Return up to where the seals are that are looked through for repeats of what one read."""
        last = seal.ref.seq + REPEATS_SEALS
        return max(self._ends[one.ref.seq] for one in self._seals if one.ref.seq <= last)

    def first(self, record: Record) -> Record:
        """Return the first record of the same id."""
        return self._of_id(record)[0]

    def repeats(self, record: Record) -> list[Record]:
        """Return what was dropped because the lane had decided its id."""
        return [
            one
            for one in self._of_id(record)[1:]
            if self._verdicts.get(one.offset) is Verdict.DUPLICATE
        ]

    def fate(self, record: Record) -> str:
        """Return what became of a record."""
        if record.offset >= self.end:
            return "pending"
        verdict = self._verdicts.get(record.offset)
        is_first = self.first(record).offset == record.offset
        assert is_first == (verdict is None), f"offset {record.offset} of a {verdict}"
        return "fresh" if verdict is None else verdict.name.lower()

    def attempts(self, seal: Seal) -> _Attempts:
        """Return digest and kinds of chunks of whoever tried at a seal's position."""
        return self._tried[seal.ref.incarnation, seal.ref.seq]

    def _of_id(self, record: Record) -> list[Record]:
        record_id = _id(self._spec, record)
        return [record] if record_id is None else self._same[record_id]


def _header(record: Record) -> Header | None:
    return decode_header(record.header(NAME) or b"")


def _id(spec: StageSpec, record: Record) -> RecordId | None:
    """Return an input's id: in its header of ours, or what its publisher calls it."""
    header = _header(record) if spec.named is None else None
    if header is not None:
        return header.id
    name = record.header("id")
    return named(name) if name is not None else None
