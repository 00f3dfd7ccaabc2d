"""Whether anybody is there at all, found out before a client library waits for it.

What it is: `addresses`, which reads "host:port,host:port"; `reach`, which knocks; `announced`, which
says that a first answer is still waited for.
What it must not know: client libraries, Kafka's protocol.

Invariants:
    Only what refuses, everywhere and for a while, is refused: who does not answer may be slow, and
    is left to the client library and its own patience.
    Nobody waits two seconds without a word.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dedup.errors import InvalidUsage, Unavailable

__all__ = ["Address", "addresses", "announced", "reach"]

Address = tuple[str, int]

#: How long all of them may refuse: a broker that was just told to start is up within it or not soon.
REFUSED_SECONDS = 3.0
#: How long one may take to accept or refuse; who needs longer is no refusal.
KNOCK_SECONDS = 1.0
PAUSE_SECONDS = 0.25
#: Who waits for longer is told so.
QUIET_SECONDS = 1.0

_ADDRESS = re.compile(
    r"(?:\w+://)?(?:\[(?P<six>[^\]]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>\d{1,5})"
)


def addresses(bootstrap: str) -> list[Address]:
    """Return the brokers that an address names.

    Raises:
        InvalidUsage: it is not HOST:PORT, or several of them with commas.
    """
    found = [_ADDRESS.fullmatch(one.strip()) for one in bootstrap.split(",")]
    named = [(one["six"] or one["host"], int(one["port"])) for one in found if one]
    if len(named) < len(found):
        raise InvalidUsage(
            "open a Kafka client",
            repr(bootstrap),
            "write HOST:PORT, as in localhost:9092, several of them with commas; nothing was read "
            "or changed",
        )
    return named


def reach(bootstrap: str, say: Callable[[str], None]) -> None:
    """Knock at every broker until one is not refused.

    Args:
        bootstrap: "host:port,host:port".
        say: is told that it takes a while.

    Raises:
        InvalidUsage: it is no address.
        Unavailable: all of them refuse.
    """
    named = addresses(bootstrap)
    began = time.monotonic()
    told = False
    while refusals := _refusals(named):
        waited = time.monotonic() - began
        if waited > REFUSED_SECONDS:
            raise Unavailable(
                "reach Kafka",
                bootstrap,
                f"nothing takes connections there ({'; '.join(refusals)}); nothing was read or "
                "changed: start it, or mend the address, and run this again",
            )
        if waited > QUIET_SECONDS and not told:
            told = True
            say(f"Kafka at {bootstrap} refuses connections; trying for {REFUSED_SECONDS:.0f} s")
        time.sleep(PAUSE_SECONDS)


@contextmanager
def announced(
    bootstrap: str, say: Callable[[str], None], why: Callable[[], str] = str
) -> Iterator[None]:
    """Say who is waited for, and why if that can be told, unless the body is done soon."""

    def tell() -> None:
        found = why()
        say(f"waiting for Kafka at {bootstrap} to answer{found and f': {found}'}")

    timer = threading.Timer(QUIET_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _refusals(named: list[Address]) -> list[str]:
    """Return why each of them refuses; nothing as soon as one may be there."""
    found = []
    for host, port in named:
        try:
            socket.create_connection((host, port), KNOCK_SECONDS).close()
        except TimeoutError:
            return []
        except OSError as error:
            which = f"{host}:{port}: " if len(named) > 1 else ""
            found.append(f"{which}{error.strerror or error}")
        else:
            return []
    return found
