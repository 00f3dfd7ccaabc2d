"""The story of a record: every fate, every loser and every copy is told as it was planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from dedup.ids import named
from dedup.model import Incarnation, RecordId
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.operate.accepting import accept
from delivery.operate.compaction import Rules, tidy
from delivery.operate.explaining import explain
from delivery.operate.finding import id_of_name, places_of_id
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id
from delivery.operate.story import Story
from delivery.records import Record
from tests.unit.collect_kit import raced
from tests.unit.house import LANE, WINDOW_MS, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, again, chained, read_on

NOW_MS = 1_800_000_000_000


def story(house: House, topic: str, offset: int, partition: int = 0) -> Story:
    cluster = Cluster(MemoryClient(house.broker))
    return explain(Catalog(house.store), cluster, topic, partition, offset)


def header_of(record: Record) -> Header:
    found = decode_header(record.header(NAME) or b"")
    assert found is not None
    return found


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


@pytest.mark.parametrize("collected", [False, True])
def test_every_record_is_told(shop: House, *, collected: bool) -> None:
    """With the outputs as they are stored, and with nothing but what is in the topic."""
    if collected:
        tidy(shop.catalog(), LANE, Rules(entries_ms=10**13), NOW_MS, perform=True)
    sent = {header_of(record).parent[1]: record for record in shop.sent()}
    for offset in range(30):
        told = story(shop, "in", offset)
        (reading,) = told.readings
        assert (reading.lane, reading.seq) == (LANE, 1 + offset // 5)
        assert told.origin is None
        if offset % 10 == 9:
            assert (reading.fate, reading.named) == ("duplicate", "header:id")
            assert reading.original is not None
            assert (reading.original.seq, reading.original.place) == (1, (0, 0))
            assert reading.outputs == ()
            continue
        record = sent[offset]
        (output,) = reading.outputs
        assert (output.id, output.topic) == (header_of(record).id.hex(), "out")
        (copy,) = output.copies
        assert (copy.offset, dict(copy.receivers)) == (record.offset, {SECOND: "fresh"})


def test_copies_and_what_receivers_made_of_them(shop: House) -> None:
    shop.write("more")
    shop.done()
    copies = [shop.sent()[-1].offset, again(shop, -1)]
    remnant = again(shop, 0)
    read_on(shop)
    (output,) = story(shop, "in", 30).readings[0].outputs
    assert [(copy.offset, dict(copy.receivers)) for copy in output.copies] == [
        (copies[0], {SECOND: "fresh"}),
        (copies[1], {SECOND: "duplicate"}),
    ]
    (output,) = story(shop, "in", 0).readings[0].outputs
    assert [dict(copy.receivers) for copy in output.copies] == [
        {SECOND: "fresh"},
        {SECOND: "remnant"},
    ]
    told = story(shop, "out", remnant)
    assert [(one.lane, one.fate) for one in told.readings] == [(SECOND, "remnant")]
    told = story(shop, "out", copies[1])
    (reading,) = told.readings
    assert (reading.fate, reading.named) == ("duplicate", "delivery")
    assert reading.original is not None
    assert reading.original.place == (0, copies[0])


@pytest.mark.parametrize("gap", [0, 9, 1_000])
def test_what_was_dropped_as_a_repeat_is_told_from_the_first_record(
    shop: House, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    """Whether repeats are read one by one or in one go."""
    monkeypatch.setattr("delivery.operate.repeats.GAP_OFFSETS", gap)
    (reading,) = story(shop, "in", 0).readings
    assert (reading.named, reading.repeats_upto) == ("header:id", 30)
    assert [(one.offset, one.seq) for one in reading.repeats] == [(9, 2), (19, 4), (29, 6)]
    assert story(shop, "in", 1).readings[0].repeats == ()
    shop.write("more")
    shop.done()
    first, copy = shop.sent()[-1].offset, again(shop, -1)
    read_on(shop)
    (reading,) = story(shop, "out", first).readings
    assert reading.named == "delivery"
    assert [one.offset for one in reading.repeats] == [copy]


def test_repeats_are_looked_for_within_bounds(shop: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_OFFSETS_MAX", 10)
    (reading,) = story(shop, "in", 0).readings
    assert ([one.offset for one in reading.repeats], reading.repeats_upto) == ([9], 11)
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_OFFSETS_MAX", 30)
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_SEALS_MAX", 3)
    (reading,) = story(shop, "in", 0).readings
    assert ([one.offset for one in reading.repeats], reading.repeats_upto) == ([9, 19], 20)


class Counting(MemoryClient):
    """Counts the records that are read of a topic."""

    def __init__(self, house: House) -> None:
        super().__init__(house.broker)
        self.lowest: dict[object, int] = {}

    def consumer(self, **given: Any) -> Any:
        made, lowest = super().consumer(**given), self.lowest
        add = made.add

        def counted(topic: str, positions: Any) -> None:
            for source, at in dict(positions).items():
                lowest[source] = min(at, lowest.get(source, at))
            add(topic, positions)

        made.add = counted  # type: ignore[method-assign]  a consumer that counts
        return made


@pytest.mark.parametrize("collected", [False, True])
def test_copies_are_looked_for_where_they_must_be(shop: House, *, collected: bool) -> None:
    """And only what is not there is looked for everywhere."""
    source = shop.source("out")
    marks = {record.offset: header_of(record).mark for record in shop.sent()}

    def stamped(later_ms: int) -> None:
        """Emit each seal's outputs five seconds after those of the one before."""
        shop.broker.partitions[source] = tuple(
            record
            and record._replace(timestamp_ms=mark.minted_at_ms + 5_000 * (mark.seq - 6) + later_ms)
            for record, mark in zip(shop.broker.partitions[source], marks.values(), strict=True)
        )

    if collected:
        tidy(shop.catalog(), LANE, Rules(entries_ms=10**13), NOW_MS, perform=True)
    sent = shop.sent()[-1]
    offset = header_of(sent).parent[1]

    def copies(**more: Any) -> tuple[list[int], int]:
        client = Counting(shop)
        told = explain(Catalog(shop.store), Cluster(client), "in", 0, offset, **more)
        (output,) = told.readings[0].outputs
        return [copy.offset for copy in output.copies], client.lowest[source]

    stamped(0)
    found, lowest = copies()
    assert (found, lowest > 0) == ([sent.offset], True)
    assert copies(whole=True) == ([sent.offset], 0)
    # A clock that was ten minutes late is allowed for; one that was an hour is searched for.
    stamped(-500_000)
    assert copies()[0] == [sent.offset]
    stamped(-3_600_000)
    assert copies() == ([sent.offset], 0)


