"""What a resident task does about a world that is away, wrong or gone; no Spark, no servers."""

from __future__ import annotations

import gc
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from dedup.errors import InvalidUsage
from delivery.host.counters import Counters
from delivery.host.progress import Progress
from delivery.host.spec import Plan, StageSpec
from delivery.resident.caught_up import wait_until_delivered
from delivery.resident.channel import Link, Lost
from delivery.resident.control import Control
from delivery.resident.query import StoppedError
from delivery.resident.task import Setup, run

SECONDS_MAX = 60.0
STAGE = StageSpec(pipeline="shop", name="price", reads="raw", writes=("out",), call=len)


class Task:
    """A task in a thread: what it yields, and how it ends."""

    def __init__(self, control: Control, catalog: str) -> None:
        self.beats = 0
        self.error: Exception | None = None
        self.setup = Setup(
            plan=Plan(catalog=catalog, kafka="127.0.0.1:9", stages=(STAGE,)),
            run=1,
            tasks=1,
            address=control.address,
            key=control.key,
            beat=b"beat",
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for beat in run(self.setup, 0):
                assert beat == b"beat"
                self.beats += 1
        except Lost as error:
            self.error = error

    def ended(self) -> bool:
        self.thread.join(SECONDS_MAX)
        return not self.thread.is_alive()


@pytest.fixture
def changes() -> queue.Queue[None]:
    return queue.Queue()


@pytest.fixture
def control(changes) -> Iterator[Control]:
    control = Control("127.0.0.1", bind="127.0.0.1", port=0, changed=lambda: changes.put(None))
    control.begin(1, {"price": 1})
    yield control
    control.close()


@pytest.fixture
def away() -> str:
    """A catalog whose node does not listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"cassandra://127.0.0.1:{port}/shop"


def until(condition, changes: queue.Queue[None]) -> None:
    while not condition():
        changes.get(timeout=SECONDS_MAX)


def test_what_is_away_is_waited_for_and_told_and_the_task_lives(control, changes, away, caplog):
    task = Task(control, away)
    until(lambda: control.troubles, changes)
    assert "Unavailable" in control.troubles[0]
    assert any(said.startswith("task 0: again in 0.2 s: ") for said in caplog.messages)
    while task.beats < 2 and task.thread.is_alive():
        changes.get(timeout=SECONDS_MAX)  # each further try is told
    control.end()
    assert task.ended()
    assert (task.error, control.failure) == (None, None)


def test_what_is_wrong_ends_the_task_and_is_told(control, changes):
    task = Task(control, "papyrus:shop")
    until(lambda: control.failure is not None, changes)
    assert isinstance(control.failure, InvalidUsage)
    assert task.ended()
    assert task.error is None


def test_who_waits_for_everything_to_be_delivered_outlasts_a_catalog_that_is_away(away):
    plan = Plan(catalog=away, kafka="127.0.0.1:9", stages=(STAGE,))
    left = [False, True, True]

    def still_running() -> None:
        if not left.pop():
            raise StoppedError("nobody is left to wait for")

    with pytest.raises(StoppedError):
        wait_until_delivered(plan, still_running)
    assert not left, "it was asked again, and again"


def test_a_task_leaves_the_collector_of_its_process_as_it_is(control):
    # Who calms it is the process that Spark forks: in another one what is closed would stay.
    before = gc.get_threshold(), gc.get_freeze_count()
    task = Task(control, "papyrus:shop")
    assert task.ended()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_a_task_whose_driver_is_gone_ends(control, changes, away):
    task = Task(control, away)
    until(lambda: control.troubles, changes)
    control.close()
    assert task.ended()
    assert isinstance(task.error, Lost)


def test_of_two_attempts_at_one_task_the_first_fails_and_the_second_goes_on(control, changes, away):
    """Spark copies a task that seems slow, and ends the copy once the first has ended well."""
    first = Task(control, away)
    until(lambda: control.troubles, changes)
    second = Task(control, away)
    assert first.ended()
    assert isinstance(first.error, Lost)
    assert control.running == 1
    control.end()
    assert second.ended()
    assert second.error is None


def test_a_task_that_cannot_reach_its_driver_does_not_begin(control):
    control.close()
    task = Task(control, "memory:")
    assert task.ended()
    assert isinstance(task.error, Lost)


def test_a_setup_shows_no_secret(control, away):
    task = Task(control, away)
    assert repr(task.setup) == "Setup(run=1, tasks=1)"
    control.end()
    assert task.ended()


class Hung:
    """A worker that is not done before the driver has hung up."""

    lanes = ()
    turning, hung_up = threading.Event(), threading.Event()

    def __init__(self, *_: object) -> None:
        pass

    def open(self, *_: object) -> None:
        pass

    def turn(self) -> None:
        self.turning.set()

    def finish(self) -> None:
        assert self.hung_up.wait(SECONDS_MAX)

    def progress(self, *, at_once: bool) -> Progress:
        del at_once
        return Progress(counters=Counters().document())

    def close(self) -> None:
        pass


def test_a_task_that_was_told_to_end_ends_well_though_nobody_listens_any_more(control, monkeypatch):
    """Spark would call it failed, and print its traceback, Java's and its own."""
    close = Link.close

    def closing(link: Link) -> None:
        close(link)
        if threading.current_thread().name == "delivery-orders":
            Hung.hung_up.set()

    monkeypatch.setattr(Link, "close", closing)
    monkeypatch.setattr("delivery.resident.task.Worker", Hung)
    task = Task(control, "memory:")
    assert Hung.turning.wait(SECONDS_MAX)
    control.end()
    control.close()
    assert task.ended()
    assert task.error is None
