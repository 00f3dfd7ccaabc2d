"""A function that cannot be sent to executors: what keeps it from that is called by its name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType

import pytest

from delivery import Delivery, InvalidUsage
from delivery.blame import culprits
from delivery.resident.starting import refuse_what_does_not_travel


def elsewhere(source: str, **known: object) -> Callable[..., object]:
    """A function of a script, which is sent with the globals that it uses."""
    names: dict[str, object] = {"__name__": "__main__", **known}
    exec(source, names)  # noqa: S102 - what is imported by name is not sent
    made = names["price"]
    assert isinstance(made, FunctionType)
    return made


def refused(call: Callable[..., object], capfd: pytest.CaptureFixture[str]) -> str:
    delivery = Delivery(catalog="memory:", kafka="127.0.0.1:9")
    delivery.stage(reads="orders", writes="priced", name="price")(call)
    with pytest.raises(InvalidUsage, match="start a pipeline: stage price: ") as raised:
        refuse_what_does_not_travel(delivery.plan)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert capfd.readouterr() == ("", "")
    return str(raised.value)


def test_a_global_is_named(capfd):
    source = "def price(record):\n    return [db.get(rate) for _ in record]"
    said = refused(elsewhere(source, db=threading.Lock(), rate=3, unused=threading.Lock()), capfd)
    assert "cannot be sent to executors, because of db, which it takes along (TypeError: " in said
    assert "open connections and files inside the function" in said


def test_a_global_of_a_function_that_it_calls_is_named(capfd):
    source = "def look(n):\n    return db, look\ndef price(record):\n    return look(record)"
    assert ", because of db, which" in refused(elsewhere(source, db=threading.Lock()), capfd)


def test_what_it_closes_over_is_named(capfd):
    lock, rate = threading.Lock(), 3

    def price(record: object) -> object:
        with lock:
            return record, rate

    assert ", because of lock, which" in refused(price, capfd)


def test_the_object_of_a_method_is_named(capfd):
    class Shop:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def price(self, record: object) -> object:
            return record

    assert ", because of the Shop whose method it is, which" in refused(Shop().price, capfd)


def test_an_attribute_of_the_name_of_a_global_is_none_of_it():
    call = elsewhere("def price(record):\n    return record.db + db.x", db=1, x=threading.Lock())
    assert culprits(call, lambda value: not isinstance(value, int)) == []


def test_what_nobody_can_name_is_told_all_the_same(capfd):
    class Price:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.__name__ = "price"

        def __call__(self, record: object) -> object:
            return record

    assert "cannot be sent to executors (TypeError: " in refused(Price(), capfd)


@pytest.mark.parametrize(
    ("given", "said"),
    [("local[2]", "'local[2]' as the session"), (None, "a NoneType"), (3, "a int")],
)
def test_what_is_no_session_is_refused_with_the_right_call(given, said):
    delivery = Delivery(catalog="memory:", kafka="127.0.0.1:9")
    delivery.stage(reads="orders", writes="priced", name="price")(str)
    with pytest.raises(InvalidUsage) as raised:
        delivery.start(given)
    assert said in str(raised.value)
    assert "say d.start(spark)" in str(raised.value)
    assert 'delivery.spark.spark_session(master="local[2,4]")' in str(raised.value)