def place(house: House, record_id: bytes) -> list[tuple[str, int, int]]:
    return places_of_id(
        Catalog(house.store), Cluster(MemoryClient(house.broker)), RecordId(record_id)
    )


def test_a_record_is_found_by_its_name_and_by_its_id(shop: House) -> None:
    assert place(shop, named(b"r0-0")) == [("in", 0, 0)]
    for record in shop.sent():
        assert place(shop, header_of(record).id) == [("out", 0, record.offset)]
    # What nobody reads is found by who made it.
    for record in shop.sent("end"):
        assert place(shop, header_of(record).id) == [("end", 0, record.offset)]
    with pytest.raises(InvalidUsage, match="no lane has decided it"):
        place(shop, b"x" * 16)
    source = shop.source()
    shop.broker.partitions[source] = (None,) * len(shop.broker.partitions[source])
    with pytest.raises(InvalidUsage, match="shop/price/0 seq 1"):
        place(shop, named(b"r0-0"))


def test_losers_are_told_with_what_they_had_made(house: House) -> None:
    raced(house)
    losers = dict(house.store.losers(LANE))
    assert losers
    for slot, digest in losers.items():
        row = house.catalog().load(LANE)
        seal = house.catalog().seal(LANE, row.head.ref.incarnation, slot.seq)
        offset = dict(seal.start)[house.source()]
        (reading,) = story(house, "in", offset).readings
        won, *lost = reading.attempts
        assert (won.won, won.attempt) == (True, seal.ref.attempt.hex())
        assert (slot.attempt.hex(), digest.hex()) in [(one.attempt, one.digest) for one in lost]
        assert not any(one.won for one in lost)


