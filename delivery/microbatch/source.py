"""Spark's Kafka source, told where to begin by us and nothing else by anybody.

What it is: `frame`, a stream, and `bounded`, a batch; `refuse_ours` for options that a user gives along,
and how options of Kafka's are spelled for Spark.
What it must not know: batches, lanes, what is done with the rows.

Invariants:
    A partition is read by one task in offset order: what would split it is refused.
    Only committed records are read; what is gone is an error, never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dedup.errors import InvalidUsage
from delivery.host.spec import Plan
from delivery.microbatch.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OURS", "bounded", "frame", "kafka_options", "refuse_ours"]

#: What the guarantee rests on, in lower case as Spark compares options, and why.
OURS = {
    "minpartitions": "a partition must be read by one task, in order",
    "maxrecordsperpartition": "a partition must be read by one task, in order",
    "failondataloss": "what is gone is an error, never skipped",
    "kafka.isolation.level": "records of aborted transactions never happened",
    "kafka.group.id": "progress is kept in the catalog",
    "groupidprefix": "progress is kept in the catalog",
    "startingtimestamp": "the lanes' frontiers say where to begin",
    "startingoffsetsbytimestamp": "the lanes' frontiers say where to begin",
    "startingoffsetsbytimestampstrategy": "the lanes' frontiers say where to begin",
    "endingtimestamp": "a run ends at offsets, which endingOffsets may say",
    "endingoffsetsbytimestamp": "a run ends at offsets, which endingOffsets may say",
}
#: What the engine says itself and a user of `wrap_source` says instead.
SAID = ("kafka.bootstrap.servers", "subscribe", "startingoffsets", "includeheaders")
#: Ways to name topics that are not one fixed list.
LOOSE = ("subscribepattern", "assign")

#: How long a broker may hold a fetch back that finds nothing. Spark's reader asks for what comes after
#: a batch before anybody wants it, and the next batch waits for that answer: half a second by Kafka's
#: own default, where few records come. Nobody asks between batches, so it costs no requests.
FETCH_WAIT_MS = 10

_PREFIX = "kafka."
#: librdkafka's names for what Java calls otherwise.
_JAVA = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
}


def frame(
    spark: SparkSession,
    topics: str,
    start: Offsets,
    options: Mapping[str, str],
) -> DataFrame:
    """Return a stream of Spark's own Kafka columns, headers among them, from `start` on."""
    told = {"subscribe": topics, "startingOffsets": _json(start)}
    return spark.readStream.format("kafka").options(**_options(options, told)).load()


def bounded(
    spark: SparkSession, start: Offsets, end: Offsets, options: Mapping[str, str]
) -> DataFrame:
    """Return the same columns of what lies between, whatever comes meanwhile.

    Spark is told which partitions there are: of a subscription it would want to know where one begins
    that was added since.
    """
    told = {
        "assign": json.dumps({topic: sorted(found) for topic, found in start.items()}),
        "startingOffsets": _json(start),
        "endingOffsets": _json(end),
    }
    return spark.read.format("kafka").options(**_options(options, told)).load()


def _options(given: Mapping[str, str], told: Mapping[str, str]) -> dict[str, Any]:
    """Return all that Spark's source is told; what the guarantee rests on wins."""
    ours = {
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    return {"kafka.fetch.max.wait.ms": FETCH_WAIT_MS, **given, **told, **ours}


def _json(offsets: Offsets) -> str:
    return json.dumps(
        {topic: {str(p): offset for p, offset in found.items()} for topic, found in offsets.items()}
    )


def kafka_options(plan: Plan) -> dict[str, str]:
    """Return where the cluster is and how it is entered, as Spark spells it.

    Raises:
        InvalidUsage: it is entered in a way that Java has not.
    """
    given = {name.removeprefix(_PREFIX): _text(value) for name, value in plan.options.items()}
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if user is not None and password is not None and "sasl.jaas.config" not in given:
        mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "PLAIN"))
        module = (
            "org.apache.kafka.common.security.plain.PlainLoginModule"
            if mechanism == "PLAIN"
            else "org.apache.kafka.common.security.scram.ScramLoginModule"
        )
        given["sasl.jaas.config"] = f'{module} required username="{user}" password="{password}";'
    if "ssl.ca.location" in given:
        given["ssl.truststore.type"] = "PEM"
    if "ssl.certificate.location" in given:
        _refuse_two_files(given["ssl.certificate.location"], given.pop("ssl.key.location", None))
        given["ssl.keystore.type"] = "PEM"
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        given["ssl.endpoint.identification.algorithm"] = ""  # librdkafka's word for nothing
    named = {_PREFIX + _JAVA.get(name, name): value for name, value in given.items()}
    return named | {"kafka.bootstrap.servers": plan.kafka}


def refuse_ours(options: Mapping[str, Any], *more: str) -> None:
    """Refuse an option that what we promise rests on.

    Raises:
        InvalidUsage: with its name.
    """
    for name in options:
        low = name.lower()
        if low in OURS or low in more:
            raise InvalidUsage(
                "set an option of Spark's Kafka source",
                name,
                f"it cannot be chosen: {OURS.get(low, 'the stage says it')}; nothing was started: "
                "leave it out",
            )


def _refuse_two_files(certificate: str, key: str | None) -> None:
    if key not in {None, certificate}:
        raise InvalidUsage(
            "set a Kafka option",
            "ssl.key.location",
            "Spark's Kafka source takes a certificate and its key from one PEM file; nothing was "
            "started: put both into one, and name it in ssl.certificate.location and ssl.key.location",
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
