"""A stage that is declared with other outputs is told which it had, and what can be done."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.backup import renewed
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from delivery import Delivery
from delivery.host import starting
from delivery.host.frozen_outputs import refuse_other_outputs
from delivery.host.starting import prepare
from delivery.protocol import messages as m
from delivery.protocol.rest import Kind, Rest
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient

PRICE = "shop/price/in-0"


@pytest.fixture
def house() -> House:
    """A stage that reads in and writes out, and was only begun."""
    made = House(MemoryStore())
    made.broker.create("dead")
    made.done(made.runner(PRICE))
    return made


def started(house: House, **said: object) -> None:
    """Start the stage as it is declared here, as far as its outputs go."""
    delivery = Delivery(catalog="memory:", kafka="127.0.0.1:9", pipeline="shop")
    delivery.stage(**{"reads": "in", "writes": "out", "name": "price"} | said)(str)
    client = MemoryClient(house.broker)
    topics = client.describe(client.names())
    with house.untouched():
        for spec in delivery.stages:
            refuse_other_outputs(house.catalog(), client, spec, topics)


def test_an_output_more_is_refused_by_name_and_with_a_way_to_have_it(house):
    with pytest.raises(InvalidUsage) as refused:
        started(house, dead_letters="dead")
    said = str(refused.value)
    assert said.startswith("start a stage: shop/price: ")
    assert "begun with the outputs out, and it is declared now with out, dead" in said
    assert "`delivery stage leave memory: shop/price --kafka ...`" in said
    assert 'd.seed("NAME", topic="in", start=OFFSETS)' in said
    assert "accept-topic" not in said


def test_an_output_less_is_refused_by_name(house):
    house.done(house.runner("shop/cost/in-0", writes=("out", "dead")))
    with pytest.raises(InvalidUsage, match=r"the outputs out, dead, and .* declared now with out "):
        started(house, name="cost")
    with pytest.raises(InvalidUsage, match="declared now with none"):
        started(house, writes=())


def test_the_order_of_outputs_is_theirs(house):
    house.done(house.runner("shop/cost/in-0", writes=("out", "dead")))
    with pytest.raises(InvalidUsage, match=r"outputs out, dead, .* declared now with dead, out "):
        started(house, name="cost", writes=("dead", "out"))
    started(house, name="cost", writes=("out", "dead"))
    started(house, name="cost", dead_letters="dead")


def test_an_output_that_was_made_anew_is_said_how_to_accept(house):
    del house.broker.names["out"]
    house.broker.create("out")
    with pytest.raises(InvalidUsage) as refused:
        started(house)
    said = str(refused.value)
    assert "one that is no topic of this cluster" in said
    assert "Was out deleted and created again, and is that meant?" in said
    assert (
        "`delivery stage accept-topic memory: out --written-by shop/price --kafka ...`. "
        "Otherwise declare it with those"
    ) in said


@pytest.mark.parametrize("said", [{}, {"name": "cost", "dead_letters": "dead"}])
def test_the_same_outputs_and_stages_that_never_ran_are_left_alone(house, said):
    started(house, **said)


def test_what_cannot_be_told_here_is_left_to_the_lane(house):
    started(house, writes="files:/nowhere")
    with pytest.raises(InvalidUsage, match="with out, files:/nowhere"):
        started(house, writes=("out", "files:/nowhere"))


def test_a_lane_at_rest_says_so_itself(house):
    catalog = house.catalog()
    row = catalog.load(PRICE)
    resting = renewed(row, house.fresh)
    state = Rest(kind=Kind.LEFT, verb="leave").encode()
    resting = replace(resting, head=replace(resting.head, state=state))
    assert catalog.reincarnate(PRICE, row.head.ref, resting)
    started(house, dead_letters="dead")


def test_the_stage_behind_re_keying_is_called_by_its_own_name(house):
    house.broker.create("shop.cost.by-id")
    house.done(house.runner("shop/cost.by-id/in-0", writes=("shop.cost.by-id",)))
    with pytest.raises(
        InvalidUsage, match=r"start a stage: shop/cost.by-id: .* leave memory: shop/cost "
    ):
        started(house, name="cost", dedup="topic", dead_letters="dead")


def test_a_start_refuses_it_before_a_topic_is_made(house, tmp_path: Path, monkeypatch):
    """Both engines prepare so, in the driver; nothing was read or written by then."""
    url = f"sqlite:{tmp_path / 'shop.db'}"
    house.store = open_catalog(url).store
    house.done(house.runner(PRICE))
    client = MemoryClient(house.broker)
    monkeypatch.setattr(starting, "open_client", lambda *_: client)
    delivery = Delivery(catalog=url, kafka="127.0.0.1:9", pipeline="shop")
    delivery.stage(reads="in", writes="out", name="price", dead_letters="letters")(str)
    with closing(house.store), pytest.raises(InvalidUsage, match="declared now with out, letters"):
        prepare(delivery.plan, create_topics=True)
    assert "letters" not in client.names()


def test_the_lane_refuses_it_by_itself_too(house):
    """Whoever runs it: the start looked before another driver declared something else."""
    with house.untouched():
        stop = house.run(house.runner(PRICE, writes=("out", "dead")))
    assert stop.end is m.End.REFUSED
    assert "begun with 1 outputs, and its stage has 2 now" in stop.why
    with house.untouched():
        stop = house.run(house.runner(PRICE, writes=("dead",)))
    assert stop.end is m.End.REFUSED
    assert "an output topic was deleted and created again, or the stage has other" in stop.why
