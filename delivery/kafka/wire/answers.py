"""An answer of a broker's, taken apart from its beginning to its end.

What it is: `Reader`.
What it must not know: which answer it is.

Invariants:
    What ends too early is told, never made up.
    Bytes are views of the answer; numbers and texts are copies.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Reader"]

_T = TypeVar("_T")
#: Set in every byte of a number but its last.
_MORE = 0x80


class Reader:
    """Takes an answer apart, from its beginning to its end.

    Raises:
        ValueError: it ends too early.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def unpack(self, form: str) -> int:
        """Return the first number of a form, and go behind all of it."""
        return int(self.unpack_all(form)[0])

    def unpack_all(self, form: str) -> tuple[int, ...]:
        """Return the numbers of a form."""
        return self.unpack_struct(struct.Struct(form))

    def unpack_struct(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the numbers of a form that is made already."""
        at = self._at
        self._at += form.size
        try:
            return form.unpack_from(self._data, at)
        except struct.error as error:
            raise ValueError(f"an answer ends too early: {error}") from None

    def raw(self, size: int) -> bytes:
        """Return so many bytes."""
        return bytes(self._view(size))

    def blob(self) -> memoryview:
        """Return bytes that say first how many they are, one more; nothing where there are none."""
        return self._view(max(0, self._varint() - 1))

    def text(self) -> str:
        """Return a text; none is an empty one."""
        return bytes(self.blob()).decode()

    def array(self, one: Callable[[], _T]) -> list[_T]:
        """Return what `one` reads, as often as the array is long."""
        return [one() for _ in range(self._varint() - 1)]

    def skip_tags(self) -> None:
        """Pass over what a broker may add."""
        for _ in range(self._varint()):
            self._varint()
            self._view(self._varint())

    def _view(self, size: int) -> memoryview:
        at = self._at
        self._at += size
        if self._at > len(self._data):
            raise ValueError("an answer ends too early")
        return self._data[at : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data):
                raise ValueError("an answer ends too early")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & ~_MORE) << shift
            if byte < _MORE:
                return value
            shift += 7
