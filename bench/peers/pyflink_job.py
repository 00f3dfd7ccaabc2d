"""PyFlink, exactly-once: a driver of a local cluster with two slots.

What it is: the job as a DataStream program in thread mode, the fastest PyFlink has; with "dedup"
keyed by the id in the header, with one value of keyed state for each.
What it must not know: this library.

Invariants:
    The transactions' timeout is below the broker's limit of 15 minutes; Flink's own default is not.
    Ids are never forgotten within a turn, as in every other contestant. They are in the heap, which
    is the fastest place for as many as there are here, and not for as many as there may be.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import (  # type: ignore[import-not-found]  # a peer's
    Configuration,
    Row,
    Types,
    WatermarkStrategy,
)
from pyflink.common.serialization import (  # type: ignore[import-not-found]  # a peer's
    ByteArraySchema,
)
from pyflink.datastream import (  # type: ignore[import-not-found]  # a peer's
    CheckpointingMode,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.base import (  # type: ignore[import-not-found]  # a peer's
    DeliveryGuarantee,
)
from pyflink.datastream.connectors.kafka import (  # type: ignore[import-not-found]  # a peer's
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import (  # type: ignore[import-not-found]  # a peer's
    ValueStateDescriptor,
)
from pyflink.table import StreamTableEnvironment  # type: ignore[import-not-found]  # a peer's

from bench.peers.order import ID, TASKS, Order, nonce, told, work

TRANSACTION_MS_MAX = 600_000
JARS = Path(__file__).parent.parent.parent / ".cache" / "peers" / "pyflink" / "jars"

#: Only the table connector hands out headers.
_SOURCE = """CREATE TABLE source (
  `value` BYTES, headers MAP<STRING, BYTES> METADATA
) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{kafka}',
  'scan.startup.mode' = 'earliest-offset', 'format' = 'raw'
)"""
_ROWS = "SELECT DECODE(headers['{id}'], 'UTF-8') AS id, `value` FROM source"


def main(order: Order) -> None:
    """Run the job until nobody wants it any more."""
    # Thread mode asks whichever `python` it finds first where Python's library is.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    settings = Configuration()
    settings.set_string("python.executable", sys.executable)
    settings.set_string("restart-strategy.type", "none")
    settings.set_string("python.execution-mode", "thread")
    jars = sorted(JARS.rglob("*.jar"))
    settings.set_string("pipeline.jars", ";".join(path.as_uri() for path in jars))
    settings.set_string("execution.checkpointing.dir", Path(order.scratch, "flink").as_uri())
    settings.set_string("pipeline.object-reuse", "true")
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(TASKS)
    env.enable_checkpointing(int(order.commit_ms), CheckpointingMode.EXACTLY_ONCE)
    done = _deduplicated(env, order) if order.dedup else _plain(env, order)
    done.sink_to(_sink(order))
    job = env.execute_async("nonce")
    # Why a job failed is said where the benchmark looks when nothing comes out.
    ending = threading.Thread(target=job.get_job_execution_result().result, daemon=True)
    ending.start()
    work()
    job.cancel().result()


def _plain(env: StreamExecutionEnvironment, order: Order) -> Any:
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(order.kafka)
        .set_topics(order.source)
        .set_group_id(f"flink-{order.target}")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(ByteArraySchema())
        .build()
    )
    values = env.from_source(source, WatermarkStrategy.no_watermarks(), "source")
    return values.map(nonce, output_type=Types.PRIMITIVE_ARRAY(Types.BYTE()))


def _deduplicated(env: StreamExecutionEnvironment, order: Order) -> Any:
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(_SOURCE.format(topic=order.source, kafka=order.kafka))
    rows = tables.to_data_stream(tables.sql_query(_ROWS.format(id=ID)))
    keyed = rows.key_by(lambda row: row[0], key_type=Types.STRING())
    return keyed.process(Fresh(), output_type=Types.PRIMITIVE_ARRAY(Types.BYTE()))


class Fresh(KeyedProcessFunction):  # type: ignore[misc]  # a peer's
    """Does the job for a record whose id was not met before."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Take the state."""
        self._met = runtime_context.get_state(ValueStateDescriptor("met", Types.BOOLEAN()))

    def process_element(self, value: Row, _ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        """Do it once for an id."""
        if self._met.value() is None:
            self._met.update(True)
            yield nonce(value[1])


def _sink(order: Order) -> KafkaSink:
    values = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(order.target)
        .set_value_serialization_schema(ByteArraySchema())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(order.kafka)
        .set_record_serializer(values)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"flink-{order.target}")
        .set_property("transaction.timeout.ms", str(TRANSACTION_MS_MAX))
        .set_property("compression.type", "lz4")
        .build()
    )


if __name__ == "__main__":
    main(told())
