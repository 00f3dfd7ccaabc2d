"""The job every contestant does: JSON records in, the same with a random nonce out.

What it is: the input (values, ids, repeats) by offset, and the user code over a record of ours.
What it must not know: who does the job, catalogs, topics.

Invariants:
    The record at an offset is always the same one, so that contestants read the same data.
    One record in `REPEAT_EVERY` is a publisher's repeat: it carries the id and the value of an
    earlier one.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.user_code import nonce
from delivery.records import Output, Record

#: Bytes of a value as it is published.
VALUE_BYTES = 150
#: A share of 5% of the records was published before, this many records earlier.
REPEAT_EVERY = 20
REPEAT_DISTANCE = 1_000
#: Different values there are. More than fit into one stored chunk, so that no chunk shrinks
#: because a value comes twice in it.
VALUES = 20_000
#: The same in bytes, for large values.
VALUES_BYTES_MAX = 8_000_000
#: The first record's time, and records in a second of the lane's own time.
BEGIN_MS = 1_767_225_600_000
RECORDS_PER_SECOND = 10_000

ID = "id"

_CITIES = ("Lisbon", "Osaka", "Tromsø", "Nairobi", "Quito", "Hobart", "Leeds", "Turin")
_WORDS = [
    "the",
    "order",
    "was",
    "placed",
    "by",
    "phone,",
    "leave",
    "it",
    "with",
    "a",
    "neighbour",
    "or",
    "at",
    "the",
    "back",
    "door",
]


@dataclass(frozen=True, slots=True)
class Job:
    """The input of the job.

    Attributes:
        value_bytes: size of a published value, at least `VALUE_BYTES`.
        noise: whether its text is random letters, which hardly compress, rather than words.
    """

    value_bytes: int = VALUE_BYTES
    noise: bool = False
    _values: list[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the values that records take turns with."""
        count = min(VALUES, VALUES_BYTES_MAX // self.value_bytes)
        values = [_value(number, self.value_bytes, noise=self.noise) for number in range(count)]
        object.__setattr__(self, "_values", values)

    def record(self, offset: int) -> Record:
        """Return the record at an offset, without its source."""
        number = original(offset)
        return Record(
            value=self._values[number % len(self._values)],
            headers=((ID, f"order-{number:012d}".encode()),),
            timestamp_ms=BEGIN_MS + offset * 1000 // RECORDS_PER_SECOND,
            offset=offset,
        )


def original(offset: int) -> int:
    """Return the offset of the record that this one repeats, or its own."""
    repeats = offset % REPEAT_EVERY == REPEAT_EVERY - 1 and offset > REPEAT_DISTANCE
    # The distance is a multiple of REPEAT_EVERY, so one step aside is no repeat itself.
    return offset - REPEAT_DISTANCE - 1 if repeats else offset


def fresh_count(offsets: int) -> int:
    """Return how many of the first records are no repeats."""
    return sum(original(offset) == offset for offset in range(offsets))


def originals(offsets: int) -> npt.NDArray[np.int64]:
    """Return `original` of each of the first offsets."""
    every = np.arange(offsets, dtype=np.int64)
    repeats = (every % REPEAT_EVERY == REPEAT_EVERY - 1) & (every > REPEAT_DISTANCE)
    numbers: npt.NDArray[np.int64] = every - repeats * (REPEAT_DISTANCE + 1)
    return numbers


def with_nonce(record: Record, times: int = 1) -> list[Output]:
    """Append a random nonce: user code that never makes the same thing twice."""
    return [record.replace(value=nonce(record.value or b"")) for _ in range(times)]


def _value(number: int, size: int, *, noise: bool) -> bytes:
    """Return JSON of exactly `size` bytes that looks like somebody's order."""
    drawn = random.Random(number)
    fields: dict[str, object] = {
        "order": 10_000_000 + number,
        "user": f"u{drawn.randrange(1_000_000):06d}",
        "sku": f"{drawn.randrange(50_000):05d}-{drawn.choice('SMLX')}",
        "quantity": drawn.randrange(1, 6),
        "price": round(drawn.uniform(1, 500), 2),
        "city": drawn.choice(_CITIES),
        "note": "",
    }
    room = size - len(_dumped(fields))
    if noise:
        text = b64encode(drawn.randbytes(room)).decode()
    else:
        text = " ".join(drawn.choices(_WORDS, k=room))
    fields["note"] = text[:room]
    value = _dumped(fields)
    assert len(value) == size, "every value has the size that was asked for"
    return value


def _dumped(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
