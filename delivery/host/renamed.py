"""Whether a stage that begins is another one under a new name: then all of it would count twice.

What it is: `refuse_renamed`, asked before the lanes of a pipeline run, and `Declared`, what it is
told of a stage.
What it must not know: who runs the lanes, how a stage is renamed.

Invariants:
    Nothing is written, and nobody is refused whose stage has a lane: it is in the catalog by its name.
    Only a stage of the same pipeline counts that went somewhere, is at rest for nobody, is not
    declared, and shares an input and an output: dead letters and duplicates are no output here, many
    stages may have theirs in one topic.
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
    """Refuse a stage that never ran where another one did the same and is not declared any more.

    Args:
        catalog: where lanes are.
        stages: all that is declared.

    Raises:
        InvalidUsage: it may be that other one. Nothing was begun.
    """
    lanes: dict[tuple[str, str], list[str]] = {}
    pipelines = {one.pipeline for one in stages}
    for lane in catalog.lanes():
        name = name_of(lane)
        if name.pipeline in pipelines:
            stage = name.stage.removesuffix(RE_KEYING)
            lanes.setdefault((name.pipeline, stage), []).append(lane)
    here = {(one.pipeline, one.stage) for one in stages}
    strange = {key: found for key, found in lanes.items() if key not in here}
    for one in stages:
        if (one.pipeline, one.stage) in lanes:
            continue
        for (pipeline, stage), found in strange.items():
            if pipeline == one.pipeline:
                _refuse_same(catalog, one, stage, found)


def _refuse_same(catalog: Catalog, one: Declared, stage: str, lanes: Iterable[str]) -> None:
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
    same = [one.reads[topic] for topic in one.reads if topic in reads]
    made = [one.writes[topic] for topic in one.writes if topic in writes]
    if not (same and made) or may_begin(catalog, f"{one.name}/"):
        return
    if under_way:
        raise InvalidUsage(_OP, f"{one.pipeline}/{stage}", f"{under_way}; nothing was started")
    raise InvalidUsage(_OP, one.name, _why(catalog, one, stage, same, made))


def _went(head: Head) -> bool:
    """Tell whether a lane has sealed anything, or begins where another one would not."""
    return head.ref.seq > 0 or any(offset for _, offset in head.frontier)


def _why(
    catalog: Catalog, one: Declared, stage: str, same: Sequence[str], made: Sequence[str]
) -> str:
    url, other = catalog.store.url, f"{one.pipeline}/{stage}"
    return (
        f"it never ran, and {other}, which did, reads {', '.join(same)} and writes "
        f"{', '.join(made)} as well and is not declared any more. If this is that stage under "
        "another name, all that it has read would be read again and count twice: what a stage "
        "knows is kept under its name, by default its function's; nothing was started. Renamed? "
        f"Say `delivery stage rename {url} {other} {one.stage} --kafka ...`, or give it its old "
        f'name back, name="{stage}". Has {stage} ended? Say `delivery stage retire {url} {other} '
        "--kafka ...`. Are both to run, each from a program of its own? Say `delivery catalog "
        f"accept {url} --stage {one.name}`"
    )
