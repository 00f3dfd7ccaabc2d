"""Kafka as a scrape may ask it: whoever does not answer in time is down for this look.

What it is: `Brokers`, which asks in a thread of its own, and `Seen`, what it was told.
What it must not know: what is measured.

Invariants:
    A look waits `ANSWER_SECONDS` at most, because whoever scrapes does not wait longer. What was
    asked goes on, and nothing else is asked before it is answered.
    Everything that may have to wait is asked for here; what was seen waits for nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from dedup.errors import DeliveryError
from delivery.kafka.port import Client
from delivery.watch.guarantee import settings_in
from delivery.watch.rows import Rows
from delivery.watch.waiting import Doors

__all__ = ["Brokers", "Seen"]

#: Prometheus gives up on a scrape after ten seconds.
ANSWER_SECONDS = 4.0
#: Settings of topics change rarely, and each costs a question.
SETTINGS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of Kafka: bounds of the topics of all lanes, and how topics are set."""

    doors: Doors
    settings: Mapping[str, Mapping[str, str]]


class Brokers:
    """One cluster.

    Args:
        client: opens it; called again after it did not answer.
    """

    def __init__(self, client: Callable[[], Client]) -> None:
        self._open = client
        self._client: Client | None = None
        self._asking: threading.Thread | None = None
        self._seen: Seen | None = None
        self._settings: tuple[float, Mapping[str, Mapping[str, str]]] | None = None
        self._closed = False

    def ask(self, rows: Rows) -> Seen | None:
        """Return what topics of these lanes hold; None: there was no answer in time."""
        if self._asking is None or not self._asking.is_alive():
            self._seen = None
            self._asking = threading.Thread(
                target=self._ask, args=(rows,), name="delivery-metrics-kafka", daemon=True
            )
            self._asking.start()
        self._asking.join(ANSWER_SECONDS)
        return None if self._asking.is_alive() else self._seen

    def close(self) -> None:
        """Let go of it, at once or when it answers. May be called twice."""
        self._closed = True
        if self._asking is None or not self._asking.is_alive():
            self._drop()

    def _ask(self, rows: Rows) -> None:
        try:
            if self._client is None:
                self._client = self._open()
            doors = Doors(self._client)
            doors.ask_for({topic for one in rows.stages for topic in (*one.reads, *one.writes)})
            now = time.monotonic()
            if self._settings is None or now - self._settings[0] >= SETTINGS_SECONDS:
                self._settings = (now, settings_in(rows, doors))
            self._seen = Seen(doors, self._settings[1])
        except DeliveryError:
            # It is down, which is a sample of its own; the next look opens it anew.
            self._drop()
        if self._closed:
            self._drop()

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(DeliveryError):
                client.close()
