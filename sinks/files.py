"""The files sink: each bundle becomes one file of Parquet or JSON lines in a directory.

What it is: the emitter port over a directory, and `read_files`, which gives the records back.
What it must not know: sources, catalogs.

Staged: a file is written under a name of its own in a directory that readers pass over, brought to
the disk, and renamed to the name of its bundle. A bundle has one name, whoever writes it and
however often, so it is in exactly one file; and a file is there whole or not at all.

Invariants:
    A name says lane, seq and incarnation, and nothing of the process that wrote it.
    A file that is published is never changed; it may be replaced by the same rows.
    What a killed writer left is taken away by whoever publishes the same bundle.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from delivery import InvalidUsage, Unavailable
from delivery.points import At, nowhere
from delivery.ports import Emissions, Frontier, Record, Rows, Source, TopicId
from delivery.sinks import (
    BUNDLE_ROWS_MAX,
    IDENTITY_BYTES,
    Kind,
    Written,
    positions,
    written_by,
)

__all__ = ["FilesEmitter", "read_files"]

#: Where files are until they are published. Readers (Spark, globs) pass over hidden names.
STAGED = ".staged"
#: Holds the directory's identity, so that another one in its place is noticed.
IDENTITY = ".delivery"
#: Longest part of a file's name that is for people: the end of the lane's name.
READABLE_CHARACTERS_MAX = 120
#: Where a test may let the process die: everything is on the disk, nothing is visible.
WRITTEN_NOT_RENAMED = "written-not-renamed"

_FORMATS = ("parquet", "jsonl")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("id", pa.binary(IDENTITY_BYTES)),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("partition", pa.int32()),
    ]
)


class FilesEmitter:
    """Writes one edge into a directory.

    Args:
        target: "files:PATH", or "files:PATH?format=jsonl". The directory is made if it is absent.
        at: is told each place at which a test may let the process die.

    Raises:
        InvalidUsage: the target is malformed, or the directory cannot be used.
    """

    kind = Kind.STAGED

    def __init__(self, target: str, at: At = nowhere) -> None:
        self._directory, self._format = _parsed(target)
        self._at = at
        with _told("open a directory", self._directory):
            (self._directory / STAGED).mkdir(parents=True, exist_ok=True)
            self.writes: tuple[TopicId, ...] = (TopicId(_identity(self._directory)),)

    def place(self, rows: Rows) -> list[int]:
        """Return the partitions of the parents: a file has the rows of one lane's bundle."""
        return list(rows.parent_partitions)

    def emit(self, emissions: Emissions) -> Frontier:
        """Write a file, publish it, and say how far the bundle is written."""
        if not len(emissions):
            return Frontier()
        written = written_by(emissions)
        name = f"{_name(written, emissions)}.{self._format}"
        published = self._directory / name
        staged = self._directory / STAGED / f"{name}.{os.urandom(8).hex()}"
        with _told("write a file", published):
            with staged.open("wb") as file:
                _WRITE[self._format](file, emissions)
                file.flush()
                os.fsync(file.fileno())
            self._at(WRITTEN_NOT_RENAMED)
            _publish(staged, published)
            for leftover in staged.parent.glob(f"{name}.*"):
                leftover.unlink(missing_ok=True)
        return positions(self.writes[0], emissions, written)


def read_files(directory: str | Path) -> Iterator[Record]:
    """Yield the records of a directory, bundle by bundle in the order of their seqs.

    A record's source and offset are those that the emitter told of it.

    Raises:
        InvalidUsage: there is no such directory.
    """
    path = Path(directory)
    if not path.is_dir():
        raise InvalidUsage(
            "read files", str(path), "there is no such directory; nothing was read: mend the name"
        )
    topic = TopicId(_identity(path))
    names = (file for kind in _FORMATS for file in path.glob(f"*.{kind}"))
    for file in sorted(names, key=lambda file: (_seq(file), file.name)):
        for row, columns in enumerate(_READ[file.suffix[1:]](file)):
            partition, key, value, headers = columns
            offset = _seq(file) * BUNDLE_ROWS_MAX + row
            yield Record(value, key, headers, source=Source(topic, partition), offset=offset)


# Names ------------------------------------------------------------------------------------------


def _parsed(target: str) -> tuple[Path, str]:
    path, _, options = target.removeprefix("files:").partition("?")
    chosen = dict(parse_qsl(options, keep_blank_values=True))
    form = chosen.pop("format", _FORMATS[0])
    if not target.startswith("files:") or not path or chosen or form not in _FORMATS:
        raise InvalidUsage(
            "write files",
            target,
            "nothing was written: write files:PATH, or files:PATH?format=jsonl for JSON lines "
            "instead of Parquet",
        )
    return Path(path).absolute(), form


