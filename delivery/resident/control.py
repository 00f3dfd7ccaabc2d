"""The driver's end of the lines: who is there, how their lanes stand, and orders to all of them.

What it is: `Control`, a listener with a thread for each task, and what they said last.
What it must not know: Spark, why an order is given.

Invariants:
    Only tasks of the run that is on are listened to; any other is told to end.
    A task that comes back under its number replaces the one that was there, which is hung up on.
    What a task had counted when it was last heard of stays counted. Lanes stay as they stood with a
    task that said its last word, until the next run begins.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from delivery.host.counters import Counters
from delivery.host.progress import LaneProgress, Progress
from delivery.resident.channel import Link, Lost, Message
from delivery.resident.failures import error_of

__all__ = ["Control"]

LOG = logging.getLogger(__name__)

#: Tasks and strangers that may be connected at once.
CONNECTIONS_MAX = 1000
#: How often the listener looks whether it is to end.
ACCEPT_SECONDS = 1.0
KEY_BYTES = 32
#: A task that says nothing for so long is named: it tells how it stands once a second, but not
#: while it waits for user code or for a server.
SILENT_SECONDS = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """One task."""

    link: Link
    number: int
    name: str
    progress: Progress = field(default_factory=Progress)
    #: What it waits for, in words; empty while all is well.
    trouble: str = ""
    #: When it last said anything.
    heard: float = field(default_factory=time.monotonic)
    #: It said its last word.
    ended: bool = False


class Control:
    """Listens to tasks.

    Args:
        host: an address that executors can reach.
        bind: the address that is listened on, if it is another one.
        port: 0: a free one.
        changed: called, from any thread, whenever something was heard.
    """

    def __init__(self, host: str, *, bind: str, port: int, changed: Callable[[], None]) -> None:
        self._server = socket.create_server((bind, port), backlog=64)
        self._server.settimeout(ACCEPT_SECONDS)
        self.address = (host, int(self._server.getsockname()[1]))
        self.key = os.urandom(KEY_BYTES)
        self._changed = changed
        self._turn = threading.RLock()
        self._lines: dict[int, _Line] = {}
        self._run = -1
        self._partitions: dict[str, int] = {}
        self._ending = False
        self._counters = Counters()
        self._stood: dict[str, LaneProgress] = {}
        self._links: set[Link] = set()
        #: What ended a stage for good.
        self.failure: Exception | None = None
        #: How many tasks of the run that is on were ever heard of.
        self.greeted = 0
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="delivery-control", daemon=True).start()

    # Orders -----------------------------------------------------------------------------------

    def begin(self, run: int, partitions: Mapping[str, int]) -> None:
        """Listen to the tasks of a run, and no other; each is told of these partitions."""
        with self._turn:
            self._run, self._ending, self.greeted = run, False, 0
            self._stood = {}
            self._partitions = dict(partitions)

    def grow(self, partitions: Mapping[str, int]) -> None:
        """Tell every task that topics have more partitions now."""
        with self._turn:
            self._partitions = dict(partitions)
            self._tell({"lanes": self._partitions})

    def end(self) -> None:
        """Tell every task, and whoever calls later, to finish and end."""
        with self._turn:
            self._ending = True
            self._tell({"end": {}})

    def _tell(self, order: Message) -> None:
        for line in self._lines.values():
            with suppress(Lost):  # its own thread notices
                line.link.send(order)

    def close(self) -> None:
        """Hang up on everybody. May be called twice."""
        self._closed.set()
        self._server.close()
        with self._turn:
            for link in self._links:
                link.cut()

    # How they stand ---------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many tasks are there."""
        with self._turn:
            return len(self._lines)

    @property
    def troubles(self) -> list[str]:
        """What tasks are waiting for, and which of them have fallen silent."""
        now = time.monotonic()
        with self._turn:
            return [
                said
                for line in self._lines.values()
                if (said := line.trouble or _silence(line, now))
            ]

    def progress(self) -> Progress:
        """Return how all lanes stand, and what was counted since the query began."""
        with self._turn:
            counters = Counters()
            counters.add(self._counters)
            lanes = dict(self._stood)
            for _, line in sorted(self._lines.items()):
                counters.add(Counters(**line.progress.counters))
                lanes |= {lane.lane: lane for lane in line.progress.lanes}
            return Progress(lanes=tuple(lanes.values()), counters=counters.document())

    # Listening --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                found, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            if len(self._links) >= CONNECTIONS_MAX:
                found.close()
                continue
            name = "delivery-task"
            threading.Thread(target=self._serve, args=(found,), name=name, daemon=True).start()

    def _serve(self, found: socket.socket) -> None:
        link = Link.accepted(found, self.key)
        if link is None:
            LOG.warning("somebody called who does not know the key, and was hung up on")
            return
        with self._turn:
            self._links.add(link)
        line = None
        try:
            line = self._greeted(link, link.receive()["hello"])
            while line is not None:
                self._heard(line, link.receive())
        except Lost:
            pass
        finally:
            with self._turn:
                self._links.discard(link)
                if line is not None:
                    self._gone(line)
            link.close()
            self._changed()

    def _greeted(self, link: Link, hello: dict[str, Any]) -> _Line | None:
        """Take a task in; None if it is not one of ours any more."""
        number = int(hello["task"])
        with self._turn:
            if hello["run"] != self._run or self._ending or self._closed.is_set():
                with suppress(Lost):
                    link.send({"end": {}})
                return None
            before = self._lines.get(number)
            if before is not None:
                self._gone(before)
                # SUBTLE: not told to end. Spark may have started this one beside it, as a copy of a
                # task that seems slow: if either ended well, Spark would end the other, and nobody
                # would run their lanes. So the one before fails.
                before.link.cut()
            line = _Line(link=link, number=number, name=f"{hello['host']} pid {hello['pid']}")
            self._lines[number] = line
            self.greeted += 1
            link.send({"lanes": self._partitions})
        LOG.info("task %d runs on %s", number, line.name)
        self._changed()
        return line

    def _heard(self, line: _Line, message: Message) -> None:
        with self._turn:
            line.heard = time.monotonic()
            if "progress" in message or "ended" in message:
                line.progress = Progress.of(message.get("progress") or message["ended"])
                for lane in line.progress.lanes:
                    LOG.debug("%s", lane.words)
                line.trouble = ""
                line.ended = "ended" in message
                if line.ended:
                    self._stood |= {lane.lane: lane for lane in line.progress.lanes}
            if "trouble" in message:
                told = message["trouble"]
                line.trouble = f"{told['place'] or line.name}: {told['kind']}: {told['text']}"
                LOG.warning("%s; again in %.1f s", line.trouble, told["pause"])
            if "failed" in message:
                line.ended = True
                LOG.error("%s: %s", line.name, message["failed"]["text"])
                self.failure = self.failure or error_of(message["failed"])
        self._changed()

    def _gone(self, line: _Line) -> None:
        """Keep what a task counted, and forget it. Twice is once."""
        if self._lines.get(line.number) is not line:
            return
        del self._lines[line.number]
        self._counters.add(Counters(**line.progress.counters))
        if not line.ended:
            LOG.warning("task %d on %s is gone without a word", line.number, line.name)


def _silence(line: _Line, now: float) -> str:
    """Say that a task has been silent for long; nothing if it has not."""
    seconds = now - line.heard
    if seconds < SILENT_SECONDS:
        return ""
    return (
        f"task {line.number} on {line.name} has said nothing for {seconds:.0f} s: its code or a "
        "server is slow, or its process stands still; its lanes wait, nothing is lost: if it will "
        "not wake, kill that process, and Spark starts the task again"
    )
