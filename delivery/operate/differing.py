"""Which stages made other outputs when they ran again: winners held against those who lost.

What it is: `differences`, from digests that losers noted and from rows that they left stored.
What it must not know: user code, Kafka.

Invariants:
    The catalog is only read. That executions differ is allowed: only the sealed one counts.
    Rows are compared only where both made something of the same input; a loser that had read
    another range differs by its digest, and that is told apart where its rows are still there.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt
from dedup.model import Head, RecordId, Seal, Slot
from delivery.batch import Emission, Row, Rows
from delivery.header import NAME, decode_header
from delivery.operate.opening import name_of
from delivery.outputs import content_digest, decode_outputs
from delivery.recipe import recipe_in
from delivery.records import Output

__all__ = ["StageDifferences", "differences"]

#: Examples that are kept of each stage.
EXAMPLES_MAX = 5
#: How deep a JSON value is compared field by field.
DEPTH_MAX = 3

#: Partition and offset of an input, and what was made of it.
_Made = dict[tuple[int, int], list[Emission]]


@dataclass(slots=True)
class StageDifferences:
    """What is known of a stage.

    Attributes:
        lost: attempts at sealed positions that lost and left a trace.
        same: of these, those that had made what was sealed.
        differs: those that had not.
        unknown: those of which nothing is left to compare.
        compared: inputs of which both made something, and the rows of both are there.
        unlike: of these, inputs of which other things were made.
        fields: how often each field was another one: "key", "partition", "header trace", "value",
            "value.nonce", "number of outputs".
        examples: lane, seq, input and field of some.
    """

    stage: str
    lost: int = 0
    same: int = 0
    differs: int = 0
    unknown: int = 0
    compared: int = 0
    unlike: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "stage": self.stage,
            "lost": self.lost,
            "same": self.same,
            "differs": self.differs,
            "unknown": self.unknown,
            "compared": self.compared,
            "unlike": self.unlike,
            "fields": [
                {"field": name, "count": count} for name, count in self.fields.most_common()
            ],
            "examples": self.examples,
        }


def differences(catalog: Catalog, lanes: Sequence[str]) -> list[StageDifferences]:
    """Return how often executions of each stage differed, and in what."""
    found: dict[str, StageDifferences] = {}
    for lane in lanes:
        name = name_of(lane)
        stage = f"{name.pipeline}/{name.stage}"
        of_stage = found.setdefault(stage, StageDifferences(stage))
        row = catalog.load(lane)
        if row is not None:
            _of_lane(catalog, lane, row.head, of_stage)
    return list(found.values())


def _of_lane(catalog: Catalog, lane: str, head: Head, found: StageDifferences) -> None:
    digests = dict(catalog.store.losers(lane))
    slots = set(digests) | set(catalog.store.slots(Blob.OUTPUTS, lane, last=head.ref.seq))
    for slot in sorted(slots):
        if head.incarnation_of(slot.seq) != slot.incarnation:
            continue
        seal = catalog.seal(lane, slot.incarnation, slot.seq)
        if seal is None:
            found.lost += slot in digests
            found.unknown += slot in digests
        elif seal.ref.attempt != slot.attempt:
            _of_loser(catalog, seal, slot, digests.get(slot), found)


def _of_loser(
    catalog: Catalog, seal: Seal, slot: Slot, digest: bytes | None, found: StageDifferences
) -> None:
    found.lost += 1
    lane = slot.lane
    chunks = catalog.get(Blob.OUTPUTS, lane, seal) if seal.outputs.rows else []
    theirs = catalog.store.get(Blob.OUTPUTS, slot)
    if chunks is None or (digest is None and not theirs):
        found.unknown += 1
        return
    place = f"outputs of {lane} seq {slot.seq}"
    recipe = recipe_in(chunks, place)
    mine = list(decode_outputs(chunks, place)) if recipe is None else []
    lost = _left(theirs, slot)
    if digest is None and lost is None:
        found.unknown += 1
        return
    if digest is None:
        assert lost is not None, "said above"
        digest = content_digest(_rows(lost))
    if digest == (content_digest(_rows(mine)) if recipe is None else recipe.digest):
        found.same += 1
    else:
        found.differs += 1
    if lost is not None and recipe is None:
        _compare(_by_parent(mine), _by_parent(lost), slot, found)


def _left(chunks: Sequence[bytes], slot: Slot) -> list[Emission] | None:
    """Return the rows that a loser left; None if they are not all there, as where it died."""
    if not chunks or recipe_in(chunks, f"{slot.lane} seq {slot.seq}") is not None:
        return None
    try:
        return list(decode_outputs(chunks, f"outputs of a loser at {slot.lane} seq {slot.seq}"))
    except Corrupt:
        return None  # it died while it stored them; that is no damage


def _rows(emissions: Iterable[Emission]) -> Rows:
    """Return rows as they were before they had headers of ours."""
    return Rows.of(_row(one) for one in emissions)


def _row(one: Emission) -> Row:
    header = decode_header(dict(one.headers)[NAME])
    assert header is not None, "stored rows have headers of ours"
    theirs = tuple(pair for pair in one.headers if pair[0] != NAME)
    output = Output(value=one.value, key=one.key, headers=theirs, edge=one.edge)
    kept: RecordId | None = header.id if header.mark.kept else None
    return Row(output, one.partition, header.parent, kept)


def _by_parent(emissions: Iterable[Emission]) -> _Made:
    found: _Made = defaultdict(list)
    for one in emissions:
        header = decode_header(dict(one.headers)[NAME])
        assert header is not None, "stored rows have headers of ours"
        found[header.parent].append(one)
    return found


def _compare(mine: _Made, theirs: _Made, slot: Slot, found: StageDifferences) -> None:
    for parent in mine.keys() & theirs.keys():
        found.compared += 1
        fields = sorted(set(_unlike(mine[parent], theirs[parent])))
        found.unlike += bool(fields)
        found.fields.update(fields)
        if fields and len(found.examples) < EXAMPLES_MAX:
            example = {"lane": slot.lane, "seq": slot.seq, "input": list(parent), "differ": fields}
            found.examples.append(example)


def _unlike(mine: Sequence[Emission], theirs: Sequence[Emission]) -> Iterator[str]:
    if len(mine) != len(theirs):
        yield "number of outputs"
    for one, other in zip(mine, theirs, strict=False):
        if one.edge != other.edge:
            yield "edge"
        if one.key != other.key:
            yield "key"
        if one.partition != other.partition:
            yield "partition"
        if one.value != other.value:
            yield from _of_values(one.value, other.value)
        first, second = dict(one.headers), dict(other.headers)
        for name in first.keys() | second.keys():
            if name != NAME and first.get(name) != second.get(name):
                yield f"header {name}"


def _of_values(one: bytes | None, other: bytes | None) -> Iterator[str]:
    try:
        yield from _of_json(json.loads(one or b""), json.loads(other or b""), "value", 0)
    except (ValueError, RecursionError):
        yield "value"


def _of_json(one: Any, other: Any, path: str, depth: int) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and depth < DEPTH_MAX:
        for name in one.keys() | other.keys():
            if one.get(name) != other.get(name) or (name in one) != (name in other):
                yield from _of_json(one.get(name), other.get(name), f"{path}.{name}", depth + 1)
    else:
        yield path
