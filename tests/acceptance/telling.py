"""What an operator is told of a trial, held against what its topics and seals show.

What it is: `untrue`, which audits a trial over columns, and has the stories of a random sample of its
records told, by their places, by their ids and by what was made of them.
What it must not know: engines, what was killed.

Invariants:
    The truth is read from raw logs, headers and rows, by `tests.acceptance.truth`; nothing of
    `explain` makes it.
    A sample is drawn by the trial's own seed: the same trial asks about the same records.
    What a crash leaves behind is asked about wherever it is: inputs of which copies lie in the
    topics, and inputs of seals that somebody lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.model import Source
from delivery.header import NAME, decode_header
from delivery.host.spec import StageSpec
from delivery.kafka.port import Client
from delivery.operate.auditing import Terms, audit
from delivery.operate.explaining import explain
from delivery.operate.finding import places_of_id
from delivery.operate.logs import Cluster
from delivery.operate.story import Reading
from delivery.records import Record
from tests.acceptance.pricing import Pipeline
from tests.acceptance.truth import Logs, Truth

#: Records of each stage whose story is told, whatever they are.
SAMPLE = 40
#: And of each kind of what crashes leave behind.
SAMPLE_OF_KIND = 10
#: Of these, records whose story is told by their ids and by their outputs as well.
ASKED_AGAIN = 6


def untrue(
    client: Client, catalog: Catalog, pipeline: Pipeline, topics: Logs, seed: int
) -> list[str]:
    """Return what an audit does not call exact, and what stories tell otherwise than it was."""
    ways = {spec.name: spec.named for spec in pipeline.stages if isinstance(spec.named, str)}
    lanes = [spec.lane(source) for spec in pipeline.stages for source in topics[spec.reads]]
    found = audit(catalog, Cluster(client), lanes, Terms(ways=ways, finished=True))
    wrong = [] if found.verdict == "exact" else [f"audit: {found.document()}"]
    judge = _Judge(catalog, Cluster(client), Truth(catalog, pipeline.stages, topics))
    chance = random.Random(seed)
    for spec in pipeline.stages:
        sample = judge.sample(chance, spec, topics)
        for source, record in sample:
            wrong += judge.by_place(spec, source, record)
        for source, record in chance.sample(sample, min(ASKED_AGAIN, len(sample))):
            wrong += judge.by_id(spec, source, record)
            wrong += judge.by_outputs(spec, source, record)
    return wrong


class _Judge:
    """Asks, and says where the answer is not the truth."""

    def __init__(self, catalog: Catalog, cluster: Cluster, truth: Truth) -> None:
        self._catalog, self._cluster, self._truth = catalog, cluster, truth

    def sample(
        self, chance: random.Random, spec: StageSpec, topics: Logs
    ) -> list[tuple[Source, Record]]:
        """Draw inputs of a stage."""
        every = [
            (source, record)
            for source, log in topics[spec.reads].items()
            for record in log.records
            if isinstance(record, Record)
        ]
        kinds = (
            every,
            [one for one in every if self._truth.is_copied(spec, *one)],
            [one for one in every if self._truth.is_contested(spec, *one)],
        )
        drawn: dict[tuple[Source, int], Record] = {}
        for kind, most in zip(kinds, (SAMPLE, SAMPLE_OF_KIND, SAMPLE_OF_KIND), strict=True):
            for source, record in chance.sample(kind, min(most, len(kind))):
                drawn[source, record.offset] = record
        return [(source, record) for (source, _), record in drawn.items()]

    def by_place(self, spec: StageSpec, source: Source, record: Record) -> Iterator[str]:
        """Ask about an input's place."""
        place = (spec.reads, source.partition, record.offset)
        story = explain(self._catalog, self._cluster, *place)
        truth = self._truth.reading(spec, source, record)
        told = [_said(one) for one in story.readings if one.lane == spec.lane(source)]
        if len(told) != 1:
            yield f"explain {place}: its lane is told {len(told)} times: {story.document()}"
        for one in told:
            yield from _differences(f"explain {place}", one, truth)
        made, origin = self._truth.origin(source, record), story.document()["origin"]
        said = None if origin is None else {key: origin[key] for key in made or ()}
        if (said or None) != made:
            yield f"explain {place}: origin: {origin}, but: {made}"

    def by_id(self, spec: StageSpec, source: Source, record: Record) -> Iterator[str]:
        """Ask by an input's id: the record that took effect by it is among what is found."""
        record_id = self._truth.id_of(spec, record)
        if record_id is None:
            return
        first = self._truth.first(spec, source, record)
        places = places_of_id(self._catalog, self._cluster, record_id)
        if (spec.reads, source.partition, first.offset) not in places:
            place = source.partition, first.offset
            yield f"explain {record_id.hex()}: places: {places}, but: {place}"

    def by_outputs(self, spec: StageSpec, source: Source, record: Record) -> Iterator[str]:
        """Ask about every copy of what was made of an input, by its place and by its id."""
        seen = set()
        for topic, target, copy in self._truth.made(spec, source, record):
            place = (topic, target.partition, copy.offset)
            story = explain(self._catalog, self._cluster, *place).document()
            made = self._truth.origin(target, copy)
            if {key: (story["origin"] or {}).get(key) for key in made or ()} != made:
                yield f"explain {place}: origin: {story['origin']}, but: {made}"
            fates = {one["lane"]: one["fate"] for one in story["readings"]}
            truth = self._truth.receivers(topic, target, copy)
            if fates != truth:
                yield f"explain {place}: fates: {fates}, but: {truth}"
            header = decode_header(copy.header(NAME) or b"")
            assert header is not None, "what was made is told by its header"
            if header.id not in seen:
                seen.add(header.id)
                places = places_of_id(self._catalog, self._cluster, header.id)
                # A kept id is that of records further up as well, and of repeats that were let through.
                kept = header.mark.kept
                taken = not kept or "fresh" in truth.values()
                if (taken and place not in places) or (not kept and places != [place]):
                    yield f"explain {header.id.hex()}: places: {places}, but: {place}"


def _differences(what: str, said: dict[str, Any], truth: dict[str, Any]) -> Iterator[str]:
    for key, right in truth.items():
        if said[key] != right:
            yield f"{what}: {key}: {said[key]}, but: {right}"


def _said(told: Reading) -> dict[str, Any]:
    """Return what is told, in the words of the truth."""
    original = told.original
    return {
        "fate": str(told.fate),
        "seal": (told.seq, told.sealed_ms, told.code),
        "winner": [one.attempt for one in told.attempts if one.won],
        "attempts": {one.attempt: (one.digest, set(one.stored)) for one in told.attempts},
        "original": original and (original.seq, original.sealed_ms, original.place),
        "repeats": [(one.partition, one.offset, one.seq) for one in told.repeats],
        "repeats_upto": told.repeats_upto,
        "outputs": {
            (one.id, one.topic, one.partition, one.key, one.size): {
                copy.offset: {lane: str(fate) for lane, fate in copy.receivers.items()}
                for copy in one.copies
            }
            for one in told.outputs
        },
    }
