"""Whether a stage that begins is another one under a new name: then all of it would count twice.

What it is: `refuse_renamed`, asked before the lanes of a pipeline run, and `Declared`, what it is
told of a stage.
What it must not know: who runs the lanes, how a stage is renamed.

Invariants:
    Nothing is written, and nobody is refused whose stage has a lane: it is in the catalog by its name.
    Only a stage counts that went somewhere, is at rest for nobody, and shares an input and an
    output: dead letters and duplicates are no output here, many stages may have theirs in one topic.
    One of the same pipeline counts if it is not declared; of another pipeline nobody here knows what
    is declared, so that all of it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import Head, TopicId
from delivery.host.spec import StageSpec, scheme_of
from delivery.kafka.port import Topic
from delivery.operate.accepting import RE_KEYING, may_begin
from delivery.operate.opening import database_of, name_of
from delivery.protocol.rest import Kind, rest_of

__all__ = ["Declared", "declared", "refuse_renamed"]

_OP = "start a stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A stage as it is declared; one that re-keys and the one behind it are one.

    Attributes:
        pipeline, stage: its name.
        reads, writes: its topics, by their identities; of its outputs those of its records alone.
    """

    pipeline: str
    stage: str
    reads: Mapping[TopicId, str]
    writes: Mapping[TopicId, str]

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"


def declared(stages: Iterable[StageSpec], topics: Mapping[str, Topic]) -> list[Declared]:
    """Return what is declared, of specs and topics as they are."""
    found: dict[tuple[str, str], Declared] = {}
    for spec in stages:
        stage = spec.name.removesuffix(RE_KEYING)
        had = found.get((spec.pipeline, stage))
        reads = dict(had.reads if had else {}) | {topics[spec.reads].id: spec.reads}
        writes = dict(had.writes if had else {})
        writes |= {topics[name].id: name for name in spec.writes if not scheme_of(name)}
        found[spec.pipeline, stage] = Declared(
            pipeline=spec.pipeline, stage=stage, reads=reads, writes=writes
        )
    return list(found.values())


def refuse_renamed(catalog: Catalog, stages: Sequence[Declared]) -> None:
    """Refuse a stage that never ran where another one did the same, which nobody declares here.

    Args:
        catalog: where lanes are.
        stages: all that is declared.

    Raises:
        InvalidUsage: it may be that other one. Nothing was begun.
    """
    lanes: dict[tuple[str, str], list[str]] = {}
    for lane in catalog.lanes():
        name = name_of(lane)
        stage = name.stage.removesuffix(RE_KEYING)
        lanes.setdefault((name.pipeline, stage), []).append(lane)
    here = {(one.pipeline, one.stage) for one in stages}
    new = [one for one in stages if (one.pipeline, one.stage) not in lanes]
    if not new:
        return
    strange = [_looked(catalog, *key, found) for key, found in lanes.items() if key not in here]
    for one in new:
        # Of its own pipeline first: what is said of that is the surer guess.
        for other in sorted(strange, key=lambda other: other.pipeline != one.pipeline):
            _refuse_same(catalog, one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """A stage that the catalog knows: the topics of those of its lanes that are not at rest."""

    pipeline: str
    stage: str
    reads: frozenset[TopicId]
    writes: frozenset[TopicId]
    #: What is being done to it and is not finished.
    under_way: str

    @property
    def name(self) -> str:
        return f"{self.pipeline}/{self.stage}"


def _looked(catalog: Catalog, pipeline: str, stage: str, lanes: Iterable[str]) -> _Other:
    reads: set[TopicId] = set()
    writes: set[TopicId] = set()
    under_way = ""
    for lane in lanes:
        row = catalog.load(lane)
        rest = None if row is None else rest_of(row.head.state)
        if row is None or database_of(row.head) is not None or not _went(row.head):
            continue
        if rest is not None and rest.kind is not Kind.UNDER_WAY:
            continue
        under_way = under_way or (rest.why() if rest is not None else "")
        reads |= {topic for _, topic in row.head.topics}
        writes |= set(row.head.writes)
    return _Other(
        pipeline=pipeline,
        stage=stage,
        reads=frozenset(reads),
        writes=frozenset(writes),
        under_way=under_way,
    )


def _refuse_same(catalog: Catalog, one: Declared, other: _Other) -> None:
    same = [one.reads[topic] for topic in one.reads if topic in other.reads]
    made = [one.writes[topic] for topic in one.writes if topic in other.writes]
    if not (same and made) or may_begin(catalog, f"{one.name}/"):
        return
    if other.under_way:
        raise InvalidUsage(_OP, other.name, f"{other.under_way}; nothing was started")
    topics = (", ".join(same), ", ".join(made))
    elsewhere = other.pipeline != one.pipeline
    why = (_why_elsewhere if elsewhere else _why)(catalog.store.url, one, other, topics)
    raise InvalidUsage(_OP, one.name, why)


def _went(head: Head) -> bool:
    """Tell whether a lane has sealed anything, or begins where another one would not."""
    return head.ref.seq > 0 or any(offset for _, offset in head.frontier)


def _why(url: str, one: Declared, other: _Other, topics: tuple[str, str]) -> str:
    return (
        f"it never ran, and {other.name}, which did, reads {topics[0]} and writes {topics[1]} as well "
        "and is not declared any more. If this is that stage under another name, all that it has read would be read again and count "
        "twice: what a stage knows is kept under its name, by default its function's; nothing was "
        f"started. Renamed? Say `delivery stage rename {url} {other.name} {one.stage} --kafka ...`, "
        f'or give it its old name back, name="{other.stage}". Has {other.stage} ended? Say '
        f"`delivery stage retire {url} {other.name} --kafka ...`. Are both to run, each from a "
        f"program of its own? Say `delivery catalog accept {url} --stage {one.name}`"
    )


def _why_elsewhere(url: str, one: Declared, other: _Other, topics: tuple[str, str]) -> str:
    old = f'pipeline="{other.pipeline}"'
    old += f', name="{other.stage}"' if other.stage != one.stage else ""
    return (
        f"it never ran, and {other.name} of another pipeline in this catalog, which did, reads "
        f"{topics[0]} and writes {topics[1]} as well. "
        "If this is that pipeline under another name, all that it has read would be read again and "
        "count twice: what a stage knows is kept under its pipeline's name and its own; nothing was "
        f"started. Is it the same? Give it its old name back, {old}. Has {other.name} ended? Say "
        f"`delivery stage retire {url} {other.name} --kafka ...`. Are both to run, each making "
        f"everything once? Say `delivery catalog accept {url} --stage {one.name}`"
    )
