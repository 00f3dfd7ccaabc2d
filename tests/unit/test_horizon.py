"""Who asks how far a topic reaches is answered at once, from what was heard last.

The client is a double: it must be silent for exactly as long as a test wants.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dedup.errors import Unavailable
from dedup.model import Frontier, Source, TopicId
from delivery.host.horizon import Horizon
from delivery.kafka.port import Bounds

SOURCE = Source(TopicId(b"topic".ljust(16)), 0)
SECONDS_MAX = 20.0


class Log:
    """A cluster that answers what a test says, one question each time; None: that it is away."""

    def __init__(self) -> None:
        self.says: queue.Queue[int | None] = queue.Queue()

    def bounds(self, _topic: str, sources: tuple[Source, ...]) -> Bounds:
        end = self.says.get(timeout=SECONDS_MAX)
        if end is None:
            raise Unavailable("read the bounds of a log", "topic", "nobody is there; retry")
        return Bounds(low=Frontier(), high=Frontier.of((one, end) for one in sources))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def horizon(log: Any) -> Iterator[Horizon]:
    made = Horizon(log)
    yield made
    made.close()
    made.close()
    log.says.put(None)  # nobody is left behind waiting


def end(horizon: Horizon) -> int | None:
    found = horizon.of("topic", [SOURCE])
    return found.at(SOURCE) if found else None


def hears(horizon: Horizon, what: int) -> None:
    """Ask until an answer has come in."""
    deadline = time.monotonic() + SECONDS_MAX
    while end(horizon) != what:
        assert time.monotonic() < deadline


def test_only_the_first_answer_is_waited_for(horizon, log):
    log.says.put(1)
    assert [end(horizon) for _ in range(10)] == [1] * 10
    log.says.put(5)
    hears(horizon, 5)
    assert [end(horizon) for _ in range(10)] == [5] * 10


def test_where_nobody_answers_the_end_is_unknown_until_somebody_does(horizon, log):
    log.says.put(None)
    assert end(horizon) is None
    log.says.put(7)
    hears(horizon, 7)
    log.says.put(None)
    while end(horizon) is not None:
        pass
    assert end(horizon) is None
