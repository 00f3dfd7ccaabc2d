"""A range is proved as if nothing else were there: damage in it is found, damage outside is not blamed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from delivery.checker import Kind
from delivery.checker.columns import Doubt
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.compaction import Rules, tidy
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from delivery.operate.reach import Offsets
from delivery.records import Record
from tests.unit.checker import damage_dropped, damage_effects, damage_lanes, damage_sink
from tests.unit.checker.worlds import World, flipped
from tests.unit.checker.worlds import chained as chain
from tests.unit.house import LANE, House, seals
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained

NOW_MS = 1_800_000_000_000
#: The lane has six seals of five offsets each.
CUT, LAST = 5, 6
#: In the middle of it.
FIRST_SEQ, LAST_SEQ = 3, 4
MIDDLE = Offsets(topic="in", partition=0, first=10, last=19)
#: Columns first, and record by record.
BOTH_WAYS = pytest.mark.usefixtures("way")
DAMAGE = [*damage_lanes.DAMAGE, *damage_effects.DAMAGE]
DAMAGE += [*damage_dropped.DAMAGE, *damage_sink.DAMAGE]


def audited(store: Any, client: MemoryClient, **terms: Any) -> Audited:
    catalog = Catalog(store)
    return audit(catalog, Cluster(client), chosen(catalog), Terms(**terms))


def in_range(house: House, *offsets: Offsets, **terms: Any) -> Audited:
    return audited(house.store, MemoryClient(house.broker), offsets=offsets, **terms)


def span(first: int | None = None, last: int | None = None) -> Offsets:
    return Offsets(topic="in", partition=0, first=first or 0, last=last)


def seqs(found: Audited, lane: str = LANE) -> tuple[int | None, int | None]:
    return next((one["first"], one["last"]) for one in found.ranges if one["lane"] == lane)


@pytest.fixture(scope="module")
def clean() -> House:
    house = House(MemoryStore())
    chained(house)
    return house


@pytest.fixture
def shop(clean: House) -> House:
    copy = World(clean.broker, clean.store).copy()
    house = House(copy.store)
    house.broker, house.now = copy.broker, clean.now
    house.random.setstate(clean.random.getstate())
    return house


@pytest.fixture(params=["columns", "rows"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either way in which a lane is looked at; record by record if columns leave a doubt."""
    if request.param == "rows":

        def doubt(*_: Any, **__: Any) -> None:
            raise Doubt(None, "everything", "a test wants it looked at closer")

        monkeypatch.setattr("delivery.operate.proving.prove", doubt)
    return request.param


# Which seals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (span(10, 14), (3, 3)),
        (span(10, 15), (3, 4)),
        (span(9, 14), (2, 3)),
        (span(12, 12), (3, 3)),
        (span(14, 15), (3, 4)),
        (span(0, 4), (0, 1)),
        (span(25), (6, 6)),
        (span(29, 29), (6, 6)),
        (span(last=5), (0, 2)),
        (span(), (0, 6)),
    ],
)
def test_seals_that_read_an_offset_are_proved_whole(
    shop: House, way: str, asked: Offsets, expected: tuple[int, int]
) -> None:
    found = in_range(shop, asked)
    assert (found.verdict, found.findings, found.unproved) == ("exact", (), {})
    assert seqs(found) == expected
    assert found.inputs == CUT * (expected[1] - max(expected[0], 1) + 1)
    assert [one["lane"] for one in found.ranges] == [LANE], "the other lane reads another topic"
    assert set(found.looked_closer) == ({LANE} if way == "rows" else set())


@pytest.mark.parametrize("first", range(1, LAST + 1))
@pytest.mark.parametrize("count", [1, 2, 6])
@BOTH_WAYS
def test_seals_of_a_time_are_proved(shop: House, first: int, count: int) -> None:
    every = seals(shop)
    behind = first + count
    until = every[behind].minted_at_ms if behind <= LAST else None
    found = audited(
        shop.store,
        MemoryClient(shop.broker),
        since_ms=every[first].minted_at_ms,
        until_ms=until,
    )
    assert (found.verdict, found.findings) == ("exact", ())
    assert seqs(found) == (first, min(behind - 1, LAST))
    assert LANE in found.proved


