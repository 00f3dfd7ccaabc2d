"""How a client of kafka-python is made, so that a failure leaves neither thread, socket nor secret.

What it is: `started`.
What it must not know: what the client is for.

Invariants:
    A client that cannot be made is taken down whole: the library itself leaves its I/O thread
    running, which would connect for ever.
    The library's debug lines with passwords in them are never written: the whole configuration,
    logins as requests, and the bytes of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kafka.net.compat import KafkaNetClient

__all__ = ["started"]


def _without_configuration(record: logging.LogRecord) -> bool:
    return "configuration" not in str(record.msg)


def _without_logins(record: logging.LogRecord) -> bool:
    # What a login says is among the arguments, as an object or as bytes that are sent.
    return "Send: " not in str(record.msg) and not any(
        type(one).__name__.startswith("SaslAuthenticate") for one in _arguments(record)
    )


def _arguments(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else (record.args,)


logging.getLogger("kafka.admin.client").addFilter(_without_configuration)
for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_without_logins)


def started(make: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
    """Return an admin client, a consumer or a producer of the library."""
    networks: list[Any] = []

    def network(**config: Any) -> Any:
        networks.append(KafkaNetClient(**config))
        return networks[-1]

    try:
        return make(**keywords, kafka_client=network)
    except BaseException:
        for one in networks:
            one.close()
        raise
