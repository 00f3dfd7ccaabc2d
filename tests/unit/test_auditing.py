"""An audit finds what the checker finds, and nothing beside live jobs; what it cannot prove it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectors.memory import MemoryReader
from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage, Unavailable
from dedup.model import Incarnation
from delivery.checker import Kind, check
from delivery.checker.evidence import Findings
from delivery.checker.rows import read_head
from delivery.header import NAME, decode_header, encode_header
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.compaction import Rules, tidy
from delivery.operate.guessing import guessed, id_by, ways_of
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from delivery.records import Record
from tests.unit.checker import damage_dropped, damage_effects, damage_lanes, damage_sink
from tests.unit.checker.worlds import FIRST, World
from tests.unit.checker.worlds import chained as chain
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained

NOW_MS = 1_800_000_000_000
DAMAGE = [*damage_lanes.DAMAGE, *damage_effects.DAMAGE]
DAMAGE += [*damage_dropped.DAMAGE, *damage_sink.DAMAGE]
TERMS = Terms(finished=True)


def audited(
    store: Any, client: MemoryClient, terms: Terms = TERMS, stage: str | None = None
) -> Audited:
    catalog = Catalog(store)
    return audit(catalog, Cluster(client), chosen(catalog, stage), terms)


def has_past(world: World) -> bool:
    """Tell whether a lane that can be read has had other incarnations."""
    books = (read_head(world.store, lane, Findings()) for lane in world.store.lanes())
    return any(book is not None and book.head.past for book in books)


@pytest.fixture(scope="module")
def clean() -> World:
    return chain()


def test_a_clean_chain_is_exact(clean: World) -> None:
    found = audited(clean.store, MemoryClient(clean.broker))
    assert (found.verdict, found.findings, found.unproved) == ("exact", (), {})
    assert set(found.proved) == set(clean.store.lanes())
    assert found.proved[FIRST] == "by header:id, as the ids it decided show"
    assert found.inputs > 0
    assert found.records >= found.inputs


@pytest.mark.parametrize(("damage", "expected"), DAMAGE)
def test_planted_damage_is_found(
    clean: World, damage: Callable[[World], None], expected: set[Kind]
) -> None:
    world = clean.copy()
    damage(world)
    found = audited(world.store, MemoryClient(world.broker), replace(TERMS, ways={"": "header:id"}))
    assert found.verdict == "broken"
    if has_past(world):
        # A catalog with a past may have been put back, and what it does not know was abandoned.
        expected = {finding.kind for finding in check(world.evidence(restored=True))}
    assert expected <= {finding.kind for finding in found.findings}


def test_damage_is_found_with_ways_that_were_found_out(clean: World) -> None:
    """However records are named, nothing damaged is ever called exact."""
    missed = []
    for case in DAMAGE:
        world = clean.copy()
        case.values[0](world)
        if audited(world.store, MemoryClient(world.broker)).verdict != "broken":
            missed.append(case.id)
    assert missed == []


# Beside live jobs ---------------------------------------------------------------------------------


def second(house: House) -> Any:
    return house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,))


def furnished(house: House) -> House:
    chained(house)
    return house


def go_on(house: House, number: int) -> None:
    """Seal, emit and read more, in both stages."""
    house.write(*(f"live {number} {at}" for at in range(4)), "r0-0")
    house.done(house.runner(), cut=2)
    house.done(second(house), topic="out", cut=2)


@pytest.mark.parametrize("when", ["meanwhile", "after"])
def test_an_audit_beside_live_jobs_finds_nothing(house: House, when: str) -> None:
    client, rounds = MemoryClient(furnished(house).broker), []

    def live() -> None:
        if len(rounds) < 3:
            rounds.append(len(rounds))
            go_on(house, len(rounds))

    setattr(client, when, live)
    found = audited(house.store, client, Terms())
    assert len(rounds) == 3
    assert found.findings == ()
    assert found.verdict == "exact"


def test_an_audit_beside_a_collection_finds_nothing(house: House) -> None:
    client, rounds = MemoryClient(furnished(house).broker), []

    def collect() -> None:
        if not rounds:
            rounds.append(1)
            for lane in (LANE, SECOND):
                tidy(house.catalog(), lane, Rules(entries_ms=0), NOW_MS, perform=True)

    client.after = collect
    found = audited(house.store, client)
    assert rounds
    assert (found.findings, found.verdict) == ((), "exact")


def test_an_audit_that_never_comes_to_rest_gives_up(house: House) -> None:
    """A lane gets new incarnations faster than its topics are read."""
    client = MemoryClient(furnished(house).broker)

    def restore() -> None:
        catalog = house.catalog()
        row = catalog.load(LANE)
        ref = replace(row.head.ref, incarnation=Incarnation(house.fresh()))
        head = replace(row.head, ref=ref)
        ack = replace(row.ack, incarnation=ref.incarnation)
        assert catalog.reincarnate(LANE, row.head.ref, replace(row, head=head, ack=ack))

    client.after = restore
    with pytest.raises(Unavailable, match="collected or restored faster"):
        audited(house.store, client)


def test_a_forged_record_is_not_taken_for_a_later_one(house: House) -> None:
    client = MemoryClient(furnished(house).broker)
    record = house.sent()[0]
    header = decode_header(record.header(NAME) or b"")
    assert header is not None
    forged = replace(header, mark=replace(header.mark, seq=99))
    house.broker.append(
        house.source("out"), record._replace(headers=((NAME, encode_header(forged)),))
    )
    found = audited(house.store, client, Terms())
    assert Kind.UNSEALED in {finding.kind for finding in found.findings}


# What cannot be proved ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "lane", "said"),
    [("in", LANE, "are gone"), ("out", LANE, "outputs may"), ("end", SECOND, "outputs may")],
)
def test_a_lane_whose_records_are_gone_is_not_called_proved(
    house: House, topic: str, lane: str, said: str
) -> None:
    furnished(house)
    client = MemoryClient(house.broker, {house.source(topic): 2})
    source = house.source(topic)
    house.broker.partitions[source] = (None, None, *house.broker.partitions[source][2:])
    found = audited(house.store, client)
    assert (found.verdict, found.findings) == ("unproved", ())
    assert said in found.unproved[lane]
    assert lane not in found.proved


def test_a_lane_whose_topic_was_made_again_is_not_called_proved(house: House) -> None:
    furnished(house)
    house.broker.create("end")
    found = audited(house.store, MemoryClient(house.broker))
    assert "of the identity it knows" in found.unproved[SECOND]
    assert found.verdict == "unproved"


def test_a_way_that_nothing_explains_is_asked_for(house: House) -> None:
    """Publishers are named by a function that no option can say."""
    house.write(*"abc")
    house.done(house.runner(id_from=lambda record: b"mine " + record.value))
    found = audited(house.store, MemoryClient(house.broker))
    assert "--id-from" in found.unproved[LANE]
    assert found.verdict == "unproved"


def test_a_wrong_way_is_found_out(house: House) -> None:
    found = audited(
        furnished(house).store, MemoryClient(house.broker), replace(TERMS, ways={"price": "key"})
    )
    assert found.verdict == "broken"
    right = replace(TERMS, ways={"shop/price": "header:id", "price": "key"})
    assert audited(house.store, MemoryClient(house.broker), right).verdict == "exact"
    with pytest.raises(InvalidUsage, match="id_from='hader'"):
        audited(house.store, MemoryClient(house.broker), replace(TERMS, ways={"": "hader"}))


def test_what_is_due_counts_only_when_asked(house: House) -> None:
    furnished(house).write("later")
    client = MemoryClient(house.broker)
    assert audited(house.store, client, Terms()).verdict == "exact"
    found = audited(house.store, client, TERMS)
    assert [finding.kind for finding in found.findings] == [Kind.UNFINISHED]


def test_a_stage_alone_can_be_proved(house: House) -> None:
    found = audited(furnished(house).store, MemoryClient(house.broker), stage="ship")
    assert list(found.proved) == [SECOND]
    assert found.proved[SECOND] == "by the stages that made them"
    assert found.verdict == "exact"


def test_a_compacted_catalog_is_proved_by_its_list(house: House) -> None:
    furnished(house)
    for lane in (LANE, SECOND):
        tidy(house.catalog(), lane, Rules(entries_ms=0), NOW_MS, perform=True)
    house.write("later", "r0-0")
    house.done()
    house.done(second(house), topic="out")
    found = audited(house.store, MemoryClient(house.broker))
    assert (found.findings, found.verdict) == ((), "exact")


# How records are named ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", ["header:id", "header:trace", "key", "value", "json:order.id", "json:n", None]
)
def test_a_way_is_found_out_from_what_was_decided(way: str | None) -> None:
    records = [
        Record(
            value=b'{"order": {"id": "o%d", "same": 1}, "n": %d}' % (number, number),
            key=b"k%d" % number,
            headers=(("id", b"i%d" % number), ("trace", b"t%d" % number)),
            offset=number,
        )
        for number in range(9)
    ]
    decided = [one for record in records if (one := id_by(way, record)) is not None]
    assert guessed(records, decided) == (True, way)
    assert guessed(records, []) == (False, None)


def test_a_way_is_found_out_though_some_records_lack_it() -> None:
    records = [
        Record(headers=(("id", b"%d" % at),) if at % 3 else (), offset=at) for at in range(9)
    ]
    decided = [one for record in records if (one := id_by("header:id", record)) is not None]
    assert guessed(records, decided) == (True, "header:id")


def test_values_of_every_kind_have_a_way() -> None:
    for value in (None, b"", b"\xff\xfe", b"[1]", b"7", b'"text"', b"{" * 5, b"[" * 9000):
        assert None in list(ways_of(Record(value=value)))


def test_a_memory_client_reads_as_a_reader_does(house: House) -> None:
    """What this suite stands on: the same records, in the same order, holes included."""
    house.write("a")
    house.broker.skip(house.source(), 3)
    house.write(*"bcdefghij")
    cluster = Cluster(MemoryClient(house.broker))
    topic = cluster.topic("in")
    log = MemoryReader(house.broker, "in", [house.source()]).log()
    read = [record for batch in cluster.read(topic, log.low, log.high) for record in batch]
    assert read == house.sent("in")
    assert cluster.record(topic, house.source(), 0) == read[0]
    assert cluster.record(topic, house.source(), 2) is None
    assert cluster.record(topic, house.source(), 99) is None
    with pytest.raises(InvalidUsage, match="there is no such topic"):
        cluster.topic("inn")
