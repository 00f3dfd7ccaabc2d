"""Reading what servers wrote, while it is written and rotated.

What it is: `last_lines` and `follow` over the log files that guards write.
What it must not know: instances, processes, what the lines mean.

Invariants:
    A rotation (the file becomes its own predecessor) neither loses nor repeats a line.
    Memory is bounded, however long a log or a line is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from delivery.services.guard import LOG_NAME

__all__ = ["follow", "last_lines"]

#: How often a followed log is looked at; the kernel offers no portable event.
POLL_SECONDS = 0.2

#: What is read from the end of a log at most, and the longest line that `follow` keeps together.
TAIL_BYTES_MAX = 256 * 1024


def last_lines(directory: Path, count: int) -> list[str]:
    """The last lines of a server's log, the predecessor of a freshly rotated one included."""
    lines: list[str] = []
    for name in (LOG_NAME, f"{LOG_NAME}.1"):
        if len(lines) < count:
            lines = _tail(directory / name, count - len(lines)) + lines
    return lines


def _tail(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES_MAX))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def follow(directories: Mapping[str, Path], count: int) -> Generator[tuple[str, str]]:
    """Yield (name, line) for the last lines of several logs, then for each line as it comes."""
    followed = {name: _Followed(directory / LOG_NAME) for name, directory in directories.items()}
    for name, directory in directories.items():
        for line in last_lines(directory, count) if count else []:
            yield name, line
    pause = threading.Event()
    try:
        while True:
            for name, log in followed.items():
                for line in log.read():
                    yield name, line
            pause.wait(POLL_SECONDS)
    finally:
        for log in followed.values():
            log.close()


class _Followed:
    """One log, read from the moment of construction on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._file = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def _open(self) -> BinaryIO | None:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            return None

    def read(self) -> Iterator[str]:
        """Yield the complete lines written since the last call."""
        if self._file is None:
            self._file = self._open()
        while self._file is not None:
            rotated = self._rotated(self._file)  # before reading: what follows is the rest
            while data := self._file.read(TAIL_BYTES_MAX):
                yield from self._split(data)
            if not rotated:
                return
            self._file.close()
            self._file = self._open()

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()

    def _rotated(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _split(self, data: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > TAIL_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            yield line.decode(errors="replace")
