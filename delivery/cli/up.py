"""`delivery up`: start this directory's servers, or what is missing of them.

What it is: options and words around `Instance.up`. What it must not know: how servers start.
"""

from __future__ import annotations

from pathlib import Path

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, directory_option, verb

_PORT = click.IntRange(1024, 65535)


@click.command(
    epilog="Example: `delivery up --kafka 3 --cassandra 3` starts two clusters of three on "
    "127.0.0.1 to 127.0.0.3."
)
@directory_option
@click.option("--kafka", type=int, metavar="0|1|3", help="Brokers; 1 by default.")
@click.option("--cassandra", type=int, metavar="0|1|3", help="Nodes; 1 by default.")
@click.option("--no-kafka", is_flag=True, help="The same as --kafka 0.")
@click.option("--no-cassandra", is_flag=True, help="The same as --cassandra 0.")
@click.option("--kafka-port", type=_PORT, help="A free one by default.")
@click.option("--cassandra-port", type=_PORT, help="A free one by default.")
@click.option(
    "--spark", is_flag=True, default=None, help="A Spark cluster too: a master and two workers."
)
@verb
def command(
    out: Output,
    *,
    directory: Path,
    kafka: int | None,
    cassandra: int | None,
    no_kafka: bool,
    no_cassandra: bool,
    kafka_port: int | None,
    cassandra_port: int | None,
    spark: bool | None,
) -> None:
    """Start real Kafka and Cassandra, and Spark if asked, for this directory.

    Waits until each answers a real request. What runs already is left alone; what has died is
    started again on its data. The servers outlive the terminal; `delivery down` stops them.
    """
    from delivery.services.instance import Instance, Request  # noqa: PLC0415  keeps --help light

    request = Request(
        kafka=_count("kafka", kafka, none=no_kafka),
        cassandra=_count("cassandra", cassandra, none=no_cassandra),
        kafka_port=kafka_port,
        cassandra_port=cassandra_port,
        spark=spark,
    )
    instance = Instance(directory)
    started = instance.up(request, out.progress)
    state = instance.state()
    assert state is not None, "`up` writes the state"
    changed = any(node.seconds is not None for node in started)
    lines = [
        f"{node.name:<12} {node.address:<16} "
        + ("ran already" if node.seconds is None else f"ready after {node.seconds} s")
        for node in started
    ]
    if not changed:
        lines.append("everything ran already; nothing was done")
    kafka_address = state.kafka.bootstrap if state.kafka else None
    cassandra_address = state.cassandra.url if state.cassandra else None
    spark_master = state.spark.master if state.spark else None
    if kafka_address:
        lines += [f"Kafka: {kafka_address}", f"export KAFKA={kafka_address}"]
    if cassandra_address:
        lines.append(f"Cassandra: {cassandra_address}")
    if spark_master:
        lines.append(f"Spark: {spark_master}")
    out.result(
        "\n".join(lines),
        {
            "directory": str(instance.directory),
            "changed": changed,
            "kafka": kafka_address,
            "cassandra": cassandra_address,
            "spark": spark_master,
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "pid": node.pid,
                    "seconds": node.seconds,
                }
                for node in started
            ],
        },
    )


def _count(kind: str, count: int | None, *, none: bool) -> int | None:
    if none and count:
        raise InvalidUsage(
            "bring servers up",
            f"--{kind} {count} --no-{kind}",
            "they contradict each other; nothing was started; leave one of them out",
        )
    return 0 if none else count
