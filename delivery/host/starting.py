"""What is done once before lanes of a pipeline run, whichever engine runs them.

What it is: `prepare`, which looks at topics, makes those that are ours, and lets stages that are to
begin behind the latest record begin there.
What it must not know: Spark, how lanes are shared out.

Invariants:
    A topic that is missing is refused before a lane begins, unless it is internal or its creation
    was asked for.
    A stage that begins behind the latest record has the starting frontiers of all partitions
    appended BEFORE one of its records is read, so that no restart can skip what came in between.
    A catalog that is older than what its own lanes have sent, or another one than they ran with, is
    refused before any lane runs; so is a stage that may be another one under a new name, or that is
    declared with other outputs than its lanes have. One that is not there is refused before it is
    made: its URL may be mistyped.
    A partition that appears after that begins at its first offset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_catalog, without_user
from dedup.catalog.store import Store
from dedup.errors import InvalidUsage
from delivery.host.frozen_outputs import refuse_other_outputs
from delivery.host.outdated import refuse_outdated
from delivery.host.reminding import remind, remind_of_lanes
from delivery.host.renamed import declared, refuse_renamed
from delivery.host.spec import Plan, StageSpec, there_is
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings, awaited
from delivery.life.guard import refuse_at_rest
from delivery.operate.opening import present
from delivery.wrap.positions import lane_of

__all__ = ["REKEYED_PARTITIONS", "prepare", "topics_of"]

LOG = logging.getLogger(__name__)

#: Partitions of an internal topic that records are re-keyed into; frozen for ever once it is made.
REKEYED_PARTITIONS = 8
#: Which setting of a topic says that Kafka takes records away that are not old.
_CLEANUP = "cleanup.policy"


def prepare(plan: Plan, *, create_topics: bool = False) -> dict[str, Topic]:
    """Make sure that a pipeline can begin; return its topics by name. May be called again.

    Args:
        plan: the pipeline.
        create_topics: whether output topics that are missing are created, each with as many
            partitions as its stage's input has.

    Raises:
        InvalidUsage: a topic is missing; nothing was read or written.
        Unavailable: the cluster or the catalog does not answer.
    """
    with open_client(plan.kafka, plan.options, plan.client, LOG.warning) as client:
        found = _looked(client, plan.stages, create=create_topics)
        _refuse_unknown(client, plan, found)
        # Before the first topic is made: where the catalog cannot be used, nothing is.
        with closing(open_catalog(plan.catalog).store) as store:
            for spec in plan.stages:
                refuse_other_outputs(Catalog(store), client, spec, found)
            topics = _made(client, plan.stages, found, create=create_topics)
            late = _refused(client, store, plan.stages, topics)
        ends = {spec.name: client.bounds(s := spec.reads, topics[s].sources).high for spec in late}
    if late:
        with closing(Worker(plan)) as worker:
            for spec in late:
                # SUBTLE: partition 0 comes last, and its lane says that all were begun. Were it
                # the number of lanes, a start that was killed between two of them could not be
                # told from a partition that appeared later.
                last_first = reversed(topics[spec.reads].sources)
                worker.begin(
                    spec, {source: ends[spec.name].at(source) or 0 for source in last_first}
                )
    return topics


def _refuse_unknown(client: Client, plan: Plan, found: Mapping[str, Topic]) -> None:
    """Refuse a catalog that is not there where stages have run with another one.

    SUBTLE: nothing is made and nothing deleted again: a file of that name may come meanwhile, and
    be somebody else's.
    """
    catalog = present(plan.catalog)
    if catalog is not None:
        catalog.store.close()
        return
    empty = MemoryStore()
    empty.url = without_user(plan.catalog)
    for spec in plan.stages:
        if spec.reads in found:
            lanes = [spec.lane(source) for source in found[spec.reads].sources]
            refuse_outdated(Catalog(empty), client, lanes, spec.kafka_topics)


def _refused(
    client: Client, store: Store, stages: Sequence[StageSpec], topics: Mapping[str, Topic]
) -> list[StageSpec]:
    """Refuse what may not begin; return the stages that are to begin behind the latest record."""
    _refuse_compacted(client, stages)
    _refuse_another_kind(store, stages)
    for spec in stages:
        refuse_at_rest(Catalog(store), spec.prefix, [spec.reads])
    refuse_renamed(Catalog(store), declared(stages, topics))
    made = {name for spec in stages for name in spec.writes}
    for spec in stages:
        # Before any lane runs: what the first to run would send hides nothing of the others.
        lanes = {spec.lane(source): source.partition for source in topics[spec.reads].sources}
        refuse_outdated(Catalog(store), client, lanes, spec.kafka_topics)
        if spec.reads not in made:
            remind_of_lanes(Catalog(store), spec, lanes)
    remind(stages)
    return [
        spec
        for spec in stages
        if spec.start == "latest" and store.read(spec.lane(topics[spec.reads].sources[0])) is None
    ]


def _refuse_compacted(client: Client, stages: Sequence[StageSpec]) -> None:
    """Refuse a deterministic stage whose input may lose records that it has sealed."""
    for spec in stages:
        if spec.deterministic and "compact" in client.settings_of(spec.reads).get(_CLEANUP, ""):
            raise InvalidUsage(
                "start a pipeline",
                f"stage {spec.name}, which reads {spec.reads}",
                "the topic is compacted, and outputs of a deterministic stage are made again from "
                "the records that Kafka would take away; nothing was started: set its cleanup.policy "
                "to delete alone, or leave out deterministic=True",
            )


def _refuse_another_kind(store: Store, stages: Sequence[StageSpec]) -> None:
    """Refuse a stage that has run as a wrapped job: what kind its lanes are was frozen then."""
    for spec in stages:
        lane = lane_of(spec.pipeline, spec.name)
        if store.read(lane) is not None:
            raise InvalidUsage(
                "start a pipeline",
                f"stage {spec.name}",
                f"it ran as a wrapped job, with the one lane {lane}, and its ids are there; nothing "
                "was started: give the stage another name",
            )


def topics_of(client: Client, stages: Sequence[StageSpec], *, create: bool) -> dict[str, Topic]:
    """Describe the topics, making those that may be made."""
    return _made(client, stages, _looked(client, stages, create=create), create=create)


def _looked(client: Client, stages: Sequence[StageSpec], *, create: bool) -> dict[str, Topic]:
    """Describe the topics that are there; refuse if others are missing that may not be made."""
    names = list(dict.fromkeys(n for spec in stages for n in (spec.reads, *spec.kafka_topics)))
    found = client.describe(names)
    there, waiting = set(found), list(stages)
    while ready := [spec for spec in waiting if spec.reads in there]:
        for spec in ready:
            waiting.remove(spec)
            there.update(_makes(spec, create=create))
    missing = [name for name in names if name not in there]
    if missing:
        made = {name for spec in stages for name in _makes(spec, create=create)}
        # What others would be made from, if there are such: those come by themselves.
        missing = [name for name in missing if name not in made] or missing
        said = "; ".join(_missing(client, name, stages) for name in missing)
        raise InvalidUsage(
            "start a pipeline",
            f"topics {', '.join(missing)}",
            f"there are none of these names: {said}; nothing was started: create them, mend the "
            "names, or say create_topics=True, which makes outputs and never inputs",
        )
    return found


def _makes(spec: StageSpec, *, create: bool) -> tuple[str, ...]:
    """Return which of its outputs a stage may make."""
    return tuple(
        name for name in spec.kafka_topics if create or (spec.by_id and name in spec.writes)
    )


def _made(
    client: Client, stages: Sequence[StageSpec], found: dict[str, Topic], *, create: bool
) -> dict[str, Topic]:
    """Make the topics that may be made, upstream first."""
    waiting = list(stages)
    while ready := [spec for spec in waiting if spec.reads in found]:
        for spec in ready:
            waiting.remove(spec)
            for name in _makes(spec, create=create):
                internal = spec.by_id and name in spec.writes
                count = REKEYED_PARTITIONS if internal else found[spec.reads].partitions
                if name not in found:
                    client.create(name, TopicSettings(partitions=count))
                    found[name] = awaited(client, name)
    assert not waiting, "what stages read was looked for"
    return found


def _missing(client: Client, name: str, stages: Sequence[StageSpec]) -> str:
    """Say who wants a topic that is missing, and which ones there are that look like it."""
    reads = [spec.name for spec in stages if spec.reads == name]
    who = f"{name} is what stage {reads[0]} reads" if reads else f"{name} is an output"
    return who + there_is(name, client.names())
