"""A stage's stream begins again for as long as it is known why, and gives up what nobody can explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dedup.errors import Unavailable
from delivery.host.spec import Plan, StageSpec
from delivery.microbatch import options as bounds
from delivery.microbatch.options import Options
from delivery.microbatch.stream import News, StageStream

EXPLAINED = 2 * bounds.FAILURES_MAX


class Ended:
    """A query that Spark ends at once."""

    def awaitTermination(self, _timeout: float) -> bool:  # noqa: N802 - as PySpark spells it
        raise RuntimeError("stream died")


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

    monkeypatch.setattr(bounds, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(stream, "_run_once", run_once)
    with pytest.raises(RuntimeError, match="stream died"):
        stream.run()
    assert waited == [News()] * (EXPLAINED + bounds.FAILURES_MAX - 1)
    assert said[:2] == ["", f"price: Unavailable: {away}"]
    assert "nothing was skipped" in said[-1]
