"""What cannot work is refused where it is said, and a start says what its stages cannot."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from delivery import Delivery
from delivery.host import starting
from delivery.host.reminding import remind
from delivery.host.starting import prepare, topics_of
from delivery.kafka.port import TopicSettings
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient


def shop(catalog: str = "memory:") -> Delivery:
    return Delivery(catalog=catalog, kafka="127.0.0.1:9", pipeline="shop")


def declare(delivery: Delivery, **said: Any) -> Delivery:
    delivery.stage(**{"reads": "orders", "writes": "priced", "name": "price"} | said)(str)
    return delivery


class Making(MemoryClient):
    """A cluster in which topics can be made."""

    def create(self, name: str, settings: TopicSettings) -> None:
        self.broker.create(name, settings.partitions)

    def settings_of(self, _name: str) -> dict[str, str]:
        return {}


@pytest.fixture
def client() -> Making:
    house = House(MemoryStore())
    house.broker.create("orders", 2)
    return Making(house.broker)


# Loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"writes": "orders"},
        {"writes": ("priced", "orders")},
        {"dead_letters": "orders"},
        {"writes": "orders", "dedup": "topic"},
    ],
)
def test_a_stage_that_reads_what_it_makes_is_refused(said):
    with pytest.raises(InvalidUsage, match=r"price: reads and writes orders.*without end.*second"):
        declare(shop(), **said)


def test_two_stages_may_go_round():
    delivery = declare(shop())
    declare(delivery, name="again", reads="priced", writes="orders")
    assert len(delivery.stages) == 2


# Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        # Taken for what it is not, each of these would repeat or lose records without a word.
        ({"dedup": "topics"}, r"dedup='topics'.*say \"partition\" or \"topic\""),
        ({"conflicts": "eror"}, r"conflicts='eror'.*\"count\" or \"ignore\" or \"error\""),
        ({"start": "lastest"}, r"start='lastest'.*\"earliest\" or \"latest\""),
        (
            {"id_form": "header:id"},
            r"option id_form.*did you mean id_from\? It takes reads, writes",
        ),
        ({"dead_letter": "dead"}, r"did you mean dead_letters\?"),
        ({"reads": ["a", "b"]}, r"reads=\['a', 'b'\].*say one topic"),
        ({"reads": None}, r"reads=None.*environment variable"),
        ({"writes": ["priced", 3]}, r"writes=3.*say a topic, or a tuple of topics"),
        ({"dead_letters": 3}, r"writes=3"),
    ],
)
def test_what_is_misspelt_is_refused_where_it_is_said(said, wanted):
    with pytest.raises(InvalidUsage, match=rf"{wanted}") as refused:
        declare(shop(), **said)
    assert "nothing was started" in str(refused.value)


@pytest.mark.parametrize("said", [{"kafka": None}, {"kafka": ""}, {"catalog": None}])
def test_an_address_that_is_not_set_asks_for_the_variable(said):
    with pytest.raises(InvalidUsage, match=f"{next(iter(said))}=.*nothing was started: say"):
        Delivery(**{"catalog": "memory:", "kafka": "127.0.0.1:9"} | said)


def test_options_of_a_pipeline_and_of_a_receiver_are_told_too():
    with pytest.raises(InvalidUsage, match=r"option kakfa.*did you mean kafka"):
        Delivery(catalog="memory:", kakfa="127.0.0.1:9")
    with pytest.raises(InvalidUsage, match=r"option databse.*did you mean database"):
        shop().receiver(topic="priced", group="billing", databse="x")


def mute(record):
    record.replace(value=b"x")


def mute_at_times(record):
    if record.value is None:
        return
    mute(record)


def always_raises(record):
    raise ValueError(record)


def yields_nothing(_record):
    yield from ()


def returns_at_times(record):
    return None if record.value is None else record


@pytest.mark.parametrize("call", [mute, mute_at_times, lambda _: None])
def test_a_function_that_forgets_to_return_is_refused(call):
    with pytest.raises(
        InvalidUsage, match=r"never returns anything, at .*py:\d+: .*never run again"
    ):
        shop().stage(reads="orders", writes="priced")(call)
    shop().stage(reads="orders", name="effects-only")(call)


@pytest.mark.parametrize("call", [always_raises, yields_nothing, returns_at_times, str, print])
def test_what_may_be_meant_is_not(call):
    shop().stage(reads="orders", writes="priced")(call)


# Windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [24, 1.5, "24", "a day", b"24h", True])
def test_a_window_that_is_no_length_of_time_is_refused_in_words(window):
    with pytest.raises(InvalidUsage, match=re.escape(f"window={window!r}") + ".*24h.*timedelta"):
        declare(shop(), window=window)


def test_a_window_is_said_as_text_or_as_a_time():
    assert declare(shop(), window="24h").stages == declare(shop(), window=timedelta(1)).stages


# Topics ---------------------------------------------------------------------------------------


def test_a_topic_that_is_missing_is_told_who_wants_it_and_what_there_is(client):
    delivery = declare(shop(), reads="ordrs")
    with pytest.raises(InvalidUsage) as refused:
        topics_of(client, delivery.stages, create=True)
    said = str(refused.value)
    assert "topics ordrs: there are none of these names: ordrs is what stage price reads" in said
    assert "(there is orders)" in said
    assert "never inputs" in said
    assert "priced" not in said  # it would come by itself
    assert client.names() == ["in", "orders", "out"]


def test_outputs_that_are_missing_are_made_where_that_was_said(client):
    delivery = declare(shop())
    declare(delivery, name="ship", reads="priced", writes="shipped")
    with pytest.raises(InvalidUsage, match="priced is what stage ship reads; shipped is an output"):
        topics_of(client, delivery.stages, create=False)
    found = topics_of(client, delivery.stages, create=True)
    assert {name: topic.partitions for name, topic in found.items()} == {
        "orders": 2,
        "priced": 2,
        "shipped": 2,
    }


def test_a_round_of_topics_that_are_all_missing_is_refused(client):
    delivery = declare(shop(), reads="left", writes="right")
    declare(delivery, name="again", reads="right", writes="left")
    with pytest.raises(InvalidUsage, match="left is what stage price reads"):
        topics_of(client, delivery.stages, create=True)


def test_a_catalog_that_cannot_be_opened_makes_no_topic(client, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(starting, "open_client", lambda *_: client)
    place = tmp_path / "shop.db"
    place.mkdir()
    with pytest.raises(InvalidUsage, match="nothing was written"):
        prepare(declare(shop(f"sqlite:{place}")).plan, create_topics=True)
    assert client.names() == ["in", "orders", "out"]


def test_a_file_that_cannot_be_opened_says_who_may_write_where(tmp_path: Path):
    (tmp_path / "shop.db-wal").mkdir()
    (tmp_path / "shop.db").symlink_to(tmp_path / "nowhere" / "shop.db")
    with pytest.raises(InvalidUsage, match="whether this user may write in") as refused:
        open_catalog(f"sqlite:{tmp_path / 'shop.db'}")
    assert refused.value.__suppress_context__


# What is said at a start ----------------------------------------------------------------------


def test_records_that_nobody_names_are_said_at_a_start(caplog):
    delivery = declare(shop())
    declare(delivery, name="ship", reads="priced", writes="shipped")
    remind(delivery.stages)
    (said,) = caplog.messages
    assert said == (
        "stage price reads orders: where no stage of this catalog made them, records are named by "
        "their place: one that its publisher sends twice counts twice; say id_from= where records "
        "name themselves"
    )


@pytest.mark.parametrize("said", [{"id_from": "key"}, {"id_from": "key", "dedup": "topic"}])
def test_nothing_is_said_where_records_are_named(caplog, said):
    remind(declare(shop(), **said).stages)
    assert caplog.messages == []
