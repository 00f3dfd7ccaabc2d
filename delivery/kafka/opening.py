"""Which client library serves.

What it is: `open_client`.
What it must not know: how any library works; none is imported unless it is used.

Invariants:
    Records go over sockets of our own ("wire") wherever every option is understood there, and
    questions through the first library that is installed. Where one is named, it does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from dedup.errors import InvalidUsage, Unavailable
from delivery.kafka.entering import refusal
from delivery.kafka.options import Options
from delivery.kafka.port import Client
from delivery.kafka.reaching import announced, reach
from delivery.kafka.wire.client import WireClient, serves

__all__ = ["LIBRARIES", "open_client"]

#: Which reads and writes records itself, and asks through one of the others.
_WIRE = "wire"
#: Name -> the package it needs, and the class that wraps it. The first that is installed serves.
_WHOLE = {
    "confluent": ("confluent_kafka", "delivery.kafka.confluent.client", "ConfluentClient"),
    "kafka-python": ("kafka", "delivery.kafka.kafka_python.client", "KafkaPythonClient"),
}
#: Everything that may be named.
LIBRARIES = (*_WHOLE, _WIRE)
#: What each is called where packages are installed from.
_PACKAGES = {"confluent": "confluent-kafka", "kafka-python": "kafka-python"}


def open_client(
    bootstrap: str,
    options: Mapping[str, object] | None = None,
    client: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Client:
    """Open a cluster.

    Args:
        bootstrap: "host:port,host:port".
        options: any option of Kafka's, by Java's or librdkafka's name.
        client: "wire", "confluent" or "kafka-python"; None: "wire" where it understands every option,
            else confluent-kafka if it is installed.
        say: if given, a broker has answered when this returns, and it is told what is waited for.

    Raises:
        InvalidUsage: an address, an option or a library that cannot be had; with `say`, a broker that
            lets nobody in by these options.
        Unavailable: no broker answers; without `say` kafka-python finds out at once, librdkafka
            when it is asked something.
    """
    if client is not None and client not in LIBRARIES:
        raise InvalidUsage(
            "open a Kafka client", client, f"there are {', '.join(LIBRARIES)}; choose one of them"
        )
    chosen = Options.of(bootstrap, options)
    if client == _WIRE and not serves(chosen):
        raise InvalidUsage(
            "open a Kafka client",
            "client='wire'",
            f"it does not understand every option ({', '.join(sorted(chosen.given))}); nothing was "
            "read or written: leave client= out, and a library that does is used",
        )
    make = partial(_opened, chosen, client)
    if say is None:
        return make()
    reach(bootstrap, say)
    with announced(bootstrap, say, partial(refusal, chosen)):
        try:
            return _answering(make)
        except Unavailable as error:
            why = refusal(chosen)
            if not why:
                raise
            raise InvalidUsage(error.op, bootstrap, f"{why}; nothing was read or written") from None


def _answering(make: Callable[[], Client]) -> Client:
    """Return a client that a broker has answered."""
    opened = make()
    try:
        opened.names()
    except BaseException:
        opened.close()
        raise
    return opened


def _opened(options: Options, client: str | None) -> Client:
    wanted = [client] if client in _WHOLE else list(_WHOLE)
    installed = [name for name in wanted if find_spec(_WHOLE[name][0]) is not None]
    if not installed:
        packages = " or ".join(_PACKAGES[name] for name in wanted)
        raise InvalidUsage(
            "open a Kafka client", " or ".join(wanted), f"it is not installed: install {packages}"
        )
    _, module, name = _WHOLE[installed[0]]
    make: Callable[[Options], Client] = getattr(import_module(module), name)
    opened = make(options)
    return opened if client in _WHOLE or not serves(options) else WireClient(options, opened)
