"""What of one partition is on its way: batches in order, sent again in that order where they must.

What it is: `Flight`, a batch, and `Runway`, those of one partition.
What it must not know: brokers, connections, what a batch means to whom.

Invariants:
    Batches are numbered in the order in which they wait, once, when they leave first.
    Behind one that failed none leaves until all that are on their way are back; then all of them
    leave again, in order and with their numbers.
    No more are on their way than a broker knows again.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Generic, TypeVar

from delivery.kafka.wire.encoding import stamp

__all__ = ["REQUESTS_MAX", "RETRY_SECONDS", "Flight", "Runway"]

#: So many batches of a producer a broker knows again; and requests on one connection.
REQUESTS_MAX = 5
#: Before what was refused for now is sent again.
RETRY_SECONDS = 0.1
#: Numbers of records go round here.
_SEQUENCE_MASK = 0x7FFFFFFF

_Sending = TypeVar("_Sending")


class Flight(Generic[_Sending]):
    """Records of one partition that are sent together.

    Args:
        data: the batch.
        count: of its records.
        sending: what they are part of.
    """

    def __init__(self, data: bytearray, count: int, sending: _Sending) -> None:
        self.data = data
        self.count = count
        self.sending = sending
        self.sequence = -1
        #: Refused for now, or on a connection that broke.
        self.failed = False


class Runway(Generic[_Sending]):
    """The batches of one partition."""

    def __init__(self) -> None:
        self._next_sequence = 0
        self._waiting: deque[Flight[_Sending]] = deque()
        self._flying: deque[Flight[_Sending]] = deque()
        self._not_before = 0.0
        #: Since when brokers do not know the partition.
        self.unknown_since = 0.0

    def add(self, flight: Flight[_Sending]) -> None:
        """Take a batch that is to be sent behind all others."""
        self._waiting.append(flight)

    def may_leave(self, now: float) -> bool:
        """Tell whether the next batch may be sent now."""
        return (
            bool(self._waiting)
            and len(self._flying) < REQUESTS_MAX
            and now >= self._not_before
            and not any(flight.failed for flight in self._flying)
        )

    def leave(self, identity: int, epoch: int) -> Flight[_Sending]:
        """Return the next batch, on its way now, with its number."""
        flight = self._waiting.popleft()
        self._flying.append(flight)
        if flight.sequence < 0:
            flight.sequence = self._next_sequence
            self._next_sequence = (self._next_sequence + flight.count) & _SEQUENCE_MASK
            stamp(flight.data, identity, epoch, flight.sequence)
        return flight

    def flies(self, flight: Flight[_Sending]) -> bool:
        """Tell whether a batch is on its way."""
        return flight in self._flying

    def first(self, flight: Flight[_Sending]) -> bool:
        """Tell whether nothing is on its way before a batch."""
        return self._flying[0] is flight

    def landed(self, flight: Flight[_Sending]) -> None:
        """Take note that a batch has been appended."""
        self._flying.remove(flight)
        self.unknown_since = 0.0
        self._settle()

    def fail(self, flight: Flight[_Sending]) -> None:
        """Take note that nobody knows whether a batch has been appended, or that it has not."""
        flight.failed = True
        self._settle()

    def _settle(self) -> None:
        """Let everything wait again, in order, once nothing is on its way that has not failed."""
        if self._flying and all(flight.failed for flight in self._flying):
            for flight in reversed(self._flying):
                flight.failed = False
                self._waiting.appendleft(flight)
            self._flying.clear()
            self._not_before = time.monotonic() + RETRY_SECONDS
