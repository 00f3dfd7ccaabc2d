"""A process stands still at a named point, with whoever was named and all below; awake, it says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from delivery.host.killing import PAUSED, VARIABLE, VICTIM_SUFFIX, WOKEN_SUFFIX
from delivery.points import SEAL_REPLY_LOST, STORED_NOT_SEALED
from delivery.services.process import until

SECONDS_MAX = 60.0
#: Passes two points once it is told to, and ends.
VICTIM = """
import sys
from delivery.host.killing import killer
at = killer()
sys.stdin.readline()
at({first!r})
at({second!r})
"""
#: One of its threads passes points, and says so; another one could be told to stand still first.
PASSING = """
import sys, threading
from pathlib import Path
from delivery.host.killing import VARIABLE, killer
def go():
    for number in range({rounds}):
        marker = Path({directory!r}, str(number))
        killer({{VARIABLE: f"{point}:{{marker}}"}})({point!r})
        marker.with_suffix(".passed").touch()
thread = threading.Thread(target=go)
thread.start()
thread.join()
"""
#: Where it is wrong, one in a dozen or so goes on.
ROUNDS = 200
#: Has a child, says so, and waits.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def parent() -> Iterator[psutil.Process]:
    command = [sys.executable, "-c", PARENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = psutil.Process(process.pid)
        below = found.children(recursive=True)
        yield found
        for one in (*below, found):
            one.kill()


def test_it_stands_still_with_all_below_another_and_says_what_it_passed_when_awake(
    parent: psutil.Process, tmp_path: Path
) -> None:
    marker = tmp_path / "asleep"
    marker.with_name(marker.name + VICTIM_SUFFIX).write_text(f"{PAUSED} {parent.pid}")
    program = VICTIM.format(first=STORED_NOT_SEALED, second=SEAL_REPLY_LOST)
    environment = os.environ | {VARIABLE: f"{STORED_NOT_SEALED}:{marker}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment
    ) as victim:
        watchdog = threading.Timer(SECONDS_MAX, victim.kill)
        watchdog.start()
        assert victim.stdin is not None
        victim.stdin.write(b"\n")
        victim.stdin.close()
        # Told by the kernel, as it tells a shell: stopped, not ended.
        _, status = os.waitpid(victim.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert marker.read_text() == f"{STORED_NOT_SEALED} {victim.pid}"
        others = [parent, *parent.children(recursive=True)]
        assert len(others) == 2
        # Told before the victim was, they stop when they have a turn on a processor.
        assert until(
            lambda: {one.status() for one in others} == {psutil.STATUS_STOPPED}, SECONDS_MAX
        )
        woken = marker.with_name(marker.name + WOKEN_SUFFIX)
        assert not woken.exists()

        psutil.Process(victim.pid).resume()
        assert victim.wait() == 0
        watchdog.cancel()
        assert woken.read_text().split() == [SEAL_REPLY_LOST]


def test_the_thread_that_came_to_the_point_goes_no_step_further(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        (tmp_path / f"{number}{VICTIM_SUFFIX}").write_text(PAUSED)
    program = PASSING.format(rounds=ROUNDS, directory=str(tmp_path), point=STORED_NOT_SEALED)
    with subprocess.Popen([sys.executable, "-c", program]) as victim:
        watchdog = threading.Timer(SECONDS_MAX, victim.kill)
        watchdog.start()
        try:
            for number in range(ROUNDS):
                _, status = os.waitpid(victim.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                assert not (tmp_path / f"{number}.passed").exists()
                psutil.Process(victim.pid).resume()
            assert victim.wait() == 0
        finally:
            victim.kill()
            watchdog.cancel()
