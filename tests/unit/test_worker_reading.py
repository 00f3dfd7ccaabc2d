"""When a worker beside a store that is waited for looks for new records, and how often."""

from __future__ import annotations

import time

import pytest

from delivery.host.worker import FRESH_SECONDS, LONG_SECONDS, Worker


class Free:
    """Errands of lanes of which each could begin a bundle."""

    def wait(self, _seconds: float) -> None:
        pass

    def pause(self, _lanes: list) -> float:
        return 0.0

    def free(self, _lanes: list) -> bool:
        return True

    def turn(self, _lanes: list, _emit: object, **_: float) -> bool:
        return False

    def __bool__(self) -> bool:
        return True


class Reads(Worker):
    """A worker without ports that notes its reads."""

    def __init__(self, *, came: bool, since: float) -> None:
        self._errands = Free()
        self._looked = time.monotonic() - since
        self.came, self.reads = came, []

    def _read(self, seconds: float) -> bool:
        self.reads.append(seconds)
        return self.came


@pytest.mark.parametrize(
    ("came", "since", "again"),
    [(True, 2 * LONG_SECONDS, True), (True, 0.0, False), (False, 2 * LONG_SECONDS, False)],
)
def test_what_a_broker_said_long_ago_is_not_all_that_there_is_by_now(came, since, again):
    worker = Reads(came=came, since=since)
    assert worker._beside(worker._errands, [], 0.0) == came
    assert worker.reads[1:] == [FRESH_SECONDS] * again
