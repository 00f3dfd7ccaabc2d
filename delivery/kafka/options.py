"""Options as users write them, in Kafka's spelling, and what each client library calls them.

What it is: one set of names for both libraries (those of Java and of librdkafka, with or without
Spark's "kafka." in front), the refusal of what the guarantee rests on, and redaction.
What it must not know: connections.

Invariants:
    An option that means nothing to the library in use is refused by its name, never passed over.
    What the guarantee rests on cannot be set.
    The value of an option is in no error, log line or `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dedup.errors import InvalidUsage
from delivery.kafka.port import BROKERS_MS_MAX, RECONNECT_MS_MAX
from delivery.kafka.reaching import addresses

__all__ = ["Options", "for_kafka_python", "for_librdkafka"]

_SPARK_PREFIX = "kafka."
_REDACTED = "***"
#: Shorter values than this are not secrets, and replacing them would make errors unreadable.
_SECRET_CHARACTERS_MIN = 3
_SECRET = re.compile(r"password|secret|jaas|token|oauthbearer|\.pem$|key\.location$|username")
_JAAS = re.compile(
    r"^\s*[\w.]*\.(?:PlainLoginModule|ScramLoginModule)\s+required\b(?P<pairs>.*?);?\s*$", re.DOTALL
)
_JAAS_PAIR = re.compile(r"""(\w+)\s*=\s*["']([^"']*)["']""")

#: What the guarantee rests on, and why.
_OURS = {
    "acks": "a record counts only when all in-sync replicas have it",
    "request.required.acks": "a record counts only when all in-sync replicas have it",
    "auto.offset.reset": "an offset that is not in the log is refused, never skipped",
    "bootstrap.servers": "it is the address the client is opened with",
    "metadata.broker.list": "it is the address the client is opened with",
    "enable.auto.commit": "progress is kept in the catalog",
    "enable.auto.offset.store": "progress is kept in the catalog",
    "enable.gapless.guarantee": "the whole emission is repeated when one record fails",
    "enable.idempotence": "without it a retry may change the order of records",
    "enable.partition.eof": "positions move over holes by it",
    "delivery.report.only.error": "offsets are learned from the reports",
    "group.id": "no group is joined; the caller says which group monitors look at",
    "isolation.level": "records of aborted transactions never happened",
    "key.deserializer": "records are bytes",
    "key.serializer": "records are bytes",
    "transactional.id": "the guarantee does not rest on Kafka's transactions",
    "value.deserializer": "records are bytes",
    "value.serializer": "records are bytes",
}

#: Java's names for what librdkafka calls otherwise.
_LIBRDKAFKA = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "sasl.mechanisms": "sasl.mechanism",
}
_PRODUCER_ONLY = re.compile(
    r"^(batch\.|compression\.|delivery\.|linger\.|message\.timeout|queue\.buffering|retries$"
    r"|message\.send|request\.timeout)"
)
_CONSUMER_ONLY = re.compile(
    r"^(fetch\.|queued\.|max\.partition\.fetch|check\.crcs|session\.|heartbeat\.|max\.poll\.)"
)


def _boolean(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError(value)
    return value.lower() == "true"


def _checks_host(value: str) -> bool:
    return value.lower() not in {"", "none"}


#: Kafka's name -> kafka-python's, and how its value is read.
_KAFKA_PYTHON: dict[str, tuple[str, Callable[[str], Any]]] = {
    "batch.size": ("batch_size", int),
    "check.crcs": ("check_crcs", _boolean),
    "client.id": ("client_id", str),
    "client.rack": ("client_rack", str),
    "compression.type": ("compression_type", str),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "delivery.timeout.ms": ("delivery_timeout_ms", int),
    "fetch.max.bytes": ("fetch_max_bytes", int),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", int),
    "fetch.message.max.bytes": ("max_partition_fetch_bytes", int),
    "fetch.min.bytes": ("fetch_min_bytes", int),
    "fetch.wait.max.ms": ("fetch_max_wait_ms", int),
    "linger.ms": ("linger_ms", int),
    "max.in.flight.requests.per.connection": ("max_in_flight_requests_per_connection", int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", int),
    "max.request.size": ("max_request_size", int),
    "message.max.bytes": ("max_request_size", int),
    "message.timeout.ms": ("delivery_timeout_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "request.timeout.ms": ("request_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.username": ("sasl_plain_username", str),
    "security.protocol": ("security_protocol", str.upper),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.cipher.suites": ("ssl_ciphers", str),
    "ssl.crl.location": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _checks_host),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where a cluster is and how it is entered.

    Attributes:
        bootstrap: "host:port,host:port".
        given: options by Kafka's names.
    """

    bootstrap: str
    given: Mapping[str, str] = field(repr=False)

    @staticmethod
    def of(bootstrap: str, options: Mapping[str, object] | None = None) -> Options:
        """Take options in any of the spellings.

        Raises:
            InvalidUsage: one of them is what the guarantee rests on, or cannot be read; the address
                is none.
        """
        addresses(bootstrap)
        named = {
            name.removeprefix(_SPARK_PREFIX): value if isinstance(value, str) else _text(value)
            for name, value in (options or {}).items()
        }
        for name in named:
            if name in _OURS:
                raise _refused(name, f"it cannot be chosen: {_OURS[name]}; leave it out")
        if "sasl.jaas.config" in named:
            named |= _from_jaas(named.pop("sasl.jaas.config"))
        return Options(bootstrap=bootstrap, given=_from_stores(named))

    def redacted(self, text: object) -> str:
        """Return a text without the secrets among the values."""
        clean = str(text)
        for name, value in self.given.items():
            if _SECRET.search(name) and len(value) >= _SECRET_CHARACTERS_MIN:
                clean = clean.replace(value, _REDACTED)
        return clean


