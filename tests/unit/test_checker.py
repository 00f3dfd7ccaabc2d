"""The checker finds nothing in clean runs, and every class of planted damage by its kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import delivery.checker
from dedup import compact
from dedup.catalog.catalog import Catalog
from dedup.collect import Keep, collect, survey
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.formats.lane import encode_segment_list
from dedup.model import (
    Frontier,
    Incarnation,
    SegmentList,
)
from delivery.batch import batches_of
from delivery.checker import Kind, LaneInput, check
from delivery.protocol import messages as m
from delivery.records import Record
from tests.unit.checker import damage_dropped, damage_effects, damage_lanes, damage_sink
from tests.unit.checker.listing import merge_all
from tests.unit.checker.worlds import FIRST, LEFT, RIGHT, World, abandon, chained, id_from

DAMAGE = [*damage_lanes.DAMAGE, *damage_effects.DAMAGE]
DAMAGE += [*damage_dropped.DAMAGE, *damage_sink.DAMAGE]


@pytest.fixture(scope="module")
def clean() -> World:
    return chained()


def kinds(world: World, **given: Any) -> set[Kind]:
    return {finding.kind for finding in check(world.evidence(**given))}


def test_a_clean_chain_is_proved(clean):
    assert check(clean.evidence()) == []
    rows = {name: Catalog(clean.store).load(name) for name in (FIRST, LEFT, RIGHT)}
    assert all(row.head.ref.seq == row.ack.seq == 3 for row in rows.values())
    counts = [clean.seal(LEFT, seq).counts for seq in (2, 3)]
    assert [(c.duplicate, c.remnant) for c in counts] == [(1, 0), (0, 1)]


@pytest.mark.parametrize(("damage", "expected"), DAMAGE)
def test_planted_damage_is_found_as_what_it_is(clean, damage, expected):
    world = clean.copy()
    damage(world)
    assert kinds(world) == expected


def test_every_kind_of_finding_is_planted():
    """But what may be right: that is for the tests of the window."""
    planted = set().union(*(case.values[1] for case in DAMAGE))
    assert planted == set(Kind) - {Kind.LATE_REPEAT}


def test_a_restored_chain_is_proved():
    """What was abandoned is in the topics, and took no effect."""
    world = World()
    world.broker.create("in")
    world.broker.create("mid", 2)
    world.broker.create("out", 2)
    source = world.topic("in")
    for i in range(8):
        record = Record(key=b"k%d" % i, value=b"%d" % i, headers=(("id", b"order-%d" % i),))
        world.broker.append(source, record)
    world.run(FIRST, source, "mid", ((0, 4), (4, 8)))
    abandon(world, FIRST, 1)
    world.run(FIRST, source, "mid", ((4, 8),))
    for lane, mid in zip((LEFT, RIGHT), world.broker.sources("mid"), strict=True):
        end = len(world.broker.partitions[mid])
        world.run(lane, mid, "out", ((0, end),), (FIRST,))
    assert check(world.evidence()) == []
    dropped = sum(world.seal(lane, 1).counts.abandoned for lane in (LEFT, RIGHT))
    assert dropped == 4


def test_an_incarnation_that_no_row_knows_is_abandoned_after_a_restore(clean):
    world = clean.copy()
    world.again(world.sent(LEFT, 1), incarnation=Incarnation(b"x" * 16))
    assert kinds(world, restored=True) == set()


def test_kept_ids_are_external_behind_re_keying():
    """The publisher sends twice, into two partitions; re-keying brings both into one."""
    world = World()
    world.broker.create("in", 2)
    world.broker.create("mid")
    world.broker.create("out")
    for partition in world.broker.sources("in"):
        for i in range(3):
            record = Record(value=b"%d" % i, headers=(("id", b"order-%d" % i),))
            world.broker.append(partition, record)
    lanes = ("p/r/in-0", "p/r/in-1")
    for lane, partition in zip(lanes, world.broker.sources("in"), strict=True):
        world.run(lane, partition, "mid", ((0, 3),), keep=True)
    world.run("p/b/mid-0", world.topic("mid"), "out", ((0, 4), (4, 6)), lanes)
    names = (*lanes, "p/b/mid-0")
    asked = {name: LaneInput(id_from=id_from) for name in names}
    assert check(world.evidence(lanes=asked)) == []
    counts = [world.seal("p/b/mid-0", seq).counts for seq in (1, 2)]
    assert [c.fresh for c in counts] == [3, 0]


def test_a_run_that_is_not_finished_may_lag_behind(clean):
    world = clean.copy()
    damage_sink.sealed_and_not_acknowledged(world)
    damage_sink.input_left_over(world)
    assert kinds(world, finished=False) == set()


def test_what_is_due_can_be_less_than_the_log(clean):
    world = clean.copy()
    damage_sink.input_left_over(world)
    due = {name: LaneInput(id_from=id_from) for name in (LEFT, RIGHT)}
    due[FIRST] = LaneInput(id_from=id_from, due=Frontier.of([(world.topic("in"), 17)]))
    assert kinds(world, lanes=due) == set()


def test_a_lane_that_never_was_is_unfinished(clean):
    lanes = {"p/c/out-0": LaneInput()}
    assert kinds(clean, lanes=lanes) == {Kind.UNFINISHED}
    assert kinds(clean, lanes=lanes, finished=False) == set()


def test_every_step_of_a_collection_and_of_a_merge_leaves_a_proved_catalog(clean):
    world = clean.copy()
    catalog = Catalog(world.store)
    for lane in (FIRST, LEFT, RIGHT):
        for step in survey(catalog, lane, Keep()):
            assert step.perform(catalog)
            assert check(world.evidence()) == [], step.what
    assert world.store.tables.entries == {}
    for lane in (FIRST, LEFT, RIGHT):
        for step in compact.survey(catalog, lane, WINDOW_MS_DEFAULT, plain_min=1):
            assert step.perform(catalog)
            assert check(world.evidence()) == [], step.what


def test_a_merged_segment_beside_the_entries_of_its_seals_is_proved(clean):
    world = clean.copy()
    merge_all(world, FIRST)
    assert check(world.evidence()) == []


def test_ids_that_were_forgotten_are_no_finding(clean):
    """Those of minted records go with the read seqs, those of publishers with the window."""
    world = clean.copy()
    for lane in (FIRST, LEFT, RIGHT):
        collect(Catalog(world.store), lane, Keep())
        world.store.tables.lists[lane] = (9, encode_segment_list(SegmentList(version=9, upto=3)))
    assert check(world.evidence()) == [], "the lane has outlived the window that its seals say"
    asked = {name: LaneInput(id_from=id_from, window_ms=1000) for name in (FIRST, LEFT, RIGHT)}
    assert check(world.evidence(lanes=asked)) == []
    for lane in (FIRST, LEFT, RIGHT):
        world.put_head(lane, window_ms=0)
    assert {finding.lane for finding in check(world.evidence())} == {FIRST}


def test_a_lane_over_two_partitions_is_proved():
    world = World()
    world.broker.create("in", 2)
    world.broker.create("out", 2)
    left, right = world.broker.sources("in")
    for i in range(8):
        record = Record(key=b"k%d" % i, value=b"%d" % i, headers=(("id", b"order-%d" % (i % 6)),))
        world.broker.append((left, right)[i % 3 == 0], record)
    lane = "p/s/stage"
    runner = world.runner(lane, (left, right), "out")
    runner.tell(m.Opened(Frontier.of([(left, 0), (right, 0)])))
    runner.drain()
    for start, end in (((0, 0), (3, 0)), ((3, 0), (3, 2)), ((3, 2), (5, 3))):
        begin, until = (Frontier.of(zip((left, right), at, strict=True)) for at in (start, end))
        records = [
            record
            for source, offset in begin
            for record in world.broker.read(source, offset, until.at(source))
        ]
        runner.offer(m.Polled(begin, until), batches_of(records))
        runner.drain()
    asked = {lane: LaneInput(id_from=id_from)}
    assert check(world.evidence(lanes=asked)) == []
    assert sum(world.seal(lane, seq).counts.fresh for seq in (1, 2, 3)) == 6


def test_records_of_outsiders_are_no_business_of_the_sink(clean):
    world = clean.copy()
    source = world.topic("out")
    offset = world.broker.append(source, Record(value=b"hello"))
    evidence = world.evidence()
    logs = {
        s: replace(log, foreign=frozenset({offset})) if s == source else log
        for s, log in evidence.logs.items()
    }
    assert check(replace(evidence, logs=logs)) == []


def test_a_finding_names_lane_place_and_meaning(clean):
    world = clean.copy()
    damage_lanes.entry_removed(world)
    (finding,) = check(world.evidence())
    assert str(finding).startswith("p/b/mid-1: entry 2: ENTRY_GAP: an entry that must be there")


ALLOWED = {
    *("delivery.checker", "dedup.formats", "dedup.model", "dedup.catalog.store", "dedup.errors"),
    *("dedup.expiry", "delivery.header", "delivery.protocol.senders", "numpy", "pyarrow", "xxhash"),
    *(
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "json",
        "operator",
        "struct",
        "typing",
    ),
}
#: Of the header only the format, of the senders only the type, of expiry only the longest window.
NARROW = {"delivery.protocol.senders": {"Mark"}, "dedup.expiry": {"WINDOW_MS_MAX"}}
#: What records come in: names for the type checker, of which nothing runs.
TYPES = {"delivery.batch": {"Batch"}, "delivery.records": {"Headers"}}


def imported(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield what is imported, module and names, all that runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for module, names in imported(node):
                assert names <= TYPES.get(module, set()), (module, names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, set[str]()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or "", {alias.name for alias in node.names}
        else:
            yield from imported(node)


def test_the_checker_shares_no_code_with_what_it_checks():
    paths = list(Path(delivery.checker.__file__).parent.rglob("*.py"))
    assert {path.parent.name for path in paths} == {"checker", "columns"}
    for path in paths:
        for name, names in imported(ast.parse(path.read_text())):
            assert any(name == a or name.startswith(f"{a}.") for a in ALLOWED), (path, name)
            assert names <= NARROW.get(name, names), (path, name, names)
