"""A stage's stream begins again for as long as it is known why, and gives up what nobody can explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dedup.errors import Unavailable
from delivery.host.spec import Plan, StageSpec
from delivery.microbatch import options as bounds
from delivery.microbatch import stream as module
from delivery.microbatch.options import Options
from delivery.microbatch.stream import News, StageStream

EXPLAINED = 2 * bounds.FAILURES_MAX


class Waiting:
    """A query that waits for records."""

    def awaitTermination(self, _timeout: float) -> bool:  # noqa: N802 - as PySpark spells it
        return False


class Ended:
    """A query that Spark ends at once."""

    def awaitTermination(self, _timeout: float) -> bool:  # noqa: N802 - as PySpark spells it
        raise RuntimeError("stream died")


@pytest.fixture
def stream() -> StageStream:
    spec = StageSpec(pipeline="shop", name="price", reads="raw", writes=("out",), call=str)
    plan = Plan(catalog="memory:", kafka="localhost:1", stages=(spec,))
    spark: Any = None
    return StageStream(plan, spark, Options(name="shop"), lambda *_: None)


@pytest.mark.parametrize("error", [None, AttributeError("'NoneType' object has no attribute 'sc'")])
def test_a_session_that_is_stopped_under_it_is_the_end_and_is_said(
    stream: StageStream, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's query goes on waiting, as if nothing were; what is tried after it fails anyhow."""
    waiting: Any = Waiting()

    def run_once() -> None:
        if error is not None:
            raise error
        stream._wait(waiting)

    monkeypatch.setattr(module, "stopped", lambda _: True)
    monkeypatch.setattr(stream, "_run_once", run_once)
    with pytest.raises(Unavailable, match="shop: the Spark session was stopped under it"):
        stream.run()
    stream._batch(waiting, waiting, 7)  # what comes yet of Spark's thread is not begun


def test_failures_that_are_explained_do_not_count_towards_giving_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = StageSpec(pipeline="shop", name="price", reads="raw", writes=("out",), call=str)
    plan = Plan(catalog="memory:", kafka="localhost:1", stages=(spec,))
    waited: list[News] = []
    spark: Any = None
    stream = StageStream(plan, spark, Options(), lambda _, news: waited.append(news))
    away = Unavailable("ask the catalog", "shop", "it does not answer; nothing happened")
    ends: Iterator[bool] = iter([*[True] * EXPLAINED, *[False] * bounds.FAILURES_MAX])
    said: list[str] = []

    def run_once() -> None:
        said.append(stream.trouble)
        if next(ends):
            raise away
        query: Any = Ended()
        stream._wait(query)

    monkeypatch.setattr(module, "stopped", lambda _: False)
    monkeypatch.setattr(bounds, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(stream, "_run_once", run_once)
    with pytest.raises(RuntimeError, match="stream died"):
        stream.run()
    assert waited == [News()] * (EXPLAINED + bounds.FAILURES_MAX - 1)
    assert said[:2] == ["", f"price: Unavailable: {away}"]
    assert "nothing was skipped" in said[-1]
