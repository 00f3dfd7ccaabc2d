"""What signals do to a query: nobody loses anything, and nobody is shown a traceback for Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delivery.query import Others, interruptible

SECONDS_MAX = 30.0

#: A process whose query takes as long to stop as its input lasts.
CHILD = """
import sys, threading
from delivery import stop_on_signal

class Query:
    ended = threading.Event()

    def stop(self):
        print("stopping", flush=True)
        sys.stdin.readline()
        self.ended.set()

stop_on_signal(Query())
print("running", flush=True)
Query.ended.wait()
print("ended cleanly", flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    pipe, line = subprocess.PIPE, [sys.executable, "-c", CHILD]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert said(process) == "running"
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_one_lets_what_is_under_way_come_to_its_end(
    child: subprocess.Popen[str], number: signal.Signals
) -> None:
    child.send_signal(number)
    assert said(child) == "stopping"
    assert child.poll() is None
    assert child.stderr is not None
    # Before anything of it is stopped, which may take long.
    assert child.stderr.readline() == "\n"
    told = "delivery: stopping the query ...; another signal ends it at once\n"
    assert child.stderr.readline() == told
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    assert said(child) == "ended cleanly"
    assert child.wait(SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
    ],
)
def test_a_second_one_does_not_wait(
    child: subprocess.Popen[str], first: signal.Signals, second: signal.Signals
) -> None:
    child.send_signal(first)
    assert said(child) == "stopping"
    child.send_signal(second)
    assert child.wait(SECONDS_MAX) == -second, "it dies of the signal itself"
    assert said(child) == ""


#: A process that waits for its query as a job does.
WAITING = """
import sys, threading
from delivery.query import interruptible

def stop():
    print("stopping", flush=True)
    sys.stdin.readline()

{before}
try:
    with interruptible("shop", stop):
        print("running", flush=True)
        {body}
except ZeroDivisionError:
    print("mine", flush=True)
"""


@contextmanager
def waiting(
    body: str = "threading.Event().wait()", before: str = ""
) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", WAITING.format(before=before, body=body)]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert said(process) == "running"
        yield process
        process.kill()


def test_ctrl_c_stops_the_query_and_says_so_at_once_and_at_the_end_without_a_traceback() -> None:
    with waiting() as process:
        process.send_signal(signal.SIGINT)
        assert said(process) == "stopping"
        _, told = process.communicate("\n", SECONDS_MAX)
    assert told == (
        "\ndelivery: stopping shop ...; Ctrl-C again ends it at once\n"
        "\ndelivery: interrupted; shop is stopped, nothing is lost: start it again, it goes on\n"
    )
    assert process.returncode == -signal.SIGINT


def test_a_second_ctrl_c_does_not_wait_for_the_first() -> None:
    with waiting() as process:
        process.send_signal(signal.SIGINT)
        assert said(process) == "stopping"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == -signal.SIGINT


def test_a_handler_of_the_users_is_left_alone() -> None:
    own = "import signal; signal.signal(signal.SIGINT, lambda *_: 1 / 0)"
    with waiting(before=own) as process:
        process.send_signal(signal.SIGINT)
        assert said(process) == "mine"
        assert process.wait(SECONDS_MAX) == 0


def test_what_else_goes_wrong_keeps_its_traceback_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), interruptible("shop", pytest.fail):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_company_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    others = Others("shop")
    for lost in (0, 1, 5):
        others.look(lost)
    (told,) = caplog.messages
    assert told.startswith("shop: somebody else works on its lanes too")
