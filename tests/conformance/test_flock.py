"""The lock between processes: bounded waits, forks, the death of its holder."""

from __future__ import annotations

import multiprocessing
import threading

from dedup.catalog.flock import FileLock

WAIT_SECONDS = 20


def test_who_waits_gets_the_lock_when_it_is_released(tmp_path):
    holder, waiter = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert holder.acquire(1)
    assert not waiter.acquire(0.01)
    results = []
    thread = threading.Thread(target=lambda: results.append(waiter.acquire(WAIT_SECONDS)))
    thread.start()
    holder.release()
    thread.join(WAIT_SECONDS)
    assert results == [True]
    assert not holder.acquire(0.01), "the wait given up before left nothing behind"
    waiter.release()
    assert holder.acquire(WAIT_SECONDS)
    holder.close()
    waiter.close()


def _live_on(ready, end):
    ready.set()
    end.wait(WAIT_SECONDS)


def test_a_lock_held_at_a_fork_is_free_when_its_holder_is(tmp_path):
    """A child that lives on does not keep its parent's lock."""
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    assert lock.acquire(1)
    child = context.Process(target=_live_on, args=(ready, end))
    child.start()
    assert ready.wait(WAIT_SECONDS)
    lock.close()  # as the death of this process would
    assert other.acquire(WAIT_SECONDS)
    end.set()
    child.join(WAIT_SECONDS)
    other.close()
