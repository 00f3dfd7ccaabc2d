"""Spark's own deduplication, asked for the same verdicts: `dropDuplicatesWithinWatermark` on RocksDB.

What it is: `OfSpark`, one streaming query on one core that reads names out of files and drops those
that it has seen.
What it must not know: our index.

Invariants:
    Spark gets what suits it: micro-batches of a hundred thousand names, one partition of state, a
    checkpoint on the same disk as ours, no Python in the way.
    A turn's time is from the moment its file is there until its micro-batch is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.generated import NAME_BYTES, names
from bench.harness import Turn
from delivery.spark import spark_session

#: Names of one file, and so of one micro-batch.
FILE_IDS = 100_000
#: Files of one turn.
FILES = 3
WINDOW = "24 hours"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Numbers = npt.NDArray[np.uint64]


class OfSpark:
    """A query that has seen so many names.

    Args:
        directory: of its files and its checkpoint.
        count: how many names it has seen when the first turn begins.
        batch: returns the numbers of names to ask for, and how many of them are repeats.
    """

    def __init__(
        self, directory: Path, count: int, batch: Callable[[], tuple[Numbers, int]]
    ) -> None:
        self._files = directory / "names"
        self._files.mkdir()
        self._batch = batch
        self._written = 0
        conf = {
            "spark.log.level": "OFF",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        }
        self._spark = spark_session("bench", "local[1]", conf=conf)
        read = self._spark.readStream.schema("name BINARY, at TIMESTAMP").parquet(str(self._files))
        seen = read.withWatermark("at", WINDOW).dropDuplicatesWithinWatermark(["name"])
        checkpoint = str(directory / "checkpoint")
        self._query = (
            seen.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        )
        for first in range(0, count, FILE_IDS):
            self._write(np.arange(first, min(first + FILE_IDS, count), dtype=np.uint64))
            self._query.processAllAvailable()

    def close(self) -> None:
        """End the query and the session."""
        self._query.stop()
        self._spark.stop()

    def turn(self) -> Turn:
        """Give verdicts for some files of names."""
        seconds, asked = [], 0
        for _ in range(FILES):
            batches = [self._batch() for _ in range(FILE_IDS // 10_000)]
            before = self._dropped()
            begin = time.perf_counter()
            self._write(np.concatenate([numbers for numbers, _ in batches]))
            self._query.processAllAvailable()
            seconds.append(time.perf_counter() - begin)
            repeats = sum(count for _, count in batches)
            assert self._dropped() - before >= repeats, "no repeat ever passes"
            asked += FILE_IDS
        return Turn(seconds=tuple(seconds), amount=asked)

    def _dropped(self) -> int:
        """Return how many repeats were dropped so far."""
        return sum(
            operator["customMetrics"].get("numDroppedDuplicateRows", 0)
            for progress in self._query.recentProgress
            for operator in progress["stateOperators"]
        )

    def _write(self, numbers: Numbers) -> None:
        """Write one file; its name appears when it is whole."""
        raw = pa.py_buffer(names(numbers).tobytes())
        column = pa.Array.from_buffers(pa.binary(NAME_BYTES), len(numbers), [None, raw])
        at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * len(numbers), pa.timestamp("us", "UTC"))
        table = pa.table({"name": column.cast(pa.binary()), "at": at})
        self._written += 1
        path = self._files / f"{self._written:06}.parquet"
        pq.write_table(table, path.with_name(f".{path.name}"))
        path.with_name(f".{path.name}").rename(path)
