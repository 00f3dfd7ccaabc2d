"""Checkpoints as Spark itself writes them: a query is stopped, and a stage goes on where it stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dedup.errors import InvalidUsage
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.seeding.checkpoint import positions
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.integration.test_spark_session import run

#: Reads two topics in two sources of one query, beside one that is not Kafka's, and stops when idle;
#: then once more with a sink that fails, so that a batch is planned and not committed.
QUERY = """
    from delivery.spark import spark_session

    conf = {{"spark.log.level": "OFF", "spark.sql.streaming.offsetLog.formatVersion": "{version}"}}
    spark = spark_session("old job", conf=conf)

    def read(topic):
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{bootstrap}")
        return source.option("subscribe", topic).option("startingOffsets", "earliest").load()

    ticks = spark.readStream.format("rate").load().selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    both = read("{first}").select("value").union(read("{second}").select("value")).union(ticks)
    query = both.writeStream.format("noop").option("checkpointLocation", "query").start()
    while not query.lastProgress:
        query.awaitTermination(0.2)
    query.stop()

    def fail(frame, batch):
        raise RuntimeError("the old job ends in the middle")

    broken = read("{first}").writeStream.foreachBatch(fail).option("checkpointLocation", "open")
    try:
        broken.start().awaitTermination()
    except Exception:
        pass
    print(json.dumps(os.listdir(".")))
"""


@pytest.mark.parametrize("version", [1, 2])
def test_what_spark_wrote_is_understood(
    kafka: Kafka, unique: Callable[[str], str], tmp_path, version
):
    first, second = unique("orders"), unique("returns")
    with open_client(kafka.bootstrap) as client:
        producer = client.producer()
        for name in (first, second):
            topic = client.create(name, TopicSettings(partitions=2))
            producer.emit([topic], emissions([Sent(0), Sent(0), Sent(1)]))
        producer.close()
    script = QUERY.format(bootstrap=kafka.bootstrap, first=first, second=second, version=version)
    assert {"query", "open"} <= set(run(tmp_path, script))
    told = (tmp_path / "query" / "offsets" / "0").read_text()
    assert told.startswith(f"v{version}")
    stands = {0: 2, 1: 1}
    found = positions(str(tmp_path / "query"), "done")
    assert {name: dict(one.offsets) for name, one in found.items()} == {
        first: stands,
        second: stands,
    }
    broken = str(tmp_path / "open")
    with pytest.raises(InvalidUsage, match="is not committed"):
        positions(broken)
    assert dict(positions(broken, "done")[first].offsets) == stands
    assert dict(positions(broken, "again")[first].offsets) == {0: 0, 1: 0}
