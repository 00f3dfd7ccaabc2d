"""Whether Kafka is there for this process: said once when it is gone, and once when it is back.

What it is: `gone`, which a client calls that has lost every broker.
What it must not know: client libraries, what waits for the brokers.

Invariants:
    Of one outage a process says two lines, however many clients it has and however often each is
    told. A client that lost its brokers for a moment, while they answer, is no outage.
    Whoever calls waits for nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

from delivery.kafka.reaching import KNOCK_SECONDS, Address, addresses

__all__ = ["gone"]

LOG = logging.getLogger(__name__)

#: How often it is looked whether somebody is back.
LOOK_SECONDS = 0.5

#: What is looked at just now. With the process, because a fork has no threads of its parent's.
_watched: set[tuple[int, str]] = set()
_turn = threading.Lock()


def gone(bootstrap: str) -> None:
    """Take note that a client reaches no broker; may be called again and again, by any thread.

    Args:
        bootstrap: "host:port,host:port".
    """
    mine = (os.getpid(), bootstrap)
    with _turn:
        if mine in _watched:
            return
        _watched.add(mine)
    name = f"delivery-outage-{bootstrap}"
    threading.Thread(target=_watch, args=mine, name=name, daemon=True).start()


def _watch(process: int, bootstrap: str) -> None:
    """Say that nobody answers, if that is so, and wait until somebody does."""
    named, told = addresses(bootstrap), False
    while not any(map(_answers, named)):
        if not told:
            LOG.warning(
                "Kafka at %s does not answer; nothing is lost; the stages wait: start it, or see what "
                "keeps it from this machine",
                bootstrap,
            )
            told = True
        time.sleep(LOOK_SECONDS)
    if told:
        LOG.warning("Kafka at %s is back; the stages go on", bootstrap)
    with _turn:
        _watched.discard((process, bootstrap))


def _answers(broker: Address) -> bool:
    try:
        socket.create_connection(broker, KNOCK_SECONDS).close()
    except OSError:
        return False
    return True