def test_where_a_record_comes_from_is_held_against_the_catalog(shop: House) -> None:
    record = shop.sent()[3]
    header = header_of(record)
    mark = header.mark
    told = story(shop, "out", 3).origin
    assert told is not None
    assert (told.lane, told.seq, told.parent) == (LANE, mark.seq, header.parent)
    assert told.standing == "sealed"
    assert told.attempt is not None

    def standing(**changes: Any) -> str:
        changed = encode_header(replace(header, mark=replace(mark, **changes)))
        offset = shop.broker.append(shop.source("out"), record._replace(headers=((NAME, changed),)))
        origin = story(shop, "out", offset).origin
        assert origin is not None
        return origin.standing.name

    assert standing() == "SEALED"
    assert standing(seq=99) == "UNSEALED"
    assert standing(minted_at_ms=1) == "UNSEALED"
    assert standing(sender="shop/nobody/0") == "STRANGER"
    assert standing(sender=SECOND) == "STRANGER"
    assert standing(incarnation=Incarnation(b"x" * 16)) == "ELSEWHERE"
    accept(shop.catalog(), shop.fresh, perform=True)
    assert standing(seq=99) == "ABANDONED"
    tidy(shop.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    assert standing() == "COLLECTED"


def test_what_kafka_does_not_hold_is_told_by_the_catalog(shop: House) -> None:
    source = shop.source("in")
    shop.broker.partitions[source] = (None, *shop.broker.partitions[source][1:])
    told = story(shop, "in", 0)
    assert (told.size, told.key, told.id) == (None, None, None)
    assert told.readings[0].fate == "fresh"
    assert len(told.readings[0].outputs) == 1
    assert story(shop, "in", 30).readings[0].fate == "pending"
    assert story(shop, "in", 0, partition=7).readings == ()


def test_what_was_not_emitted_has_no_copy(shop: House) -> None:
    shop.write("late")
    runner = shop.runner()
    shop.begin(runner)
    while shop.catalog().load(LANE).head.ref.seq == 6:
        assert shop.turn(runner)
    (output,) = story(shop, "in", 30).readings[0].outputs
    assert output.copies == ()


def test_telling_changes_nothing(shop: House) -> None:
    with shop.untouched():
        for offset in (0, 9, 29, 99):
            story(shop, "in", offset)
            story(shop, "out", offset)


def test_what_took_effect_again_after_the_window_has_repeats_of_its_own() -> None:
    """Sent, sent a moment later, sent long after the window, sent a moment later."""
    house = House(MemoryStore())
    sent = (("x", 0), ("x", 1), ("y", 2 * WINDOW_MS), ("z", 2 * WINDOW_MS), ("x", 1), ("x", 1))
    for name, later_ms in sent:
        house.now += later_ms
        house.write(name, timestamp_ms=house.now)
        house.done()
    catalog, cluster = house.catalog(), Cluster(MemoryClient(house.broker))
    told = {
        offset: explain(catalog, cluster, "in", 0, offset).readings[0] for offset in (0, 1, 4, 5)
    }
    fates = [str(one.fate) for one in told.values()]
    assert fates == ["fresh", "duplicate", "fresh", "duplicate"]
    for first, repeat in ((0, 1), (4, 5)):
        assert [one.offset for one in told[first].repeats] == [repeat]
        original = told[repeat].original
        assert original is not None
        assert (original.seq, original.place) == (told[first].seq, (0, first))
    # Whoever asks by its name is told of both.
    named = id_of_name(catalog, b"x", catalog.lanes())
    assert places_of_id(catalog, cluster, named) == [("in", 0, 0), ("in", 0, 4)]
    decisions, _ = look_up_id(catalog, named, catalog.lanes())
    assert [one.seq for one in decisions] == [told[0].seq, told[4].seq]