def for_librdkafka(options: Options, role: str) -> dict[str, Any]:
    """Return librdkafka's configuration for a "consumer", a "producer" or an "admin"."""
    unwanted = _PRODUCER_ONLY if role == "consumer" else _CONSUMER_ONLY
    named = {_LIBRDKAFKA.get(name, name): value for name, value in options.given.items()}
    kept = {name: value for name, value in named.items() if not unwanted.search(name)}
    if kept.get("ssl.endpoint.identification.algorithm") == "":
        kept["ssl.endpoint.identification.algorithm"] = "none"  # Java says it with nothing
    ours: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
    }
    if role == "admin":
        ours["topic.metadata.refresh.interval.ms"] = BROKERS_MS_MAX
    return ours | kept


def for_kafka_python(options: Options, known: Iterable[str]) -> dict[str, Any]:
    """Return kafka-python's keyword arguments for one of its classes.

    Args:
        options: what was given.
        known: the keywords of that class; what belongs to another class is left out.
    """
    keywords: dict[str, Any] = {}
    for name, value in options.given.items():
        if name not in _KAFKA_PYTHON:
            raise _refused(
                name, "kafka-python has nothing like it; leave it out, or install confluent-kafka"
            )
        keyword, read = _KAFKA_PYTHON[name]
        try:
            keywords[keyword] = read(value)
        except ValueError:
            raise _refused(name, "its value cannot be read; mend it") from None
    known = set(known)
    kept = {keyword: value for keyword, value in keywords.items() if keyword in known}
    ours = {
        "bootstrap_servers": options.bootstrap.split(","),
        "reconnect_backoff_max_ms": RECONNECT_MS_MAX,
    }
    return ours | kept


#: Java's key stores, and what their contents are called elsewhere.
_STORES: dict[str, tuple[str, ...]] = {
    "truststore": ("ssl.ca.location",),
    "keystore": ("ssl.certificate.location", "ssl.key.location"),
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(name: str, why: str) -> InvalidUsage:
    return InvalidUsage("set a Kafka option", name, f"{why}; nothing was read or written")


def _from_jaas(text: str) -> dict[str, str]:
    """Read user name and password out of Java's login line, as Spark jobs carry it."""
    line = _JAAS.match(text)
    pairs = dict(_JAAS_PAIR.findall(line["pairs"])) if line else {}
    if not {"username", "password"} <= pairs.keys():
        raise _refused(
            "sasl.jaas.config",
            "only the plain and SCRAM login modules with user name and password can be read; "
            "give sasl.username and sasl.password instead",
        )
    return {"sasl.username": pairs["username"], "sasl.password": pairs["password"]}


def _from_stores(named: dict[str, str]) -> dict[str, str]:
    """Read Java's key stores, where they are PEM files."""
    for store, places in _STORES.items():
        location = named.pop(f"ssl.{store}.location", None)
        kind = named.pop(f"ssl.{store}.type", "JKS" if location is not None else "PEM")
        if location is None:
            continue
        if kind.upper() != "PEM":
            raise _refused(
                f"ssl.{store}.location",
                "only PEM files can be read outside of Java; export it and give "
                f"{' and '.join(places)}",
            )
        named |= dict.fromkeys(places, location)
    return named
