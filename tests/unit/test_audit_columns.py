"""A proof over columns is never laxer than the checker of records, and goes on where it ended."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.catalog.catalog import Catalog
from dedup.errors import Corrupt, InvalidUsage
from dedup.formats.segment import BUCKET_MS
from delivery.checker import Kind
from delivery.checker.columns.base import HELD_WINDOWS
from delivery.header import NAME, decode_header, encode_header
from delivery.kafka.port import FETCH_BUFFER_BYTES_MAX
from delivery.kafka.ranges import SHORT_BUFFER_BYTES_MAX, SHORT_RECORDS_MAX
from delivery.naming import id_from
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.compaction import Rules, tidy
from delivery.operate.guessing import SAMPLE_MAX
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from delivery.operate.proved import load, save
from delivery.operate.proving import Proved
from delivery.records import Record
from delivery.stage import Policy
from tests.unit.checker.worlds import FIRST, LEFT, RIGHT, World, abandon
from tests.unit.checker.worlds import chained as chain
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained

NOW_MS = 1_800_000_000_000


def audited(
    house: House, proved: Proved | None = None, client: Any = None, **terms: Any
) -> Audited:
    catalog, cluster = Catalog(house.store), Cluster(client or MemoryClient(house.broker))
    return audit(catalog, cluster, chosen(catalog), Terms(**terms), proved=proved)


def go_on(house: House, number: int) -> None:
    """Seal, emit and read more, in both stages, a repeat of the first round included."""
    house.write(*(f"later {number} {at}" for at in range(6)), "r0-0")
    house.done(house.runner(), cut=3)
    house.done(
        house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out", cut=3
    )


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


# Nothing unusual is looked at twice ---------------------------------------------------------------


def test_a_clean_chain_is_proved_without_a_closer_look() -> None:
    world = chain()
    catalog = Catalog(world.store)
    found = audit(catalog, Cluster(MemoryClient(world.broker)), chosen(catalog), Terms())
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {})
    assert found.inputs > 0


@pytest.mark.parametrize("entries_ms", [0, None])
def test_a_compacted_catalog_is_proved_without_a_closer_look(
    shop: House, entries_ms: int | None
) -> None:
    rules = Rules() if entries_ms is None else Rules(entries_ms=entries_ms)
    for lane in (LANE, SECOND):
        tidy(shop.catalog(), lane, rules, NOW_MS, perform=True)
    go_on(shop, 1)
    found = audited(shop, finished=True)
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {})


def test_records_that_could_not_be_named_are_proved_without_a_closer_look(house: House) -> None:
    house.broker.create("dead")
    for value in (b"{", b'{"id": "a"}', b"{", b'{"id": "a"}', b"[1]"):
        house.broker.append(house.source(), Record(value=value))
    letters, named = Policy(dead_letter_edge=1), id_from("json:id")
    house.done(house.runner(writes=("out", "dead"), policy=letters, id_from=named))
    found = audited(house, finished=True)
    assert (found.verdict, found.findings, dict(found.looked_closer)) == ("exact", (), {})
    assert audited(house, ways={"": "json:id"}, finished=True).verdict == "exact"
    assert found.inputs == 5


#: In a process of its own: this one has long imported whatever the tests need.
_AUDITS = """
import sys
from dedup.catalog.catalog import Catalog
from delivery.operate.auditing import Terms, audit
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from tests.unit.checker.worlds import chained
from tests.unit.memory_kafka import MemoryClient
world = chained()
catalog = Catalog(world.store)
print(audit(catalog, Cluster(MemoryClient(world.broker)), chosen(catalog), Terms()).verdict)
print("pandas" in sys.modules)
"""


def test_an_audit_does_not_import_pandas() -> None:
    """Half a second of each, whatever it proves."""
    ended = subprocess.run(
        [sys.executable, "-c", _AUDITS], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("exact\nFalse\n", "")


class Buffered(MemoryClient):
    """Remembers how much its consumers may fetch ahead."""

    def __init__(self, house: House) -> None:
        super().__init__(house.broker)
        self.buffers: list[int] = []

    def consumer(self, **given: Any) -> Any:
        self.buffers.append(given["buffer_bytes"])
        return super().consumer(**given)


def test_records_that_only_tell_how_others_are_named_are_few(house: House) -> None:
    """Of many seals one is read for that, without what a consumer fetches ahead of a whole topic."""
    house.write(*(f"r{at}" for at in range(SHORT_RECORDS_MAX + 1)))
    house.done(house.runner(), cut=SAMPLE_MAX)
    client = Buffered(house)
    assert audited(house, client=client, finished=True).verdict == "exact"
    assert client.buffers == [SHORT_BUFFER_BYTES_MAX, *2 * [FETCH_BUFFER_BYTES_MAX]]


# From where the last one ended --------------------------------------------------------------------


def test_the_next_audit_reads_what_came_since(shop: House) -> None:
    first = audited(shop)
    assert audited(shop, first.next).inputs == 0
    go_on(shop, 1)
    found = audited(shop, first.next, finished=True)
    assert (found.verdict, found.findings, dict(found.looked_closer)) == ("exact", (), {})
    assert 0 < found.inputs < first.inputs
    assert found.records < first.records
    whole = audited(shop)
    assert {
        lane: sum(b.inputs for b in of.values()) for lane, of in found.next.buckets.items()
    } == {lane: sum(b.inputs for b in of.values()) for lane, of in whole.next.buckets.items()}
    assert found.next.buckets == whole.next.buckets


def test_the_next_audit_goes_on_though_old_records_are_gone(shop: House) -> None:
    """Which a whole one could not."""
    first = audited(shop)
    lows = {}
    for name in ("in", "out", "end"):
        source = shop.source(name)
        lows[source] = len(shop.broker.partitions[source])
        shop.broker.partitions[source] = (None,) * lows[source]
    go_on(shop, 1)
    client = MemoryClient(shop.broker, lows)
    assert audited(shop, first.next, client).verdict == "exact"
    assert audited(shop, None, client).verdict == "unproved"


def test_a_known_repeat_that_takes_effect_again_is_found(shop: House) -> None:
    """Its first record was proved long ago: only the remembered ids know it."""
    first = audited(shop)
    named = shop.sent("in")[0]
    shop.write("new")
    shop.done(shop.runner(), cut=1)
    source = shop.source()
    log = shop.broker.partitions[source]
    shop.broker.partitions[source] = (*log[:-1], log[-1]._replace(headers=named.headers))
    found = audited(shop, first.next)
    assert found.verdict == "broken"


@pytest.mark.parametrize("change", ["value", "seq", "id"])
def test_a_late_copy_of_what_was_proved_must_be_the_same(shop: House, change: str) -> None:
    first = audited(shop)
    source, record = shop.source("out"), shop.sent("out")[0]
    shop.broker.append(source, record)
    assert audited(shop, first.next).verdict == "exact"
    header = decode_header(record.header(NAME) or b"")
    assert header is not None
    if change == "value":
        record = record._replace(value=b"another")
    elif change == "seq":
        header = replace(header, mark=replace(header.mark, seq=header.mark.seq + 1))
    else:
        header = replace(header, id=b"f" * 16)
    headers = (*record.headers[:-1], (NAME, encode_header(header)))
    shop.broker.append(source, record._replace(headers=headers))
    found = audited(shop, first.next)
    assert found.verdict == "broken"
    assert found.findings[0].kind in {Kind.PAYLOAD, Kind.NOT_OF_SEAL}


def test_a_doubt_is_a_finding_where_nobody_can_look_closer(shop: House) -> None:
    first = audited(shop)
    source = shop.source()
    low = len(shop.broker.partitions[source])
    shop.broker.partitions[source] = (None,) * low
    go_on(shop, 1)
    log = shop.broker.partitions[source]
    shop.broker.partitions[source] = (*log[:-2], None, log[-1])
    found = audited(shop, first.next, MemoryClient(shop.broker, {source: low}))
    assert found.verdict == "broken"
    assert {finding.lane for finding in found.findings} == {LANE}
    assert [finding.kind for finding in found.findings] == [Kind.NEVER_INPUT]


def test_a_range_is_proved_on_the_word_of_the_catalog_for_what_was_before(shop: House) -> None:
    seals = shop.catalog().seals(LANE, shop.catalog().load(LANE).head.ref.incarnation, 0, 99)
    found = audited(shop, since_ms=seals[3].minted_at_ms)
    whole = audited(shop)
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {})
    assert 0 < found.inputs < whole.inputs


# What was unusual is remembered ---------------------------------------------------------------------


def test_a_lane_that_was_found_right_by_a_closer_look_is_proved_from_there_on() -> None:
    """It dropped records of an abandoned history: a closer look each time would read all of it."""
    world = World()
    world.broker.create("in")
    world.broker.create("mid", 2)
    world.broker.create("out", 2)
    source = world.topic("in")
    mids = world.broker.sources("mid")

    def write(first: int, last: int) -> None:
        for i in range(first, last):
            record = Record(key=b"k%d" % i, value=b"%d" % i, headers=(("id", b"order-%d" % i),))
            world.broker.append(source, record)

    def ship(starts: list[int]) -> list[int]:
        ends = [len(world.broker.partitions[mid]) for mid in mids]
        for lane, mid, start, end in zip((LEFT, RIGHT), mids, starts, ends, strict=True):
            world.run(lane, mid, "out", ((start, end),), (FIRST,))
        return ends

    def proved(before: Proved | None) -> Audited:
        catalog, cluster = Catalog(world.store), Cluster(MemoryClient(world.broker))
        return audit(catalog, cluster, chosen(catalog), Terms(finished=True), proved=before)

    write(0, 8)
    world.run(FIRST, source, "mid", ((0, 4), (4, 8)))
    abandon(world, FIRST, 1)
    world.run(FIRST, source, "mid", ((4, 8),))
    ends = ship([0, 0])
    first = proved(None)
    assert (first.verdict, set(first.looked_closer)) == ("exact", {FIRST, LEFT, RIGHT})
    assert set(first.next.bases) == {FIRST, LEFT, RIGHT}
    again = proved(first.next)
    assert (again.verdict, dict(again.looked_closer), again.inputs) == ("exact", {}, 0)
    write(8, 12)
    world.run(FIRST, source, "mid", ((8, 12),))
    ship(ends)
    later = proved(first.next)
    assert (later.verdict, dict(later.looked_closer)) == ("exact", {})
    whole = proved(None)
    assert later.next.buckets == whole.next.buckets
    for lane, base in whole.next.bases.items():
        assert np.array_equal(base.decided, later.next.bases[lane].decided)
        assert sorted(base.sent.tolist()) == sorted(later.next.bases[lane].sent.tolist())


# What is remembered does not grow for ever -----------------------------------------------------------

WINDOW = 6 * BUCKET_MS


def test_ids_are_remembered_as_long_as_they_can_be_repeated(house: House) -> None:
    house.broker.create("end")
    proved, start = None, 1_600_000_200_000 // BUCKET_MS * BUCKET_MS
    counts = []
    for number in range(3 * HELD_WINDOWS * WINDOW // BUCKET_MS):
        house.write(f"r{number}", "often", timestamp_ms=start + number * BUCKET_MS)
        house.done(house.runner(window_ms=WINDOW))
        house.done(house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out")
        found = audited(house, proved, windows={"": WINDOW})
        assert (found.verdict, dict(found.looked_closer)) == ("exact", {}), number
        proved = found.next
        counts.append([len(proved.bases[lane].decided) for lane in (LANE, SECOND)])
    most = HELD_WINDOWS * WINDOW // BUCKET_MS
    assert counts[-1][0] <= most + 1 + most // (WINDOW // BUCKET_MS) + 1
    assert counts[-1][1] <= 4, "all others are known to be remnants"
    # A remnant is known for one though its id is forgotten.
    house.broker.append(house.source("out"), house.sent()[0])
    house.write("last", timestamp_ms=start)
    house.done(house.runner(window_ms=WINDOW))
    house.done(house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out")
    found = audited(house, proved, windows={"": WINDOW}, finished=True)
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {})


def test_outputs_are_remembered_as_long_as_their_topic_has_them(shop: House) -> None:
    first = audited(shop)
    outputs = len(first.next.bases[LANE].sent)
    source = shop.source("out")
    old = shop.sent()[0]
    shop.broker.partitions[source] = (None, None, *shop.broker.partitions[source][2:])
    client = MemoryClient(shop.broker, {source: 2})
    assert audited(shop, first.next, client).next == first.next, "nothing to write to the file"
    go_on(shop, 1)
    found = audited(shop, first.next, client)
    fresh = len(shop.sent()) + 2 - outputs
    assert len(found.next.bases[LANE].sent) == outputs - 2 + fresh
    assert found.next.bases[LANE].forgotten == 1
    shop.broker.append(source, old)
    assert audited(shop, found.next, client).verdict == "exact"
    header = decode_header(shop.sent()[0].header(NAME) or b"")
    assert header is not None
    forged = replace(header, id=b"f" * 16, mark=replace(header.mark, seq=2))
    shop.broker.append(source, old._replace(headers=((NAME, encode_header(forged)),)))
    assert audited(shop, found.next, client).verdict == "broken"


# The file -----------------------------------------------------------------------------------------


def test_what_was_proved_survives_in_a_file(shop: House, tmp_path: Path) -> None:
    file = tmp_path / "shop.proved"
    assert load(file, "memory:").bases == {}
    first = audited(shop)
    save(file, "memory:", first.next)
    again = load(file, "memory:")
    assert again.positions == first.next.positions
    assert again.named == first.next.named
    assert again.buckets == first.next.buckets
    go_on(shop, 1)
    found = audited(shop, again)
    assert (found.verdict, dict(found.looked_closer)) == ("exact", {})
    with pytest.raises(InvalidUsage, match="it is of catalog memory:"):
        load(file, "sqlite:other.db")
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(Corrupt, match="name another one"):
        load(file, "memory:")


def test_a_lane_restored_since_is_not_taken_for_the_one_that_was_proved(shop: House) -> None:
    first = audited(shop)
    base = first.next.bases[LANE]
    other = replace(base, ref=replace(base.ref, attempt=b"x" * 16))
    first.next.bases[LANE] = other
    go_on(shop, 1)
    found = audited(shop, first.next)
    assert "not the one that was proved" in found.looked_closer[LANE]
    assert found.verdict == "exact"
