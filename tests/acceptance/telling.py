"""What an operator is told of a trial, held against what its topics and seals show.

What it is: `untrue`, which audits a trial over columns, and has the stories of a random sample of its
records told.
What it must not know: engines, what was killed.

Invariants:
    The truth is read from raw logs, headers and entries; nothing of `explain` makes it.
    A sample is drawn by the trial's own seed: the same trial asks about the same records.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.formats.dropped import Verdict, decode_dropped
from dedup.model import Seal, Source
from delivery.checker import Log
from delivery.header import NAME, decode_header
from delivery.host.spec import StageSpec
from delivery.kafka.port import Client
from delivery.operate.auditing import Terms, audit
from delivery.operate.explaining import Reading, explain
from delivery.operate.logs import Cluster
from delivery.records import Record
from tests.acceptance.pricing import Pipeline

#: Records of each stage whose story is told.
SAMPLE = 6

_Logs = Mapping[str, Mapping[Source, Log]]
_Copies = dict[tuple[str, str, int], list[int]]


def untrue(
    client: Client, catalog: Catalog, pipeline: Pipeline, topics: _Logs, seed: int
) -> list[str]:
    """Return what an audit does not call exact, and what stories tell otherwise than it was."""
    ways = {spec.name: spec.named for spec in pipeline.stages if isinstance(spec.named, str)}
    lanes = [spec.lane(source) for spec in pipeline.stages for source in topics[spec.reads]]
    found = audit(catalog, Cluster(client), lanes, Terms(ways=ways, finished=True))
    wrong = [] if found.verdict == "exact" else [f"audit: {found.document()}"]
    chance = random.Random(seed)
    for spec in pipeline.stages:
        places = [
            (source, record)
            for source, log in topics[spec.reads].items()
            for record in log.records
            if isinstance(record, Record)
        ]
        for source, record in chance.sample(places, min(SAMPLE, len(places))):
            place = (spec.reads, source.partition, record.offset)
            story = explain(catalog, Cluster(client), *place)
            told = [one for one in story.readings if one.lane == spec.lane(source)]
            truth = _truth(catalog, spec, topics, source, record)
            if [_said(one) for one in told] != [truth]:
                wrong.append(f"explain {place}: {story.document()}, but: {truth}")
    return wrong


def _said(told: Reading) -> tuple[bool, int | None, tuple[int, int] | None, _Copies]:
    """Return what is told: whether it took effect, its seal, what it repeats, what was made of it."""
    copies = {
        (one.id, one.topic, one.partition): [copy.offset for copy in one.copies]
        for one in told.outputs
    }
    original = told.original.place if told.original is not None else None
    return told.fate == "fresh", told.seq, original, copies


def _truth(
    catalog: Catalog, spec: StageSpec, topics: _Logs, source: Source, record: Record
) -> tuple[bool, int | None, tuple[int, int] | None, _Copies]:
    lane = spec.lane(source)
    row = catalog.load(lane)
    assert row is not None, f"{lane} never was"
    seal = next(one for one in catalog.history(lane, row.head) if _holds(one, source, record))
    log = [one for one in topics[spec.reads][source].records if isinstance(one, Record)]
    first = next(one for one in log if _id(spec, one) == _id(spec, record))
    if first.offset == record.offset:
        # Strangers' records may say in their headers that they were made of it.
        written = {name: topics[name] for name in spec.topics}
        return True, seal.ref.seq, None, _made(lane, written, source, record)
    # A remnant is dropped without a look at what it repeats.
    repeated = _dropped_as(catalog, lane, seal, source, record.offset) is Verdict.DUPLICATE
    return False, seal.ref.seq, (source.partition, first.offset) if repeated else None, {}


def _dropped_as(
    catalog: Catalog, lane: str, seal: Seal, source: Source, offset: int
) -> Verdict | None:
    """Return why a seal dropped an offset, as its raw runs say."""
    for chunk in catalog.get(Blob.DROPPED, lane, seal) or ():
        for run in decode_dropped(chunk, lane):
            if run.source == source and run.offset <= offset < run.offset + run.count:
                return run.verdict
    return None


def _holds(seal: Seal, source: Source, record: Record) -> bool:
    start, end = seal.start.at(source), seal.end.at(source)
    return start is not None and end is not None and start <= record.offset < end


def _id(spec: StageSpec, record: Record) -> bytes:
    header = decode_header(record.header(NAME) or b"") if spec.named is None else None
    return header.id if header is not None else record.header("id") or b""


def _made(lane: str, topics: _Logs, source: Source, record: Record) -> _Copies:
    """Return where outputs of an input lie, in the partition of their first copy."""
    made: _Copies = defaultdict(list)
    for topic, partition, one in _everything(topics):
        header = decode_header(one.header(NAME) or b"")
        if header is None or header.mark.sender != lane:
            continue
        if header.parent == (source.partition, record.offset):
            made[header.id.hex(), topic, partition].append(one.offset)
    return dict(made)


def _everything(topics: _Logs) -> Iterator[tuple[str, int, Record]]:
    for topic, logs in topics.items():
        for source, log in logs.items():
            for record in log.records:
                if isinstance(record, Record):
                    yield topic, source.partition, record
