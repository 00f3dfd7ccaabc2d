"""Which client library serves.

What it is: `open_client`.
What it must not know: how any library works; neither is imported unless it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from dedup.errors import InvalidUsage
from delivery.kafka.options import Options
from delivery.kafka.port import Client
from delivery.kafka.reaching import announced, reach

__all__ = ["LIBRARIES", "open_client"]

#: Name -> the package it needs, and the class that wraps it. The first that is installed serves.
LIBRARIES = {
    "confluent": ("confluent_kafka", "delivery.kafka.confluent.client", "ConfluentClient"),
    "kafka-python": ("kafka", "delivery.kafka.kafka_python.client", "KafkaPythonClient"),
}
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
        client: "confluent" or "kafka-python"; None: confluent-kafka if it is installed.
        say: if given, a broker has answered when this returns, and it is told what is waited for.

    Raises:
        InvalidUsage: an address, an option or a library that cannot be had.
        Unavailable: no broker answers; without `say` kafka-python finds out at once, librdkafka
            when it is asked something.
    """
    if client is not None and client not in LIBRARIES:
        raise InvalidUsage(
            "open a Kafka client", client, f"there are {', '.join(LIBRARIES)}; choose one of them"
        )
    wanted = [client] if client is not None else list(LIBRARIES)
    installed = [name for name in wanted if find_spec(LIBRARIES[name][0]) is not None]
    if not installed:
        packages = " or ".join(_PACKAGES[name] for name in wanted)
        raise InvalidUsage(
            "open a Kafka client", " or ".join(wanted), f"it is not installed: install {packages}"
        )
    _, module, name = LIBRARIES[installed[0]]
    make: Callable[[Options], Client] = getattr(import_module(module), name)
    chosen = Options.of(bootstrap, options)
    if say is None:
        return make(chosen)
    reach(bootstrap, say)
    with announced(bootstrap, say):
        opened = make(chosen)
        try:
            opened.names()
        except BaseException:
            opened.close()
            raise
        return opened