def _name(written: Written | None, emissions: Emissions) -> str:
    """Return the name of a bundle, which every process and every try gives it."""
    if written is None:
        return f"bundle-{0:012d}-{xxhash.xxh3_64_hexdigest(emissions.ids.tobytes())}"
    readable = written.lane.rpartition("/")[2][-READABLE_CHARACTERS_MAX:]
    digest = xxhash.xxh3_64_hexdigest(written.incarnation + written.lane.encode())
    return f"{readable}-{written.seq:012d}-{digest}"


def _seq(file: Path) -> int:
    return int(file.stem.rsplit("-", 2)[1])


def _identity(directory: Path) -> bytes:
    """Return the directory's identity, minting it in one that has none."""
    file = directory / IDENTITY
    if not file.exists():
        fresh = directory / STAGED / f"{IDENTITY}.{os.urandom(8).hex()}"
        with fresh.open("w") as minted:
            minted.write(os.urandom(IDENTITY_BYTES).hex())
            minted.flush()
            os.fsync(minted.fileno())
        with suppress(FileExistsError):  # another process was quicker
            os.link(fresh, file)
        fresh.unlink()
        _sync(directory)
    identity = bytes.fromhex(file.read_text())
    if len(identity) != IDENTITY_BYTES:
        raise InvalidUsage(
            "open a directory",
            str(file),
            "it does not hold the identity that the sink wrote there; nothing was written: put it "
            "back, or name another directory",
        )
    return identity


# Publishing -------------------------------------------------------------------------------------


def _publish(staged: Path, published: Path) -> None:
    try:
        staged.replace(published)
    except FileNotFoundError:
        # Whoever published the same bundle meanwhile took our copy for a leftover.
        if not published.exists():
            raise
    _sync(published.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(op: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            op,
            str(path),
            f"it is not published ({error}); nothing half is visible: see that the directory may be "
            "written and the disk has room, and it is written again",
        ) from error


# Parquet ----------------------------------------------------------------------------------------

_Columns = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def _write_parquet(file: Any, emissions: Emissions) -> None:
    headers = [
        [{"key": name, "value": value} for name, value in pairs] for pairs in emissions.headers
    ]
    columns = [
        [emission.id for emission in emissions],
        list(emissions.keys),
        list(emissions.values),
        headers,
        list(emissions.partitions),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=_SCHEMA)
    pq.write_table(table, file, compression="zstd")


def _read_parquet(file: Path) -> Iterator[_Columns]:
    table = pq.ParquetFile(file).read()
    names = ("partition", "key", "value", "headers")
    for partition, key, value, headers in zip(
        *(table.column(name).to_pylist() for name in names), strict=True
    ):
        yield partition, key, value, tuple((pair["key"], pair["value"]) for pair in headers)


# JSON lines -------------------------------------------------------------------------------------


def _write_lines(file: Any, emissions: Emissions) -> None:
    for emission in emissions:
        line = {
            "id": emission.id.hex(),
            "key": _plain(emission.key),
            "value": _value(emission.value),
            "headers": [[name, _plain(value)] for name, value in emission.headers],
            "partition": emission.partition,
        }
        file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def _read_lines(file: Path) -> Iterator[_Columns]:
    with file.open(encoding="utf-8") as lines:
        for text in lines:
            line = json.loads(text)
            headers = tuple((name, _bytes(value) or b"") for name, value in line["headers"])
            yield line["partition"], _bytes(line["key"]), _bytes(line["value"]), headers


def _plain(value: bytes | None) -> Any:
    """Return bytes as JSON has them: text if they are, else `{"base64": …}`."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _value(value: bytes | None) -> Any:
    """Return a value as `_plain` does, but compact JSON as what it says: `{"json": …}`."""
    plain = _plain(value)
    if isinstance(plain, str):
        try:
            found = json.loads(plain, parse_constant=_refused)
        except (ValueError, RecursionError):
            return plain
        if _compact(found) == plain:
            return {"json": found}
    return plain


def _refused(constant: str) -> None:
    raise ValueError(constant)  # NaN and its like are no JSON


def _bytes(plain: Any) -> bytes | None:
    if isinstance(plain, dict):
        if "json" in plain:
            return _compact(plain["json"]).encode()
        return base64.b64decode(plain["base64"])
    return None if plain is None else str(plain).encode()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_WRITE = {"parquet": _write_parquet, "jsonl": _write_lines}
_READ = {"parquet": _read_parquet, "jsonl": _read_lines}
