"""Where Spark keeps its memory of one run of a stage, and how it writes there.

What it is: `root_of`, the directory of all runs, and `cheaply`, a block in which queries are begun that
write on this machine without what only a lasting checkpoint needs.
What it must not know: what is in it.

Invariants:
    Only what is begun in the block writes so; whatever the session is told otherwise stays.
    It is scratch: the lanes say where a run begins, and nobody reads what an earlier one left.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cheaply", "root_of"]

#: Hadoop's own file system of this machine writes a file of checksums beside each file, and starts a
#: process, chmod, for each of both: four in every micro-batch, of some milliseconds each. The one
#: below it does neither. One that is kept would be used by the whole JVM.
_CHEAP = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
#: A query takes a copy of its session's settings when it starts; they are changed by one at a time.
_turn = threading.Lock()


def root_of(chosen: str | None) -> str:
    """Return the directory below which each run has its own."""
    # With its scheme: without one Spark would look for it where its file systems begin.
    scratch = Path(tempfile.gettempdir(), "delivery-checkpoints").as_uri()
    return (chosen or scratch).rstrip("/")


@contextmanager
def cheaply(spark: SparkSession) -> Iterator[None]:
    """Let queries that start in a block write what they keep on this machine without more ado."""
    with _turn:
        if any(spark.conf.get(key, None) is not None for key in _CHEAP):
            yield
            return
        try:
            for key, value in _CHEAP.items():
                spark.conf.set(key, value)
            yield
        finally:
            for key in _CHEAP:
                spark.conf.unset(key)
