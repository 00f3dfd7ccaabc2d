"""What `explain` tells of inputs of a wrapped job, held to its raw seals and to what is in its topics."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.formats.dropped import Verdict, decode_dropped
from dedup.model import Seal, Source
from delivery.checker import Log
from delivery.header import NAME, decode_header
from delivery.operate.explaining import explain
from delivery.operate.logs import Cluster
from delivery.operate.places import OUTPUTS_MAX, Fate
from delivery.operate.story import Reading
from delivery.records import Record

#: Inputs that are asked about.
ASKED = 20

Logs = Mapping[Source, Log]


class Stories:
    """A job as it is.

    Args:
        catalog: its raw rows.
        lane: its lane.
        inputs: whole logs of what it reads, by topic.
        output: of what it writes.
    """

    def __init__(
        self, catalog: Catalog, lane: str, inputs: Mapping[str, Logs], output: Logs
    ) -> None:
        row = catalog.load(lane)
        assert row is not None
        self._catalog, self._lane = catalog, lane
        self._seals = [seal for seal in catalog.history(lane, row.head) if seal.ref.seq]
        self._places = {
            (topic, source, record.offset): record
            for topic, logs in inputs.items()
            for source, log in logs.items()
            for record in log.records
            if isinstance(record, Record)
        }
        self._dropped: dict[tuple[Source, int], Verdict] = {}
        for seal in self._seals:
            for chunk in catalog.get(Blob.DROPPED, lane, seal) or ():
                for run in decode_dropped(chunk, lane):
                    spots = ((run.source, run.offset + at) for at in range(run.count))
                    self._dropped |= dict.fromkeys(spots, run.verdict)
        self._made: dict[int, set[str]] = defaultdict(set)
        for log in output.values():
            self._note(log)
        #: Of each name, the one record that took effect by it.
        self._first = {
            (topic, record.header("id")): (seal, source, offset)
            for (topic, source, offset), record in self._places.items()
            if (seal := self._seal(source, offset)) and (source, offset) not in self._dropped
        }

    def _note(self, log: Log) -> None:
        for record in log.records:
            header = decode_header(record.header(NAME) or b"") if record is not None else None
            if header is not None and header.mark.sender == self._lane:
                self._made[header.mark.seq].add(header.id.hex())

    def _seal(self, source: Source, offset: int) -> Seal | None:
        """Return the seal that read an offset; None: it is one of before the lane began."""
        found = [seal for seal in self._seals if _holds(seal, source, offset)]
        starts = [start for seal in self._seals if (start := seal.start.at(source)) is not None]
        begun = any(start <= offset for start in starts)
        assert len(found) == begun, (source, offset)
        return found[0] if found else None

    def check(self, cluster: Cluster, seed: str) -> None:
        """Ask about some inputs."""
        every = sorted(self._places, key=lambda place: (place[0], place[1], place[2]))
        for topic, source, offset in random.Random(seed).sample(every, min(ASKED, len(every))):
            story = explain(self._catalog, cluster, topic, source.partition, offset)
            (told,) = story.readings
            self._hold(told, topic, source, offset)

    def _hold(self, told: Reading, topic: str, source: Source, offset: int) -> None:
        verdict, seal = self._dropped.get((source, offset)), self._seal(source, offset)
        if seal is None:
            assert told.fate is Fate.BEFORE, told
            return
        fate = "fresh" if verdict is None else verdict.name.lower()
        assert (told.fate, told.seq) == (fate, seal.ref.seq), told
        assert told.together is not None, told
        assert told.together.outputs == len(self._made[seal.ref.seq]), told
        if fate == "fresh":
            made = self._made[seal.ref.seq]
            assert {one.id for one in told.outputs} <= made, told
            assert len(told.outputs) == min(len(made), OUTPUTS_MAX), told
            assert all(one.copies for one in told.outputs), told
        elif fate == "duplicate":
            name = self._places[topic, source, offset].header("id")
            first, where, at = self._first[topic, name]
            assert told.original is not None, told
            assert told.original.seq == first.ref.seq, told
            assert told.original.place == (where.partition, at), told


def _holds(seal: Seal, source: Source, offset: int) -> bool:
    start, end = seal.start.at(source), seal.end.at(source)
    return start is not None and end is not None and start <= offset < end
