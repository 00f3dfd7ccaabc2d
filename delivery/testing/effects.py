"""What a plan came to: the outputs as a receiver sees them, and whether they are right.

What it is: `receive`, which drops repeats, and `judge_effects`, which holds what is left against
every execution of user code that took place.
What it must not know: seals, heads, how it came about; those are the independent checker's, which
is asked as well.

Invariants:
    A record that nobody decided twice has the outputs of one execution, whole and in order, or one
    dead letter, and never both.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dedup.catalog.memory import MemoryStore
from dedup.model import RecordId
from delivery.checker import Evidence, LaneInput, Log, check
from delivery.header import NAME, decode_header
from delivery.naming import forgiving
from delivery.records import Output, Record
from delivery.stage import RECORD_TRIES
from delivery.testing.explore import Violation
from delivery.testing.rig import LANE, Rig

#: Key, value and headers: what a user compares.
_Bytes = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


@dataclass(frozen=True, slots=True)
class Received:
    """An output that a receiver takes, and the offset of the record it was made of."""

    parent: int
    record: Record


def receive(rig: Rig) -> list[list[Received]]:
    """Return the outputs of every edge, without repeats and without our header."""
    edges = []
    for topic in rig.case.topics:
        taken: dict[RecordId, Received] = {}
        for source in rig.broker.sources(topic):
            for record in rig.broker.partitions[source]:
                header = decode_header((record.header(NAME) if record else None) or b"")
                if record is None or header is None:
                    raise Violation(f"a record without our header is in {topic}")
                clean = record._replace(headers=_own(record.headers))
                taken.setdefault(header.id, Received(header.parent[1], clean))
        edges.append(list(taken.values()))
    return edges


def judge_effects(rig: Rig, received: list[list[Received]]) -> None:
    """Check that every input took effect exactly once.

    Raises:
        Violation: some input did not.
    """
    logs = {source: Log(log, len(log)) for source, log in rig.broker.partitions.items()}
    findings = check(
        Evidence(
            store=MemoryStore(rig.tables),
            logs=logs,
            lanes={LANE: LaneInput(id_from=rig.case.id_from)},
            finished=True,
        )
    )
    if findings:
        raise Violation("; ".join(map(str, findings)))
    for edge, outputs in enumerate(received):
        parents = [output.parent for output in outputs]
        if parents != sorted(parents):
            raise Violation(f"the outputs of edge {edge} are not in the order of their inputs")
    for offsets in names(rig):
        _judge(rig, offsets, received)


def names(rig: Rig) -> list[list[int]]:
    """Return the offsets of every record, its repeats together."""
    found: dict[object, list[int]] = defaultdict(list)
    way = forgiving(rig.case.id_from)
    for offset, record in enumerate(rig.case.script.records):
        name = way(record)
        found[offset if name is None else name].append(offset)
    return list(found.values())


def _judge(rig: Rig, offsets: list[int], received: list[list[Received]]) -> None:
    mine = [[output for output in edge if output.parent in offsets] for edge in received]
    seen = [[_bytes(output.record) for output in edge] for edge in mine]
    parents = {output.parent for edge in mine for output in edge}
    where = f"offset {offsets[0]}" + (f" (again at {offsets[1:]})" if offsets[1:] else "")
    if len(parents) > 1:
        raise Violation(f"{where} took effect more than once: as {sorted(parents)}")
    edges, letters = (
        seen[: rig.case.edges],
        [one for edge in seen[rig.case.edges :] for one in edge],
    )
    if letters:
        parent = min(parents)
        if _is_unnamed(rig, parent):
            wrong = any(done.offset == parent for done in rig.executions)
        else:
            wrong = rig.failures.get(parent, 0) < RECORD_TRIES
        if len(letters) > 1 or any(edges) or wrong:
            raise Violation(f"{where} has {len(letters)} dead letters and the outputs {edges}")
        return
    executions = [done for done in rig.executions if done.offset in (parents or offsets)]
    if not any(_by_edge(done.outputs, rig.case.edges) == edges for done in executions):
        raise Violation(
            f"{where}: {edges} reached the receiver, which is not what any one of "
            f"{len(executions)} executions returned"
        )


def _is_unnamed(rig: Rig, offset: int) -> bool:
    try:
        rig.case.id_from(rig.case.script.records[offset])
    except Exception:  # noqa: BLE001 - a user's function may raise anything
        return True
    return False


def _by_edge(outputs: tuple[Output, ...], edges: int) -> list[list[_Bytes]]:
    return [[_bytes(output) for output in outputs if output.edge == edge] for edge in range(edges)]


def _bytes(record: Record | Output) -> _Bytes:
    return (record.key, record.value, _own(record.headers))


def _own(headers: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple(pair for pair in headers if pair[0] != NAME)
