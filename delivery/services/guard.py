"""The parent of one server: starts it, bounds its log, outlives whoever asked for it.

What it is: a script (`python guard.py …`, stdlib only) that `process.spawn` runs once per
server. It detaches from the terminal, takes the node's lock, starts the server, writes down who
the server is, copies its output into a log of bounded size and ends when the server ends.
What it must not know: Kafka, Cassandra, ports, instances; and nothing outside the standard
library, because it must start in milliseconds and keep running when the checkout changes.

Invariants:
    The node's lock is inherited by the server: as long as the server lives, whoever started it
    and whatever happened to the guard, nobody can start it a second time.
    The record of the server (`process.json`) is written by the guard, so that a `delivery up`
    killed half-way leaves no server that the next one cannot find.
    With a lifeline the server dies with the process that holds the other end, however that
    process dies: the kernel closes the pipe, the guard kills the server and removes its files.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

#: Size at which a server's log is rotated; with one predecessor kept, a node's logs stay below
#: twice this (logback's own default for a rolling file is 10 MB).
LOG_BYTES_MAX = 16 * 1024 * 1024

LOG_NAME = "server.log"
LOCK_NAME = "process.lock"
RECORD_NAME = "process.json"

#: The first line of every run in the log.
STARTING = "[delivery] starting"

#: What a failed start may say on the guard's standard output, where a pid is expected.
ALREADY_RUNNING = "already running"

#: `process.find` takes a node's lock for an instant to see whether it is free; a held lock is
#: believed only after this long.
LOCK_SECONDS_MAX = 1.0

#: How often the guard looks whether the node's directory is still there. A server whose files
#: were deleted under it (`git clean`) can neither be found nor stopped by anybody else.
DIRECTORY_SECONDS = 5.0

_READ_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1


def started(pid: int) -> str | None:
    """Name the moment a process started, so that a reused pid is never mistaken for it.

    On Linux boot id and clock ticks since boot: unlike a timestamp they do not move when
    somebody sets the clock. None if there is no such process, or only its zombie.
    """
    if not sys.platform.startswith("linux"):
        return _started_elsewhere(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the command name may contain spaces and brackets
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}:{ticks}"


def _started_elsewhere(pid: int) -> str | None:
    import psutil  # noqa: PLC0415  only where there is no /proc; the guard stays stdlib on Linux

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


class Log:
    """An append-only file that becomes its own predecessor when it is full."""

    def __init__(self, path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, data: bytes) -> None:
        """Append; a full disk loses log lines, never the server."""
        if self._size and self._size + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
            self._size = 0
        try:
            self._size += self._file.write(data)
        except OSError:
            self._size = max(self._size, 1)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _die_with_guard() -> None:
    """Ask Linux to kill the server when the guard is killed (runs in the child before exec)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(argv: list[str], directory: Path, lock: int, *, dies: bool) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        argv,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lock,),
        # The guard has one thread, so code between fork and exec is safe here.
        preexec_fn=_die_with_guard if dies and sys.platform.startswith("linux") else None,  # noqa: PLW1509  one thread
    )
    record = directory / RECORD_NAME
    draft = record.with_suffix(".new")
    draft.write_text(
        json.dumps({"pid": server.pid, "started": started(server.pid), "guard": os.getpid()}),
        encoding="utf-8",
    )
    draft.replace(record)
    return server


def _pump(server: subprocess.Popen[bytes], log: Log, lifeline: int | None, directory: Path) -> bool:
    """Copy output until the server ends; True if it lost its owner or its directory first."""
    assert server.stdout is not None
    output = server.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        if lifeline is not None:
            selector.register(lifeline, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(DIRECTORY_SECONDS)}
            if lifeline in ready or not directory.exists():
                return True
            if output not in ready:
                continue
            data = os.read(output, _READ_BYTES)
            if not data:
                return False
            log.write(data)


def _detach() -> None:
    """Become a grandchild in a session of its own, so that nobody has to wait for the guard."""
    if os.fork():
        os._exit(0)
    os.setsid()


def _take_lock(directory: Path) -> int | None:
    lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                return None
            threading.Event().wait(LOCK_SECONDS_MAX / 50)
        else:
            return lock


def _report(text: str) -> None:
    """Answer `process.spawn`, then let go of its pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def _remove(directory: Path, root: Path) -> None:
    """Remove an ephemeral node's files, and everything behind the last node."""
    shutil.rmtree(directory, ignore_errors=True)
    if not any(sibling.is_dir() for sibling in directory.parent.glob("*")):
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run one server: see the module's first lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--remove", type=Path)
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args()
    _detach()
    directory: Path = options.directory
    lock = _take_lock(directory)
    if lock is None:
        _report(ALREADY_RUNNING)
        return
    log = Log(directory / LOG_NAME)
    log.write(f"{STARTING}\n".encode())
    try:
        server = _start(options.argv, directory, lock, dies=options.lifeline is not None)
    except OSError as error:
        _report(f"{error}")
        return
    _report(str(server.pid))
    orphaned = _pump(server, log, options.lifeline, directory)
    if orphaned:
        server.kill()
    code = server.wait()
    log.write(f"[delivery] the server {_end(code)}\n".encode())
    log.close()
    if orphaned and options.remove is not None:
        _remove(directory, options.remove)


def _end(code: int) -> str:
    """Say how a server ended; a JVM that is asked to end by SIGTERM does so with 128 + 15."""
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return "was told to stop, and did"
    return f"ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"


if __name__ == "__main__":
    main()
