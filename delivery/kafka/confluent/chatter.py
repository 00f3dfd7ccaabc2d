"""What librdkafka says by itself: kept out of users' logs, but for what they cannot learn otherwise.

What it is: `spoken`, the part of librdkafka's configuration by which it is heard.
What it must not know: which client says it, what that is for.

Invariants:
    Brokers that are gone are told of by `delivery.kafka.outages`, in two lines, not by each
    attempt of each client to reach each of them.
    What keeps a client out although a broker is there (TLS, SASL) keeps its level, once a process.
    Nothing is thrown away: all the rest is there at level DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError

from delivery.kafka.outages import gone

__all__ = ["is_outage", "spoken"]

LOG = logging.getLogger(__name__)

_ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001  librdkafka's own codes begin so
#: What lines are about that only say that a connection failed or ended.
_CONNECTIONS = {"FAIL", "ERROR"}
#: What a line has in it if a connection failed although somebody was there.
_ENTERING = ("SSL", "SASL", "uthenticat")
#: Lines that are remembered, so as not to be said again: as many as a large cluster has brokers.
_SAID_MAX = 1_000


class _Chatter:
    """Takes librdkafka's lines as a logger would."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def log(self, level: int, form: str, *words: str) -> None:
        """Take one line: what it is about, which client says it, and the text."""
        about, text = words[0], words[-1]
        entering = any(word in text for word in _ENTERING)
        if level < logging.ERROR or (about in _CONNECTIONS and not entering) or self._known(text):
            level = logging.DEBUG
        LOG.log(level, form, *words)

    def _known(self, text: str) -> bool:
        """Tell whether it was said before; how long a try took makes no new line of it."""
        line = text.partition(" (after ")[0]
        known = line in self._said or len(self._said) >= _SAID_MAX
        self._said.add(line)
        return known


_CHATTER = _Chatter()


def is_outage(error: KafkaError, bootstrap: str) -> bool:
    """Tell whether an error is that no broker is reached; it is then told of."""
    if error.code() != _ALL_BROKERS_DOWN:
        return False
    gone(bootstrap)
    return True


def spoken(bootstrap: str) -> dict[str, Any]:
    """Return what librdkafka is told about whom to tell."""
    return {"logger": _CHATTER, "error_cb": lambda error: is_outage(error, bootstrap)}
