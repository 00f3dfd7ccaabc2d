"""Whether a stage is declared with other outputs than its lanes were begun with.

What it is: `refuse_other_outputs`, asked before the lanes of a stage run, whichever engine runs them.
What it must not know: who runs the lanes, how any sink works.

Invariants:
    Nothing is written. Nothing depends on it: each lane refuses by itself what is refused here, and
    cannot say by which names.
    What cannot be told without opening a sink, or before a topic is made, is left to the lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import TopicId
from delivery.host.spec import StageSpec, scheme_of
from delivery.kafka.port import Client, Topic
from delivery.operate.accepting import RE_KEYING
from delivery.operate.opening import name_of
from delivery.protocol.rest import rest_of

__all__ = ["refuse_other_outputs"]


def refuse_other_outputs(
    catalog: Catalog, client: Client, spec: StageSpec, topics: Mapping[str, Topic]
) -> None:
    """Refuse a stage whose lanes write other topics than it is declared to.

    Args:
        catalog: where its lanes are.
        client: the cluster, for the names of topics.
        spec: the stage.
        topics: those of its topics that are there.

    Raises:
        InvalidUsage: its outputs are others now. Nothing was begun.
    """
    now = [_known(target, topics) for target in spec.topics]
    for lane in catalog.lanes(spec.prefix):
        ours = name_of(lane).reads.rpartition("-")[0] == spec.reads
        row = catalog.load(lane) if ours else None
        if row is None or rest_of(row.head.state) is not None:
            continue
        then = row.head.writes
        if len(then) != len(now) or any(
            new is not None and new != old for old, new in zip(then, now, strict=True)
        ):
            raise InvalidUsage(
                "start a stage",
                spec.prefix.rstrip("/"),
                _why(spec, catalog.store.url, _names(client, spec, then), then, now),
            )


def _known(target: str, topics: Mapping[str, Topic]) -> TopicId | None:
    topic = None if scheme_of(target) else topics.get(target)
    return None if topic is None else topic.id


def _names(client: Client, spec: StageSpec, then: Sequence[TopicId]) -> list[str]:
    """Return what the outputs are called that the lanes were begun with; nothing where none is."""
    there = {topic.id: topic.name for topic in client.describe(client.names()).values()}
    # What has no name in the cluster is another sink, if there is one at its place, or is gone.
    urls = {at: target for at, target in enumerate(spec.topics) if scheme_of(target)}
    return [there.get(topic, urls.get(at, "")) for at, topic in enumerate(then)]


def _why(
    spec: StageSpec,
    url: str,
    names: Sequence[str],
    then: Sequence[TopicId],
    now: Sequence[TopicId | None],
) -> str:
    stage = spec.prefix.rstrip("/").removesuffix(RE_KEYING)
    reads = "INPUT" if spec.rekeyed else spec.reads
    had = [
        name or f"one that is no topic of this cluster ({topic.hex()})"
        for name, topic in zip(names, then, strict=True)
    ]
    anew = [
        target
        for name, new, target in zip(names, now, spec.topics, strict=False)
        if not name and new is not None and len(then) == len(now)
    ]
    again = (
        f"Was {' and '.join(anew)} deleted and created again, and is that meant? Say `delivery stage "
        f"accept-topic {url} {anew[0]} --written-by {stage} --kafka ...`. Otherwise declare"
        if anew
        else "Declare"
    )
    return (
        f"its lanes were begun with the outputs {', '.join(had) or 'none'}, and it is declared now "
        f"with {', '.join(spec.topics) or 'none'} (first writes=, then duplicates=, then "
        "dead_letters=). Which outputs a stage has, and in which order, is frozen when it begins, "
        "because receivers know its lanes as writers of those alone; nothing was started. "
        f"{again} it with those that it had. Is it to have others? Say `delivery stage leave {url} "
        f"{stage} --kafka ...`, which ends it and prints the offsets, declare it under another name, "
        f'and begin it there: d.seed("NAME", topic="{reads}", start=OFFSETS)'
    )
