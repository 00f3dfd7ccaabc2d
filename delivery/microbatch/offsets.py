"""What Spark planned for a micro-batch, and where an old query stood: read from its checkpoint.

What it is: `Checkpoint`, the few text files below a checkpoint directory that say which offsets a
batch covers, and `Files`, how they are read wherever they lie.
What it must not know: lanes, catalogs, what is done with a range.

Invariants:
    The entry of a batch is in the offset log BEFORE the batch runs, so that `foreachBatch` finds
    it; `lastProgress` knows the offsets only afterwards.
    Nothing is guessed: an entry that is missing or reads otherwise than Spark writes it is an
    error, never an empty range.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dedup.errors import Corrupt, InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Checkpoint",
    "Files",
    "HadoopFiles",
    "LocalFiles",
    "Offsets",
    "Planned",
    "checkpoint_at",
]

#: Topic → partition → offset, as Spark's Kafka source writes them.
Offsets = dict[str, dict[int, int]]

#: What stands in an entry for a source that has read nothing yet.
_NOTHING = "-"
#: An entry is its version, its metadata, then a line for each source.
_HEAD_LINES = 2


class Files(Protocol):
    """Text files below one directory."""

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is none."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""

    def write(self, path: str, text: str) -> None:
        """Write a file that is not there yet."""

    def delete(self) -> None:
        """Delete the directory with everything in it; one that is not there is fine."""


class LocalFiles:
    """Files of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is none."""
        try:
            return (self._root / path).read_text()
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            return [one.name for one in (self._root / path).iterdir()]
        except FileNotFoundError:
            return []

    def write(self, path: str, text: str) -> None:
        """Write a file that is not there yet."""
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x") as file:
            file.write(text)

    def delete(self) -> None:
        """Delete the directory with everything in it."""
        shutil.rmtree(self._root, ignore_errors=True)


class HadoopFiles:
    """Files wherever Spark's own file systems reach."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - PySpark has no file system of its own
        self._root = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = self._root.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001 - see above

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is none."""
        place = self._jvm.org.apache.hadoop.fs.Path(self._root, path)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        place = self._jvm.org.apache.hadoop.fs.Path(self._root, path)
        if not self._system.exists(place):
            return []
        return [str(one.getPath().getName()) for one in self._system.listStatus(place)]

    def write(self, path: str, text: str) -> None:
        """Write a file that is not there yet."""
        stream = self._system.create(self._jvm.org.apache.hadoop.fs.Path(self._root, path), False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self) -> None:
        """Delete the directory with everything in it."""
        self._system.delete(self._root, True)


@dataclass(frozen=True, slots=True)
class Planned:
    """The range of one micro-batch, by topic and partition; empty ranges are in it too."""

    start: Offsets
    end: Offsets


class Checkpoint:
    """Spark's memory of one query.

    Args:
        root: where it lies; messages name it.
        files: the files below it.
    """

    def __init__(self, root: str, files: Files) -> None:
        self.root = root
        self._files = files

    def query_id(self) -> str | None:
        """Return the identity Spark gave the query; None for a directory that is not one yet."""
        text = self._files.read("metadata")
        return None if text is None else str(json.loads(text.strip().splitlines()[-1])["id"])

    def identify(self) -> str:
        """Return the identity of the query, giving it one before Spark does if it has none."""
        known = self.query_id()
        if known is not None:
            return known
        fresh = str(uuid.uuid4())
        self._files.write("metadata", json.dumps({"id": fresh}))
        return fresh

    def committed(self) -> int | None:
        """Return the last batch that Spark knows to be done; None before the first."""
        return max(_numbers(self._files.names("commits")), default=None)

    def latest(self) -> int | None:
        """Return the last batch that was planned; None before the first."""
        return max(_numbers(self._files.names("offsets")), default=None)

    def ends(self, batch: int) -> Offsets:
        """Return where a batch ends.

        Raises:
            Corrupt: there is no such entry, or it is not of Kafka sources alone.
        """
        text = self._files.read(f"offsets/{batch}")
        if text is None:
            raise self._strange(f"offsets/{batch}", "it is not there")
        return self._merged(f"offsets/{batch}", text.splitlines()[_HEAD_LINES:])

    def planned(self, batch: int, begun: Mapping[str, Mapping[int, int]] | None = None) -> Planned:
        """Return the range of a batch that is about to run.

        Args:
            batch: its number.
            begun: where the query was told to begin, if this checkpoint was made by it.
        """
        end = self.ends(batch)
        start = self.ends(batch - 1) if batch else self._first(begun)
        # A partition that appeared since begins at its first offset: Spark refuses any other.
        filled = {
            topic: {
                partition: start.get(topic, {}).get(partition, 0)
                for partition in sorted(partitions)
            }
            for topic, partitions in end.items()
        }
        return Planned(filled, end)

    def delete(self) -> None:
        """Forget it."""
        self._files.delete()

    # Inside -----------------------------------------------------------------------------------

    def _first(self, begun: Mapping[str, Mapping[int, int]] | None) -> Offsets:
        """Return where the first batch begins: as it was told, or as each source noted it."""
        if begun is not None:
            return {topic: dict(found) for topic, found in begun.items()}
        lines: list[str] = []
        for source in sorted(_numbers(self._files.names("sources"))):
            path = f"sources/{source}/0"
            text = self._files.read(path)
            if text is None:
                raise self._strange(path, "it is not there")
            # Its version stands in front of it, with or without a line of its own.
            lines.append(text[text.index("{") :] if "{" in text else text)
        return self._merged("sources", lines)

    def _merged(self, path: str, lines: Iterable[str]) -> Offsets:
        """Return what each source says, as one."""
        merged: Offsets = {}
        for line in lines:
            if not line.strip() or line.strip() == _NOTHING:
                continue
            for topic, found in self._source(path, line).items():
                if merged.setdefault(topic, found) != found:
                    raise self._strange(path, f"two sources read topic {topic} to different ends")
        return merged

    def _source(self, path: str, line: str) -> Offsets:
        try:
            # Where sources have names, the name stands in front.
            said = json.loads(line[line.index("{") :])
            return {
                topic: {int(partition): int(offset) for partition, offset in found.items()}
                for topic, found in said.items()
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise self._strange(
                path, f"{line[:80]!r} is no offset of a Kafka source ({error})"
            ) from error

    def _strange(self, path: str, what: str) -> Corrupt:
        return Corrupt(
            "read Spark's checkpoint",
            f"{self.root}/{path}",
            f"{what}; nothing was read from Kafka: keep a copy, and start on an empty directory, "
            "or mend this one",
        )


def checkpoint_at(root: str, spark: SparkSession | None = None) -> Checkpoint:
    """Open the checkpoint at a path or URL; what has no scheme is what Spark takes it for.

    Raises:
        InvalidUsage: it lies where only Spark reaches, and there is no session.
    """
    scheme, colon, rest = root.partition(":")
    if not colon and spark is None:
        return Checkpoint(root, LocalFiles(Path(root)))
    if scheme == "file":
        return Checkpoint(root, LocalFiles(Path("/" + rest.lstrip("/"))))
    if spark is None:
        raise InvalidUsage(
            "read Spark's checkpoint", root, "only a Spark session can read there; give a session"
        )
    return Checkpoint(root, HadoopFiles(root, spark))


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]