@BOTH_WAYS
def test_of_a_time_without_seals_nothing_is_in_question(shop: House) -> None:
    every = seals(shop)
    since = every[3].minted_at_ms + 1
    assert since < every[4].minted_at_ms
    found = audited(shop.store, MemoryClient(shop.broker), since_ms=since, until_ms=since + 1)
    assert (found.verdict, seqs(found), found.inputs) == ("exact", (None, None), 0)
    found = audited(shop.store, MemoryClient(shop.broker), until_ms=every[0].minted_at_ms)
    assert (found.verdict, found.ranges, found.unproved) == ("unproved", (), {})


def test_inputs_that_no_lane_writes_are_read_up_to_the_range(shop: House) -> None:
    found, whole = in_range(shop, MIDDLE), audited(shop.store, MemoryClient(shop.broker))
    outputs = len(shop.sent("out"))
    assert found.records == 2 * CUT + outputs
    assert whole.records > found.records


def test_digests_of_a_range_are_those_of_its_seals(shop: House) -> None:
    whole = audited(shop.store, MemoryClient(shop.broker))
    parts = [in_range(shop, span(at, at + CUT - 1)) for at in range(0, LAST * CUT, CUT)]
    sums = [one.sums for part in parts for one in part.buckets[LANE].values()]
    (of_all,) = whole.buckets[LANE].values()
    assert tuple(sum(words) % (1 << 64) for words in zip(*sums, strict=True)) == of_all.sums


# Damage -------------------------------------------------------------------------------------------


def other_value(world: World, seq: int) -> None:
    source, offset = world.sent(LANE, seq)
    record = world.broker.partitions[source][offset]
    world.put_record(source, offset, record._replace(value=b"another"))


def lost(world: World, seq: int) -> None:
    world.put_record(*world.sent(LANE, seq), None)


def miscounted(world: World, seq: int) -> None:
    counts = world.seal(LANE, seq).counts
    world.put_seal(LANE, seq, counts=replace(counts, read=counts.read + 1, fresh=counts.fresh + 1))


def forgotten_id(world: World, seq: int) -> None:
    (part,) = world.parts(LANE, seq)
    fewer = replace(part, ids=part.ids[16:])
    world.put_parts(LANE, seq, (fewer,), part.count - 1)


def torn(world: World, seq: int) -> None:
    place = (LANE, world.store.tables.lanes[LANE].ref.incarnation, seq)
    world.store.tables.entries[place] = flipped(world.store.tables.entries[place])


def gone(world: World, seq: int) -> None:
    world.drop_seal(LANE, seq)


def input_gone(world: World, seq: int) -> None:
    source = world.topic("in")
    world.put_record(source, (seq - 1) * CUT + 1, None)


INSIDE = [
    (other_value, Kind.PAYLOAD),
    (lost, Kind.LOST),
    (miscounted, Kind.COUNTS),
    (forgotten_id, Kind.PARENT),
    (torn, Kind.UNREADABLE),
    (gone, Kind.ENTRY_GAP),
    (input_gone, Kind.NEVER_INPUT),
]


@pytest.mark.parametrize("seq", range(1, LAST + 1))
@pytest.mark.parametrize(("damage", "kind"), INSIDE)
@BOTH_WAYS
def test_damage_is_found_in_its_range_and_in_no_other(
    shop: House, damage: Callable[[World, int], None], kind: Kind, seq: int
) -> None:
    damage(World(shop.broker, shop.store), seq)
    found = in_range(shop, MIDDLE, ways={"": "header:id"})
    if FIRST_SEQ <= seq <= LAST_SEQ or (damage in {torn, gone} and seq in {2, 5}):
        # Whether an entry beside the range is of it, nobody knows that cannot read it.
        assert (found.verdict, {finding.lane for finding in found.findings}) == ("broken", {LANE})
        assert kind in {finding.kind for finding in found.findings}
        assert all(mentioned(finding.subject, seq) for finding in found.findings)
    elif damage in {torn, gone} and seq < FIRST_SEQ:
        assert (found.verdict, found.findings) == ("unproved", ())
        assert "audit the lane without a range" in found.unproved[LANE]
    else:
        assert (found.verdict, found.findings) == ("exact", ())


