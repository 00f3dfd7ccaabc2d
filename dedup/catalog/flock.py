"""A lock between processes of one machine, on a file of its own.

What it is: an exclusive `flock` with a bounded wait. Waiters sleep in the kernel's queue, so that
a busy writer cannot starve the others, as it can with SQLite's own polling.
What it must not know: what it protects.

Invariants:
    The death of its holder frees it.
    A fork never keeps it held: the child closes its copy of the descriptor without unlocking.
    A wait that was given up can never turn into a lock that nobody knows of.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path


class FileLock:
    """An exclusive lock on `path`; one holder at a time, among processes and among instances."""

    _file = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        _LIVING.add(self)

    def __del__(self) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called, here or by a fork."""
        return self._file < 0

    def acquire(self, seconds_max: float) -> bool:
        """Take the lock; False if somebody else held it for all of `seconds_max`."""
        assert self._file >= 0, "the lock is open"
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._wait(seconds_max)
        return True

    def release(self) -> None:
        """Free the lock."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Free the lock and forget it; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _wait(self, seconds_max: float) -> bool:
        """Sleep in the kernel's queue, in a thread of its own, because `flock` has no timeout."""
        file, taken = self._file, threading.Event()
        given_up = threading.Event()
        decided = threading.Lock()

        def sleep() -> None:
            fcntl.flock(file, fcntl.LOCK_EX)
            with decided:
                taken.set()
                if given_up.is_set():
                    os.close(file)  # nobody waits any more: the descriptor takes the lock with it

        threading.Thread(target=sleep, name="delivery-flock", daemon=True).start()
        try:
            taken.wait(seconds_max)
        finally:
            with decided:
                if not taken.is_set():
                    given_up.set()
                    self._file = _open(self.path)
        return taken.is_set()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


#: The locks whose descriptors a forked child has to close.
_LIVING: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_LIVING):
        lock.close()


os.register_at_fork(after_in_child=_forget_in_child)
