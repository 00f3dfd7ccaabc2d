"""How filters are made, as users say it: what is refused, and where the key must not be seen."""

from __future__ import annotations

import pickle
import sys
import traceback

import pytest

from delivery import Delivery, Filters, InvalidUsage
from delivery.wrap.judging import Setup

KEY = b"sixteen secrets!"


def test_what_is_chosen_reaches_every_process() -> None:
    chosen = Filters(engine="pybloom-live", rate=0.01, key=KEY)
    plan = Delivery(catalog="memory:", kafka="localhost:9", filters=chosen).plan
    assert pickle.loads(pickle.dumps(plan)).filters == chosen  # noqa: S301 - our own
    assert Delivery(catalog="memory:", kafka="localhost:9").plan.filters == Filters()


def test_the_key_is_in_no_repr() -> None:
    delivery = Delivery(catalog="memory:", kafka="localhost:9", filters=Filters(key=KEY))

    @delivery.stage(reads="a")
    def stage(record: object) -> object:
        return record

    plan = delivery.plan
    setup = Setup(plan=plan, spec=plan.stages[0], query="q", reports=None)  # type: ignore[arg-type]  # no Spark
    for seen in (delivery, plan, plan.filters, setup):
        for shown in (repr(seen), str(seen)):
            assert KEY.decode() not in shown
            assert KEY.hex() not in shown


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"engine": "cuckoo"}, "blocked, pybloom-live"),
        ({"rate": 0.0}, "choose a number from 1e-06 to 0.1"),
        ({"rate": 0.5}, "choose a number from 1e-06 to 0.1"),
        ({"rate": float("nan")}, "choose a number from"),
        ({"rate": "0.1"}, "choose a number from"),
        ({"key": KEY[:15]}, "bytes of 15.*token_bytes"),
        ({"key": KEY.decode()}, "a key that is str:.*token_bytes"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused_where_it_is_said(wrong, said) -> None:
    with pytest.raises(InvalidUsage, match=said) as caught:
        Filters(**wrong)
    assert "nothing was started" in str(caught.value)
    # Neither in the error nor in what Python prints of it.
    assert "sixteen" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_a_missing_package_is_refused_before_anything_starts(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pybloom_live", None)
    with pytest.raises(InvalidUsage, match=r"exactly-once-delivery\[pybloom\]"):
        Filters(engine="pybloom-live")


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(InvalidUsage, match=r"filters of type str.*filters=Filters\(engine"):
        Delivery(catalog="memory:", kafka="localhost:9", filters="blocked")  # type: ignore[arg-type]