def mentioned(subject: str, seq: int) -> bool:
    said = re.findall(r"(?:seal|entry) (\d+)", subject)
    return not said or str(seq) in said


@pytest.mark.parametrize("seq", [1, 6])
@BOTH_WAYS
def test_a_second_version_of_an_input_in_the_range_is_found(shop: House, seq: int) -> None:
    """Whatever seal it names."""
    world = World(shop.broker, shop.store)
    at = world.sent(LANE, seq)
    minted = world.seal(LANE, seq).minted_at_ms
    world.again(at, id=b"f" * 16, parent=(0, 12), seq=seq, minted_at_ms=minted)
    found = in_range(shop, MIDDLE)
    assert [finding.kind for finding in found.findings] == [Kind.TWO_VERSIONS]
    assert in_range(shop, span(20, 24)).verdict == "exact"
    assert audited(shop.store, MemoryClient(shop.broker)).verdict == "broken"


@BOTH_WAYS
def test_a_record_of_nobody_belongs_to_every_range(shop: House) -> None:
    shop.broker.append(shop.source("out"), shop.sent()[0]._replace(headers=()))
    for asked in (MIDDLE, span(0, 4), span(25)):
        found = in_range(shop, asked)
        assert [finding.kind for finding in found.findings] == [Kind.STRANGER]


@BOTH_WAYS
def test_a_repeat_of_what_was_before_the_range_is_known(shop: House) -> None:
    """It took effect in the first seal; that it must not do so again, only the catalog says."""
    world = World(shop.broker, shop.store)
    source = world.topic("in")
    (repeated, *_) = shop.sent("in")
    # The range holds another record where the catalog says there was one of an id of its own.
    record = world.broker.partitions[source][12]
    world.put_record(source, 12, record._replace(headers=repeated.headers))
    assert in_range(shop, MIDDLE, ways={"": "header:id"}).verdict == "broken"


@BOTH_WAYS
def test_repeats_may_differ_from_what_was_before_the_range(shop: House) -> None:
    for _ in range(2):
        record = Record(value=b"another", headers=(("id", b"r0-0"),))
        shop.broker.append(shop.source(), record)
    shop.done()
    counts = seals(shop)[LAST + 1].counts
    assert counts.duplicate == 2
    World(shop.broker, shop.store).put_seal(LANE, LAST + 1, counts=replace(counts, conflict=2))
    assert in_range(shop, span(30)).verdict == "exact"


#: What a range says nothing about: what is due by now, ids in the list that are of seals outside of
#: it, and when a lane learned what it has read.
BELIEVED = {
    "sealed_and_not_acknowledged",
    "input_left_over",
    "merged_id_of_another_seal",
    "merged_ids_of_an_abandoned_history",
    "id_in_the_list_and_decided_behind_it",
    "duplicate_called_a_remnant_before_its_sender_was_read",
}


def test_no_damage_hides_between_two_ranges() -> None:
    """Whatever is planted, not both halves of all lanes are exact."""
    world = chain()
    minted = sorted(
        world.seal(lane, seq).minted_at_ms for lane in world.store.lanes() for seq in range(4)
    )
    hidden = set()
    for case in DAMAGE:
        damaged = world.copy()
        case.values[0](damaged)
        client, ways = MemoryClient(damaged.broker), {"": "header:id"}
        verdicts = {
            audited(damaged.store, client, ways=ways, **half).verdict
            for half in ({"until_ms": minted[6]}, {"since_ms": minted[6]})
        }
        hidden |= {case.id} if verdicts == {"exact"} else set()
    assert hidden <= BELIEVED


