"""The first signal stops a query cleanly, a second one ends the process at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

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
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
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
