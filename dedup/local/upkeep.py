"""Upkeep: which runs are merged, when a filter is made anew, and the thread that long work is for.

What it is: `due`, a rule over sizes; the two kinds of work; `Background`, one of them at a time.
What it must not know: locks, manifests, who may adopt the outcome.

Invariants:
    Work reads only runs, which never change, and which there are of a group at a moment; it writes
    only files that nobody knows yet. So it needs no lock, may be thrown away at any time, and whoever
    adopts it looks first whether what it was made from is still what is held.
    After `close` no thread is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import log
from pathlib import Path
from threading import Event, Thread
from typing import Generic, TypeVar

from dedup.local.group import Group, Held
from dedup.local.limits import Limits
from dedup.local.shared import SharedFilter
from dedup.model import Incarnation
from dedup.runs import Stopped, merge_runs


@dataclass(slots=True)
class Merged:
    """Runs of a group, and the one that holds their ids."""

    group: Group
    inputs: tuple[Held, ...]
    output: Held


@dataclass(slots=True)
class Grown:
    """A filter with the bits of these runs."""

    group: Group
    inputs: tuple[Held, ...]
    output: SharedFilter


Outcome = Merged | Grown
#: Does it, asking from time to time whether to stop; None: it was stopped.
Work = Callable[[Callable[[], bool]], Outcome | None]
#: What comes of work in a thread.
Made = TypeVar("Made")


def due(group: Group, limits: Limits) -> tuple[Held, ...]:
    """Return runs that should be one, adjacent in time; none if all is well.

    A unit that is over becomes a single run. In the newest one, as many runs of one size as
    `fanout` become one of the next, and smaller ones with them, so that an id is moved a logarithm of
    times and the number of runs is a logarithm of the number of ids.

    SUBTLE: smaller runs are no reason to merge a larger one. Counted with it, three of a flush each
    would move all ids of the lane again and again.
    """
    units: dict[int, list[Held]] = {}
    for held in group.runs:
        units.setdefault(group.unit(held.run.bucket), []).append(held)
    for unit in sorted(units)[:-1]:
        if len(units[unit]) > 1:
            return tuple(units[unit])
    newest = units[max(units)] if units else []
    levels = [_level(held, limits) for held in newest]
    for level in sorted(set(levels)):
        if levels.count(level) >= limits.fanout:
            return tuple(held for held, of in zip(newest, levels, strict=True) if of <= level)
    return ()


def merging(group: Group, inputs: tuple[Held, ...], path: Path) -> Work:
    """Return the work of making one run of several.

    SUBTLE: every id is kept. Which seals count depends on the head that is asked for, and what is
    merged may be held under another one, or be another process's that is ahead: dropping what the
    head at hand does not know of would lose ids. Look-ups ask of each seal whether it counts.
    """

    def work(stop: Callable[[], bool]) -> Outcome | None:
        try:
            run = merge_runs(path, [held.run for held in inputs], _every, stop=stop)
        except Stopped:
            return None
        run.touch()
        return Merged(group, inputs, Held(run, path, max(held.seq for held in inputs)))

    return work


def growing(group: Group, make: Callable[[], SharedFilter]) -> Work:
    """Return the work of making a filter from runs.

    Those that come meanwhile are its work too: who adopts it would have to add a million ids at once.
    """

    def work(stop: Callable[[], bool]) -> Outcome | None:
        made = make()
        done: list[Held] = []
        while news := _without(group.runs, done):
            for held in news:
                for ids in held.pieces():
                    if stop():
                        made.close()
                        return None
                    made.add(ids)
            done += news
        return Grown(group, tuple(done), made)

    return work


class Background(Generic[Made]):
    """At most one piece of work in a thread, and its outcome."""

    def __init__(self) -> None:
        self._stop = Event()
        self._thread: Thread | None = None
        self._future: Future[Made | None] | None = None
        self._lock: int | None = None

    @property
    def busy(self) -> bool:
        """Whether there is work, done or not, whose outcome was not taken."""
        return self._future is not None

    def start(self, work: Callable[[Callable[[], bool]], Made | None], lock: int | None) -> None:
        """Begin; a lock that is given is freed when the outcome is taken."""
        assert self._future is None, "one piece of work at a time"
        self._lock = lock
        future: Future[Made | None] = Future()
        # A pool of one would take three times as long to begin.
        self._thread = Thread(target=self._do, args=(work, future), name="delivery-upkeep")
        self._thread.start()
        self._future = future

    def outcome(self, *, wait: bool = False) -> Made | None:
        """Return what has been made, once; None if there is nothing yet. Raises what it raised."""
        if self._future is None or not (wait or self._future.done()):
            return None
        future, self._future = self._future, None
        try:
            return future.result()
        finally:
            self._free()

    def close(self) -> None:
        """Stop the work, and wait until it has stopped."""
        self._stop.set()
        if self._future is not None:
            with suppress(Exception):  # nobody wants the outcome any more, failed or not
                self._future.result()
            self._future = None
        self._free()
        if self._thread is not None:
            self._thread.join()  # a thread outlives its outcome by a moment
            self._thread = None

    def _do(
        self, work: Callable[[Callable[[], bool]], Made | None], future: Future[Made | None]
    ) -> None:
        try:
            future.set_result(work(self._stop.is_set))
        except BaseException as error:  # noqa: BLE001 - whoever takes the outcome is told
            future.set_exception(error)

    def _free(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _without(runs: list[Held], done: list[Held]) -> list[Held]:
    known = {id(held) for held in done}
    return [held for held in tuple(runs) if id(held) not in known]


def _every(_incarnation: Incarnation, _seq: int) -> bool:
    return True


def _level(held: Held, limits: Limits) -> int:
    """Return the size of a run, rounded: what four runs become is in the middle of the next one."""
    return max(0, round(log(max(held.run.count, 1) / limits.level_ids, limits.fanout)))
