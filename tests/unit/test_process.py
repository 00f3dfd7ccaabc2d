"""Servers are recognised, bounded, and die when they should; a plain process stands for one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.errors import Unavailable
from delivery.services import guard, logs, process
from delivery.services.process import Lifeline, Process

SECONDS = 20.0

#: A server: says that it is there, then waits to be ended.
SERVER = [sys.executable, "-u", "-c", "import signal; print('ready'); signal.pause()"]

#: A test that starts a server and prints its pid, then waits to be killed.
PARENT = """
import sys
from pathlib import Path
from delivery.services.process import Lifeline, spawn
root = Path(sys.argv[1])
print(spawn(sys.argv[2:], root / "home" / "node-1", Lifeline(root)).pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A node's directory; what runs in it ends with the test."""
    path = tmp_path / "node-1"
    path.mkdir()
    yield path
    running = process.find(path)
    if running is not None:
        running.kill()


def wait_for(path: Path, text: str) -> None:
    assert process.until(lambda: text in "\n".join(logs.last_lines(path, 10)), SECONDS)


def test_a_process_is_itself_and_a_reused_pid_is_not() -> None:
    me = Process.current()
    assert me.alive()
    assert not Process(pid=me.pid, started="another boot:1").alive()


def test_no_signal_reaches_a_process_with_another_start_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        impostor = Process(pid=other.pid, started="another boot:1")
        assert not impostor.signal(signal.SIGKILL)
        assert impostor.stop(SECONDS)
        assert other.poll() is None
        other.communicate(b"\n")
        assert other.returncode == 0


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    running = Process(pid=child.pid, started=guard.started(child.pid) or "ended")
    assert running.wait(SECONDS), "it has ended although nobody has waited for it"
    child.wait()


def test_a_server_is_found_by_whoever_looks(directory: Path) -> None:
    started = process.spawn(SERVER, directory)
    assert process.find(directory) == started
    wait_for(directory, "ready")


def test_a_server_is_not_started_twice(directory: Path) -> None:
    first = process.spawn(SERVER, directory)
    assert process.spawn(SERVER, directory) == first


def test_a_server_without_its_record_is_not_started_twice(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = process.spawn(SERVER, directory)
    record = (directory / guard.RECORD_NAME).read_text()
    (directory / guard.RECORD_NAME).unlink()
    monkeypatch.setattr(process, "RECORD_SECONDS_MAX", 0.2)
    with pytest.raises(Unavailable, match="its lock is held"):
        process.spawn(SERVER, directory)
    (directory / guard.RECORD_NAME).write_text(record)
    assert process.find(directory) == running


def test_a_server_outlives_its_guard_and_is_still_found(directory: Path) -> None:
    running = process.spawn(SERVER, directory)
    wait_for(directory, "ready")  # unlike Java, Python dies of a closed standard output
    keeper = json.loads((directory / guard.RECORD_NAME).read_text())["guard"]
    os.kill(keeper, signal.SIGKILL)
    assert process.until(lambda: guard.started(keeper) is None, SECONDS)
    assert process.find(directory) == running
    assert process.spawn(SERVER, directory) == running


def test_a_dead_server_says_how_it_ended(directory: Path) -> None:
    process.spawn(SERVER, directory).kill()
    wait_for(directory, "ended with signal 9")
    assert process.find(directory) is None


def test_a_server_that_ends_at_once_leaves_its_words(directory: Path) -> None:
    started = process.spawn([sys.executable, "-c", "raise SystemExit('no such port')"], directory)
    assert started.wait(SECONDS)
    wait_for(directory, "exit code 1")
    assert "no such port" in logs.last_lines(directory, 5)


def test_a_program_that_does_not_exist_is_an_error(directory: Path) -> None:
    with pytest.raises(Unavailable, match="nothing was started"):
        process.spawn([str(directory / "java")], directory)


def test_a_paused_server_is_stopped(directory: Path) -> None:
    running = process.spawn(SERVER, directory)
    running.signal(signal.SIGSTOP)
    assert running.stop(SECONDS), "SIGTERM was enough"
    assert not running.alive()


def test_a_server_that_ignores_the_request_is_killed(directory: Path) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('ready'); signal.pause()"
    running = process.spawn([sys.executable, "-u", "-c", deaf], directory)
    wait_for(directory, "ready")
    assert not running.stop(0.2)
    assert not running.alive()


def test_a_server_whose_directory_is_deleted_ends(tmp_path: Path) -> None:
    directory = tmp_path / "node-1"
    directory.mkdir()
    running = process.spawn(SERVER, directory)
    directory.rename(tmp_path / "elsewhere")
    assert running.wait(SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_of_a_test_die_with_it(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "home" / "node-1"
    directory.mkdir(parents=True)
    command = [sys.executable, "-c", PARENT, str(tmp_path), *SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as test:
        assert test.stdout is not None
        pid = int(test.stdout.readline())
        server = Process(pid=pid, started=guard.started(pid) or "ended")
        assert server.alive()
        test.send_signal(number)
    assert server.wait(SECONDS)
    assert process.until(lambda: not tmp_path.exists(), SECONDS), "its files go too"


def test_servers_of_a_test_die_although_a_forked_child_lives(tmp_path: Path) -> None:
    directory = tmp_path / "home" / "node-1"
    directory.mkdir(parents=True)
    forking = PARENT.replace("sys.stdin.read()", "import os\nos.fork() or sys.stdin.read()")
    command = [sys.executable, "-c", forking, str(tmp_path), *SERVER]
    test = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert test.stdin is not None
    assert test.stdout is not None
    pid = int(test.stdout.readline())
    server = Process(pid=pid, started=guard.started(pid) or "ended")
    test.kill()
    test.wait()
    assert server.wait(SECONDS)
    test.stdin.close()  # lets the child go
    test.stdout.close()


def test_a_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / guard.LOG_NAME
    log = guard.Log(path, bytes_max=1000)
    for number in range(500):
        log.write(f"line {number}\n".encode())
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    assert logs.last_lines(tmp_path, 100) == [f"line {number}" for number in range(400, 500)]


def test_a_followed_log_loses_and_repeats_nothing_when_it_rotates(tmp_path: Path) -> None:
    log = guard.Log(tmp_path / guard.LOG_NAME, bytes_max=100)
    log.write(b"before\n")
    followed = logs.follow({"node-1": tmp_path}, 1)
    assert next(followed) == ("node-1", "before")
    for number in range(30):
        log.write(f"line {number}\n".encode())
        assert next(followed) == ("node-1", f"line {number}")
    followed.close()
    log.close()
    assert (tmp_path / f"{guard.LOG_NAME}.1").exists()


def test_a_lifeline_may_be_closed_twice(tmp_path: Path) -> None:
    lifeline = Lifeline(tmp_path)
    lifeline.close()
    lifeline.close()
    assert tmp_path.exists()
