"""A stage under a new name is told from every stage that begins as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dedup.backup import renewed
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from delivery import Delivery
from delivery.host.renamed import declared, refuse_renamed
from delivery.operate.accepting import let_begin
from delivery.protocol.rest import Kind, Rest
from delivery.stage import Function
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient

PRICE = "shop/price/in-0"
TOPICS = ("in2", "out2", "dead", "shop.price.by-id", "shop.cost.by-id")


@pytest.fixture
def house() -> House:
    """A stage that reads in and writes out, and has sealed and sent."""
    made = House(MemoryStore())
    for topic in TOPICS:
        made.broker.create(topic)
    made.write(*"abcd")
    made.done(made.runner(PRICE))
    return made


def started(house: House, *stages: Callable[[Delivery], object], pipeline: str = "shop") -> None:
    """Start a pipeline that declares these, as far as names go."""
    delivery = Delivery(catalog="memory:", kafka="127.0.0.1:9", pipeline=pipeline)
    for declare in stages:
        declare(delivery)
    topics = MemoryClient(house.broker).describe(list(house.broker.names))
    with house.untouched():
        refuse_renamed(house.catalog(), declared(delivery.stages, topics))


def stage(
    name: str, reads: str = "in", writes: str | tuple[str, ...] = "out", **more: object
) -> Callable[[Delivery], object]:
    return lambda delivery: delivery.stage(name=name, reads=reads, writes=writes, **more)(str)


def rest(house: House, kind: Kind, verb: str) -> None:
    """Put the stage to rest."""
    catalog = house.catalog()
    row = catalog.load(PRICE)
    resting = renewed(row, house.fresh)
    state = Rest(kind=kind, verb=verb, said=(("to", "cost"),)).encode()
    resting = replace(resting, head=replace(resting.head, state=state))
    assert catalog.reincarnate(PRICE, row.head.ref, resting)


def test_a_stage_under_a_new_name_is_refused_by_the_verbs_that_there_are(house):
    with pytest.raises(InvalidUsage) as refused:
        started(house, stage("cost"))
    said = str(refused.value)
    assert "shop/price, which did, reads in and writes out as well" in said
    assert "count twice" in said
    assert "`delivery stage rename memory: shop/price cost --kafka ...`" in said
    assert "`delivery stage retire memory: shop/price --kafka ...`" in said
    assert "`delivery catalog accept memory: --stage shop/cost`" in said


def test_a_new_name_is_seen_whatever_else_of_the_stage_changed(house):
    with pytest.raises(InvalidUsage, match="another name"):
        started(house, stage("cost", writes=("out2", "out"), dead_letters="dead", start="latest"))


def test_a_stage_more_is_none_with_a_new_name(house):
    started(house, stage("price"), stage("cost"))


def test_a_stage_that_the_catalog_knows_is_no_new_name(house):
    house.done(house.runner("shop/cost/in-0"))
    started(house, stage("cost"))


def test_another_input_or_output_is_another_stage(house):
    started(house, stage("cost", reads="in2"))
    started(house, stage("cost", writes="out2"))
    started(house, stage("cost", writes=()))
    started(house, stage("cost", writes="files:/nowhere"))


def test_stages_may_share_a_topic_of_dead_letters(house):
    house.done(house.runner("shop/letters/in-0", writes=("out2", "dead")))
    started(house, stage("price"), stage("cost", writes="out", dead_letters="dead"))


def test_another_pipeline_that_does_the_same_may_be_this_one_by_its_old_name(house):
    with pytest.raises(InvalidUsage) as refused:
        started(house, stage("price"), pipeline="shop2")
    said = str(refused.value)
    assert "shop2/price: it never ran, and shop/price of another pipeline in this catalog" in said
    assert "which did, reads in and writes out as well" in said
    assert "count twice" in said
    assert 'old name back, pipeline="shop".' in said
    assert "`delivery stage retire memory: shop/price --kafka ...`" in said
    assert "`delivery catalog accept memory: --stage shop2/price`" in said
    assert "rename" not in said, "that verb keeps a stage in its pipeline"


def test_another_pipeline_whose_stage_has_another_name_is_told_both_names(house):
    with pytest.raises(InvalidUsage, match='pipeline="shop", name="price"'):
        started(house, stage("cost"), pipeline="other")


def test_its_own_pipeline_is_the_surer_guess(house):
    house.done(house.runner("a-pipeline/price/in-0"))
    with pytest.raises(InvalidUsage, match=r"shop/price, which did.*delivery stage rename"):
        started(house, stage("cost"))


def test_another_pipeline_that_shares_one_end_is_another_one(house):
    started(house, stage("price", writes="out2"), pipeline="other")
    started(house, stage("price", reads="in2"), pipeline="other")
    started(house, stage("price", writes=()), pipeline="other")
    started(house, stage("cost", writes="out2", dead_letters="out"), pipeline="other")


def test_receivers_of_another_pipeline_are_in_nobodys_way():
    house = House(MemoryStore())
    house.write("a")
    house.done(house.runner("shop/billing/in-0", writes=(), stage=Function(lambda _: [])))
    started(house, stage("price"), pipeline="other")


def test_both_pipelines_run_where_that_is_said(house):
    let_begin(house.catalog(), "other/price", perform=True)
    started(house, stage("price"), pipeline="other")


def test_a_pipeline_that_began_beside_another_one_goes_on(house):
    house.done(house.runner("other/price/in-0"))
    started(house, stage("price"), pipeline="other")


def test_receivers_of_any_name_are_no_stages(house):
    house.done(house.runner("shop/billing/in2-0", reads="in2", writes=()), topic="in2")
    started(house, stage("price"), stage("cost", reads="in2", writes="out2"))


def test_a_lane_that_never_sealed_has_nothing_to_double():
    house = House(MemoryStore())
    house.done(house.runner(PRICE))
    assert house.catalog().load(PRICE).head.ref.seq == 0
    started(house, stage("cost"))


def test_a_lane_that_began_elsewhere_counts_before_it_sealed():
    """A seed or start="latest" said where it begins, and the new name knows nothing of that."""
    house = House(MemoryStore())
    house.write(*"ab")
    house.run(house.runner(PRICE), start=2)
    assert house.catalog().load(PRICE).head.ref.seq == 0
    with pytest.raises(InvalidUsage, match="delivery stage rename"):
        started(house, stage("cost"))


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (Kind.RETIRED, "retire"),
        (Kind.LEFT, "leave"),
        (Kind.RENAMED, "rename"),
        (Kind.REKEYED, "change-dedup"),
        (Kind.MOVED, "migrate"),
    ],
)
def test_a_stage_at_rest_makes_room_for_another(house, kind, verb):
    rest(house, kind, verb)
    started(house, stage("cost"))
    started(house, stage("price"), pipeline="other")


def test_a_verb_that_is_not_finished_is_finished_first(house):
    rest(house, Kind.UNDER_WAY, "rename")
    with pytest.raises(InvalidUsage, match="shop/price: `delivery stage rename` was begun"):
        started(house, stage("cost"))


def test_both_run_where_that_is_said(house):
    let_begin(house.catalog(), "shop/cost", perform=True)
    started(house, stage("cost"))
    with pytest.raises(InvalidUsage, match="delivery stage rename"):
        started(house, stage("value"))


def test_a_new_name_is_seen_through_re_keying():
    """The internal topics have the stage's name; input and output are those of the two as one."""
    house = House(MemoryStore())
    for topic in TOPICS:
        house.broker.create(topic)
    house.write(*"ab")
    by_id = "shop.price.by-id"
    house.done(house.runner("shop/price.by-id/in-0", writes=(by_id,)))
    house.done(house.runner(f"shop/price/{by_id}-0", reads=by_id), topic=by_id)
    started(house, stage("price", dedup="topic"))
    with pytest.raises(InvalidUsage, match="shop/price, which did, reads in and writes out"):
        started(house, stage("cost", dedup="topic"))
    with pytest.raises(InvalidUsage, match="shop/price, which did, reads in and writes out"):
        started(house, stage("cost"))
