"""Where an existing Spark job stands: the offsets of its last committed micro-batch.

What it is: `positions`, which reads the checkpoint directory of a Structured Streaming query: the
files offsets/N and commits/N, and of Kafka sources the offsets in them.
What it must not know: lanes, catalogs, a running Spark.

Invariants:
    A batch counts only if it is in commits/: what is planned in offsets/ alone may be half done.
    Nothing is guessed: a file, format or source that is not understood is refused.
    The directory is only read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pyarrow import ArrowException, fs

from dedup.errors import InvalidUsage, Unavailable

__all__ = ["Position", "Uncommitted", "positions"]

#: What becomes of a batch that was planned and not committed: the positions are refused, it is
#: read again, or it is taken for done.
Uncommitted = Literal["refuse", "again", "done"]

_T = TypeVar("_T")
#: What Spark writes where a source has no offset yet.
_NOTHING = "-"
#: Bytes of a checkpoint's file that are read; those of a thousand partitions have less.
_FILE_BYTES_MAX = 64 * 1024 * 1024
_HINT = "nothing was written: say checkpoint= of a Structured Streaming query that reads Kafka"


@dataclass(frozen=True, slots=True)
class Position:
    """Where the old job stands in one topic: by partition the next offset."""

    topic: str
    offsets: Mapping[int, int]


def positions(checkpoint: str, uncommitted: Uncommitted = "refuse") -> dict[str, Position]:
    """Return where a query stands, by topic.

    Args:
        checkpoint: the directory, as a path or a URI that pyarrow knows.
        uncommitted: what becomes of a batch that is planned and not committed.

    Raises:
        InvalidUsage: it is no checkpoint, or not one of a query that reads Kafka; or a batch is not
            committed.
        Unavailable: it cannot be read just now.
    """
    directory = _Directory.of(checkpoint)
    planned, committed = directory.numbers("offsets"), directory.numbers("commits")
    if not planned:
        raise _refused(checkpoint, "it has no offsets: no query ever planned a batch with it")
    last, done = planned[-1], committed[-1] if committed else -1
    if last > done:
        if uncommitted == "refuse":
            raise _open_batch(checkpoint, last)
        if uncommitted == "done":
            done = last
    if done < 0:
        return _topics(checkpoint, _initial(directory))
    if done not in planned:
        raise _refused(checkpoint, f"batch {done} is committed, and its offsets are gone")
    return _topics(checkpoint, _sources(directory, done))


class _Directory:
    """A directory of a checkpoint, wherever it is."""

    def __init__(self, files: fs.FileSystem, root: str, name: str) -> None:
        self._files, self._root, self.name = files, root, name

    @staticmethod
    def of(checkpoint: str) -> _Directory:
        try:
            files, root = fs.FileSystem.from_uri(checkpoint)
        except (ArrowException, ValueError):
            files, root = fs.LocalFileSystem(), checkpoint
        found = _Directory(files, root.rstrip("/"), checkpoint)
        if found.kind("") is not fs.FileType.Directory:
            raise _refused(checkpoint, "there is no such directory")
        return found

    def kind(self, path: str) -> fs.FileType:
        return self._asked(lambda: self._files.get_file_info(f"{self._root}/{path}").type)

    def numbers(self, path: str) -> list[int]:
        """Return the numbers that files are named by; hidden and temporary ones are others."""
        selector = fs.FileSelector(f"{self._root}/{path}", allow_not_found=True)
        found = self._asked(lambda: self._files.get_file_info(selector))
        return sorted(int(one.base_name) for one in found if one.base_name.isdecimal())

    def lines(self, path: str) -> list[str]:
        """Return the lines of a file."""

        def read() -> bytes:
            with self._files.open_input_stream(f"{self._root}/{path}") as stream:
                return bytes(stream.read(_FILE_BYTES_MAX))

        try:
            return self._asked(read).decode().splitlines()
        except UnicodeDecodeError as error:
            raise _refused(f"{self.name}/{path}", "it is not text") from error

    def _asked(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except OSError as error:
            raise Unavailable(
                "read a checkpoint",
                self.name,
                f"{error}; nothing was written: see whether it is there and may be read",
            ) from error


def _sources(directory: _Directory, batch: int) -> Iterator[str]:
    """Yield the offsets of each source as they stand behind a batch."""
    path = f"offsets/{batch}"
    lines = directory.lines(path)
    place = f"{directory.name}/{path}"
    # Version, and metadata of the batch; then a line a source.
    version, rest = (lines[0].strip() if lines else ""), lines[2:]
    if version == "v1":
        yield from rest
    elif version == "v2" and all(line.partition(":")[0].isdecimal() for line in rest):
        yield from (line.partition(":")[2] for line in rest)
    else:
        raise _refused(place, f"version {version!r} of it is not one that is known here")


def _initial(directory: _Directory) -> Iterator[str]:
    """Yield the offsets at which sources began: nothing was ever committed."""
    for source in directory.numbers("sources"):
        # Spark's Kafka source keeps them in a file of its own, behind its version.
        lines = directory.lines(f"sources/{source}/0")
        yield lines[1] if len(lines) > 1 else _NOTHING


def _topics(checkpoint: str, sources: Iterator[str]) -> dict[str, Position]:
    """Return the positions of all Kafka sources; of others there is nothing to take over."""
    found: dict[str, Position] = {}
    for number, text in enumerate(sources):
        for topic, offsets in (_kafka(text) or {}).items():
            if topic in found and found[topic].offsets != offsets:
                raise _refused(
                    checkpoint,
                    f"two of its sources read {topic} and stand at different offsets (the second "
                    f"is source {number})",
                )
            found[topic] = Position(topic, offsets)
    if not found:
        raise _refused(checkpoint, "none of its sources is Kafka's, or none has read anything")
    return found


def _kafka(text: str) -> dict[str, dict[int, int]] | None:
    """Return what a Kafka source says of itself; None for any other source, or none yet."""
    try:
        told = json.loads(text) if text.strip() != _NOTHING else None
    except ValueError:
        return None
    if not isinstance(told, dict) or not told:
        return None
    topics: dict[str, dict[int, int]] = {}
    for topic, offsets in told.items():
        if not isinstance(offsets, dict):
            return None
        if not all(one.isdecimal() and type(at) is int and at >= 0 for one, at in offsets.items()):
            return None
        topics[topic] = {int(one): at for one, at in offsets.items()}
    return topics


def _refused(place: str, what: str) -> InvalidUsage:
    return InvalidUsage("start from a checkpoint", place, f"{what}; {_HINT}")


def _open_batch(checkpoint: str, batch: int) -> InvalidUsage:
    return InvalidUsage(
        "start from a checkpoint",
        f"{checkpoint}: batch {batch}",
        "it was planned and is not committed, so some of its results may be out; nothing was "
        "written: start the old query once more and stop it when it is idle, or say "
        'uncommitted="again" (its records are read again) or uncommitted="done" (they are not)',
    )
