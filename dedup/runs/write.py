"""Writing a run: its sections one after another, in pieces that need not be in memory together.

What it is: `RunWriter`, which takes ids in their order, and `write_run` for those who have them all.
What it must not know: where the ids come from, whether they repeat.

Invariants:
    The file appears under its name by one rename, complete. What a killed process leaves has
    another name, and is unlinked from the directory before it holds anything, but for the one file
    that becomes the run.
    Both ways write the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Ids
from dedup.errors import Unavailable
from dedup.formats.segment import DIGEST_BYTES, Bucket
from dedup.model import Incarnation
from dedup.runs.run import (
    HEADER_BYTES,
    ROWS_SHORT_MAX,
    STRETCH,
    Layout,
    Run,
    aligned,
    index_bytes,
    lane_key,
    leading,
    open_keyed,
    prefix_bits,
)

#: Entries of the prefix table that are made at a time.
PREFIXES_AT_ONCE = 1 << 16
#: Bytes copied at a time when a section is put behind the one before it.
COPY_BYTES = 1 << 20
#: What an unfinished run is called; whoever tidies a directory may delete what ends so.
UNFINISHED = ".unfinished"


_NOTHING = np.empty(0, dtype=np.uint8)


class Stopped(Exception):
    """Somebody who writes a run was told to stop: there is none, and nothing was left behind."""


#: Asks from time to time whether to stop.
Stop = Callable[[], bool]


def never() -> bool:
    """Go on to the end."""
    return False


class RunWriter:
    """Writes one run.

    Args:
        path: its name; an older run of that name is replaced.
        key: what names the lane in a run.
        bucket: which of them.
        expected: at most so many ids will come; the prefix table is sized for them.
        origins: every seal they may come from, oldest first.
        digests: whether they will have digests.
        stop: asked at every piece, so that nobody who ends waits for gigabytes.
    """

    def __init__(
        self,
        path: Path,
        key: bytes,
        bucket: Bucket,
        *,
        expected: int,
        origins: Sequence[tuple[Incarnation, int]],
        digests: bool,
        stop: Stop = never,
    ) -> None:
        self._stop = stop
        self._path = path
        self._key = key
        self._bucket = bucket
        self._origins = origins
        self._count = 0
        self._bits = prefix_bits(expected)
        self._prefix_bytes = 4 if expected <= ROWS_SHORT_MAX else 8
        self._index_bytes = index_bytes(len(origins))
        self._digest_bytes = DIGEST_BYTES if digests else 0
        self._next_prefix = 0
        handle, name = tempfile.mkstemp(suffix=UNFINISHED, dir=path.parent)
        self._name = Path(name)
        self._file = os.fdopen(handle, "wb")
        self._file.write(bytes(HEADER_BYTES))
        self._hash = xxhash.xxh3_128()
        # Their length is known only at the end, so they wait apart.
        self._open = ExitStack()
        self._sides = [self._side() for _ in range(3)]

    def add(
        self, ids: Ids, origin_of: npt.NDArray[np.integer], digests: npt.NDArray[np.uint16] | None
    ) -> None:
        """Take the next ids; all of them come after those taken before.

        Raises:
            Stopped: `stop` said so.
        """
        self._go_on()
        prefixes, indexes, values = self._sides
        self._put(self._file, np.ascontiguousarray(ids, dtype="<u8"))
        if len(ids):
            high = leading(ids[:, 0], self._bits)
            self._fill(prefixes, high, int(high[-1]) + 1)
        if self._index_bytes:
            indexes.write(origin_of.astype(f"<u{self._index_bytes}").data)
        if self._digest_bytes:
            assert digests is not None, "every id has a digest"
            values.write(np.ascontiguousarray(digests, dtype="<u2").data)
        self._count += len(ids)

    def finish(self) -> Run:
        """Put the sections together and let the run appear.

        Raises:
            Stopped: `stop` said so before the run appeared.
            Unavailable: somebody deleted it while it was being opened.
        """
        prefixes = self._sides[0]
        self._fill(prefixes, np.empty(0, np.int64), (1 << self._bits) + 1)
        for side in self._sides:
            self._append(side)
        self._put(self._file, np.array([seq for _, seq in self._origins], dtype="<u8"))
        stretches = _stretches(self._origins)
        self._put(self._file, stretches)
        layout = Layout(
            lane=self._key,
            bucket=self._bucket,
            count=self._count,
            prefix_bits=self._bits,
            prefix_bytes=self._prefix_bytes,
            index_bytes=self._index_bytes,
            digest_bytes=self._digest_bytes,
            origins=len(self._origins),
            stretches=len(stretches),
            checksum=self._hash.digest(),
        )
        self._file.seek(0)
        self._file.write(layout.encode())
        self._file.close()
        return _appeared(self._name, self._path, self._key)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._open.close()
        self._file.close()
        self._name.unlink(missing_ok=True)

    def _go_on(self) -> None:
        if self._stop():
            raise Stopped

    def _side(self) -> IO[bytes]:
        return self._open.enter_context(tempfile.TemporaryFile(dir=self._path.parent))

    def _fill(self, prefixes: IO[bytes], high: npt.NDArray[np.int64], upto: int) -> None:
        """Write the prefix table up to an entry: the first row whose prefix is not below it."""
        for at in range(self._next_prefix, upto, PREFIXES_AT_ONCE):
            self._go_on()
            end = min(at + PREFIXES_AT_ONCE, upto)
            # Counting is twenty times as fast as looking for each entry's first row.
            first, last = np.searchsorted(high, [at, end]).tolist()
            counts = np.bincount(high[first:last] - at, minlength=end - at)
            rows = np.cumsum(counts) - counts + (first + self._count)
            prefixes.write(rows.astype(f"<u{self._prefix_bytes}").data)
        self._next_prefix = max(self._next_prefix, upto)

    def _append(self, side: IO[bytes]) -> None:
        side.seek(0)
        size = 0
        while block := side.read(COPY_BYTES):
            self._go_on()
            self._file.write(block)
            self._hash.update(block)
            size += len(block)
        self._pad(size)
        side.close()

    def _put(self, file: IO[bytes], array: npt.NDArray[np.generic]) -> None:
        data = array.reshape(-1).view(np.uint8).data
        file.write(data)
        self._hash.update(data)
        self._pad(len(data))

    def _pad(self, size: int) -> None:
        padding = bytes(aligned(size) - size)
        self._file.write(padding)
        self._hash.update(padding)


def write_run(
    path: Path,
    lane: str,
    bucket: Bucket,
    ids: Ids,
    *,
    origins: Sequence[tuple[Incarnation, int]],
    origin_of: npt.NDArray[np.integer],
    digests: npt.NDArray[np.uint16] | None = None,
) -> Run:
    """Write ids, sorted and each once, as a run and open it.

    Args:
        path: its name; an older run of that name is replaced.
        lane: whose ids.
        bucket: which of them.
        ids: sorted, each once.
        origins: the seals they came from, oldest first.
        origin_of: for each id an index into `origins`.
        digests: for each id the low 16 bits of its payload's XXH3-64, or None for no digests.
    """
    # Who has all of them knows every length before the first byte: nothing waits in files of its own,
    # and a lane's newest ids, written every dozen bundles, cost half of what pieces cost.
    bits = prefix_bits(len(ids))
    places: npt.NDArray[np.int64] = np.zeros((1 << bits) + 1, dtype=np.int64)
    if len(ids):
        np.cumsum(np.bincount(leading(ids[:, 0], bits), minlength=1 << bits), out=places[1:])
    wide, width = index_bytes(len(origins)), 4 if len(ids) <= ROWS_SHORT_MAX else 8
    stretches = _stretches(origins)
    sections: list[npt.NDArray[Any]] = [
        np.ascontiguousarray(ids, dtype="<u8"),
        places.astype(f"<u{width}"),
        origin_of.astype(f"<u{wide}") if wide else _NOTHING,
        _NOTHING if digests is None else np.ascontiguousarray(digests, dtype="<u2"),
        np.array([seq for _, seq in origins], dtype="<u8"),
        stretches,
    ]
    body: list[bytes | memoryview] = []
    hashed = xxhash.xxh3_128()
    for section in sections:
        data = section.reshape(-1).view(np.uint8).data
        body += [data, bytes(aligned(len(data)) - len(data))]
    for piece in body:
        hashed.update(piece)
    layout = Layout(
        lane=lane_key(lane),
        bucket=bucket,
        count=len(ids),
        prefix_bits=bits,
        prefix_bytes=width,
        index_bytes=wide,
        digest_bytes=0 if digests is None else DIGEST_BYTES,
        origins=len(origins),
        stretches=len(stretches),
        checksum=hashed.digest(),
    )
    handle, name = tempfile.mkstemp(suffix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([layout.encode(), *body])
        return _appeared(Path(name), path, layout.lane)
    finally:
        Path(name).unlink(missing_ok=True)


def _appeared(unfinished: Path, path: Path, key: bytes) -> Run:
    """Give a whole run its name, and open it."""
    unfinished.replace(path)
    run = open_keyed(path, key)
    if run is None:
        raise Unavailable(
            "write a run",
            str(path),
            "it was deleted or replaced while it was written; ids are in the catalog all the same: "
            "run again",
        )
    return run


def _stretches(origins: Sequence[tuple[Incarnation, int]]) -> npt.NDArray[np.void]:
    firsts = [
        (incarnation, at)
        for at, (incarnation, _) in enumerate(origins)
        if not at or origins[at - 1][0] != incarnation
    ]
    return np.array(firsts, dtype=STRETCH)