# What cannot be said ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "verdict", "said"),
    [
        (span(30, 40), "unproved", "none of these offsets is sealed yet"),
        (span(99), "unproved", "none of these offsets is sealed yet"),
        (span(25, 30), "unproved", "in/0/25..30 was asked for, and sealed up to 30; what is"),
        (span(25, 29), "exact", None),
    ],
)
@BOTH_WAYS
def test_offsets_that_were_never_sealed_are_not_called_proved(
    shop: House, asked: Offsets, verdict: str, said: str | None
) -> None:
    shop.write("waits", "waits too")
    found = in_range(shop, asked)
    assert (found.verdict, found.findings) == (verdict, ())
    assert (LANE in found.proved) == (said is None)
    assert said is None or said in found.unproved[LANE]
    other_value(World(shop.broker, shop.store), LAST)
    assert in_range(shop, asked).verdict == ("broken" if asked.first == 25 else verdict)


def test_offsets_from_before_a_lane_began_are_not_called_proved() -> None:
    house = House(MemoryStore())
    house.write(*"abcdef")
    runner = house.runner()
    assert house.run(runner, start=4).end.name == "DONE"
    assert "before the one at which the lane began" in in_range(house, span(0, 3)).unproved[LANE]
    found = in_range(house, span(2, 5))
    assert (found.verdict, found.inputs) == ("exact", 2)


def test_seals_that_were_collected_are_not_called_proved(shop: House) -> None:
    for lane in (LANE, SECOND):
        tidy(shop.catalog(), lane, Rules(entries_ms=0), NOW_MS, perform=True)
    shop.write(*(f"new {at}" for at in range(CUT)), "r0-0")
    shop.done(shop.runner())
    for asked in ({"offsets": (MIDDLE,)}, {"until_ms": seals(shop)[0].minted_at_ms}):
        found = audited(shop.store, MemoryClient(shop.broker), **asked)
        assert found.verdict == "unproved"
        assert "--keep-entries" in found.unproved[LANE]
    found = in_range(shop, span(30, 35))
    assert (found.verdict, seqs(found), dict(found.looked_closer)) == ("exact", (0, 7), {})


def test_seals_whose_ids_are_listed_are_proved_without_a_closer_look(shop: House) -> None:
    """What the list holds of seals in the range is not what was decided before it."""
    tidied = MemoryStore(shop.store.tables.copy())
    tidy(Catalog(tidied), LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    # As a collector leaves it that dies before it deletes entries.
    assert shop.store.replace_list(LANE, None, *tidied.read_list(LANE))
    for slot in tidied.slots(Blob.SEGMENT, LANE):
        shop.store.put(Blob.SEGMENT, slot, tidied.get(Blob.SEGMENT, slot))
    assert shop.catalog().segment_list(LANE).upto == LAST
    assert audited(shop.store, MemoryClient(shop.broker)).verdict == "exact"
    for asked in (MIDDLE, span(last=12), span(20)):
        found = in_range(shop, asked)
        assert (found.verdict, dict(found.looked_closer)) == ("exact", {})


@BOTH_WAYS
def test_records_outside_the_range_may_be_gone(shop: House) -> None:
    source = shop.source("in")
    log = shop.broker.partitions[source]
    shop.broker.partitions[source] = (*[None] * 10, *log[10:])
    client = MemoryClient(shop.broker, {source: 10})
    assert audited(shop.store, client, offsets=(MIDDLE,)).verdict == "exact"
    assert "begins at 10" in audited(shop.store, client, offsets=(span(9, 12),)).unproved[LANE]
    # Where nothing was sealed, nothing is missing.
    since = seals(shop)[1].minted_at_ms + 1
    assert audited(shop.store, client, since_ms=since, until_ms=since + 1).verdict == "exact"


def test_what_no_lane_reads_is_refused(shop: House) -> None:
    for wrong in (Offsets(topic="out", partition=7), Offsets(topic="orders", partition=0)):
        with pytest.raises(InvalidUsage, match="they read in/0, out/0"):
            in_range(shop, MIDDLE, wrong)
