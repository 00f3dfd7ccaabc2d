"""Rows that a user's plan ends in, as a bundle's outputs; the columns are those of Spark's Kafka sink.

What it is: `selected`, which brings a DataFrame to those columns or refuses it, and `rows_of`.
What it must not know: lanes, where the rows go.

Invariants:
    What no broker would take is refused before anything is stored.
    A partition that the user chose stays; another is a function of the key, or of the row's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import InvalidUsage
from delivery.batch import Rows
from delivery.header import NO_PARENT
from delivery.records import Headers, Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["placing", "rows_of", "selected"]

_BYTES = ("string", "binary")
_HEADERS = ("array<struct<key:string,value:binary>>",)
#: Column → the types it may have.
_COLUMNS = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": _HEADERS,
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
}


def refuse(frame: DataFrame, topics: Sequence[str]) -> None:
    """Refuse a DataFrame that is not made of records.

    Raises:
        InvalidUsage: a column is missing, too many, or of another type.
    """
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    wrong = [f"{name} {kind}" for name, kind in found.items() if kind not in _COLUMNS.get(name, ())]
    missing = [
        name for name in ("value", *(["topic"] if len(topics) > 1 else ())) if name not in found
    ]
    if wrong or missing:
        raise InvalidUsage(
            "wrap a sink",
            "; ".join([*(f"column {one}" for one in wrong), *(f"no column {m}" for m in missing)]),
            "records have the columns of Spark's Kafka sink: value, and key, headers, partition "
            "and topic if wanted; nothing was started: select them, for instance "
            'df.selectExpr("CAST(user AS STRING) AS key", "to_json(struct(*)) AS value")',
        )


def selected(frame: DataFrame) -> DataFrame:
    """Return the columns as bytes, the same ones for every job."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - Spark is not needed before

    def column(name: str, kind: str) -> Any:
        known = f.col(name) if name in frame.columns else f.lit(None)
        return known.cast(kind).alias(name)

    return frame.select(
        column("key", "binary"),
        column("value", "binary"),
        column("headers", _HEADERS[0]),
        column("topic", "string"),
        column("partition", "int"),
    )


def rows_of(table: pa.Table, topics: Sequence[str]) -> tuple[Rows, list[int | None]]:
    """Return rows, and the partitions that the user chose for them.

    Raises:
        InvalidUsage: a row is no record that a broker would take.
    """
    edges = {name: edge for edge, name in enumerate(topics)}
    made, chosen = Rows(), table.column("partition").to_pylist()
    columns = (table.column(name).to_pylist() for name in ("key", "value", "headers", "topic"))
    for key, value, headers, topic in zip(*columns, strict=True):
        edge = 0 if topic is None else edges.get(topic)
        if edge is None:
            raise InvalidUsage(
                "send an output",
                f"topic {topic}",
                f"the sink was told of {', '.join(topics)}; nothing of its batch was sealed: name "
                "the topic there, or mend the column",
            )
        pairs: Headers = tuple((pair["key"], pair["value"] or b"") for pair in headers or ())
        output = Output(value=value, key=key, headers=pairs, edge=edge)
        made.edges.append(output.edge)
        made.keys.append(output.key)
        made.values.append(output.value)
        made.headers.append(output.headers)
        made.parent_partitions.append(NO_PARENT[0])
        made.parent_offsets.append(NO_PARENT[1])
        made.kept_ids.append(None)
    return made, chosen


def placing(rows: Rows) -> Rows:
    """Return the rows as they are placed: what has no key goes by its place in the bundle."""
    count = len(rows)
    return Rows(
        edges=rows.edges,
        keys=rows.keys,
        values=rows.values,
        headers=rows.headers,
        parent_partitions=list(range(count)),
        parent_offsets=[0] * count,
        kept_ids=rows.kept_ids,
    )
