"""What publishers send: repeats of every kind, and records that nobody should send.

What it is: `traffic`, seeded: rows for partitions, and what must come of them.
What it must not know: how anything is deduplicated.

Invariants:
    The same seed makes the same traffic.
    Every record names itself by its header `id`, or by its place; the first of a name counts.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dedup.model import Incarnation, RecordId
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark
from delivery.records import Headers

#: Of a hundred records so many are repeats: the next one, or one from long ago.
REPEATS_PERCENT = 20
#: How far back a repeat may reach that comes bundles later.
FAR = 150
#: A record as large as the library takes, and room for what the stages add.
LARGE_BYTES = 700 * 1024
MANY_HEADERS = 1000


_ID = "id"


class Row(NamedTuple):
    """One record as its publisher sends it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Sent(NamedTuple):
    """A record with its name, and what it says; None if it cannot be priced."""

    row: Row
    name: str
    told: int | None


@dataclass(slots=True)
class Traffic:
    """Rows, and what must come of them."""

    rows: list[Row] = field(default_factory=list, repr=False)
    #: By name: what its first record says, None for one that cannot be priced.
    firsts: dict[str, int | None] = field(default_factory=dict, repr=False)
    repeats: int = 0
    conflicts: int = 0
    #: What was made, in the order in which it is sent.
    _made: list[_Sent] = field(default_factory=list, repr=False)

    def first(self, count: int) -> Traffic:
        """Return the first so many, for who sends no more than these."""
        made = Traffic()
        for one in self._made[:count]:
            made.add(one)
        return made

    def add(self, sent: _Sent) -> None:
        """Add a record."""
        self._made.append(sent)
        self.rows.append(sent.row)
        if sent.name in self.firsts:
            self.repeats += 1
            self.conflicts += sent.told != self.firsts[sent.name]
        else:
            self.firsts[sent.name] = sent.told


def traffic(
    seed: int,
    count: int,
    *,
    partitions: int,
    lanes: str,
    scattered: bool = False,
    pad_bytes: int = 0,
) -> Traffic:
    """Make records.

    Args:
        seed: of everything.
        count: about how many.
        partitions: of the topic.
        lanes: what the names of its readers' lanes begin with; they do not write the topic, and
            forged headers name them.
        scattered: repeats of records without a key may come in another partition.
        pad_bytes: by how much most records are longer than what they say; it hardly compresses.
    """
    chance, padding = random.Random(seed), random.Random(seed)
    made = Traffic()
    sent: list[_Sent] = []
    odd = iter(_odd(chance, partitions, lanes))
    for number in range(count):
        if sent and chance.randrange(100) < REPEATS_PERCENT:
            back = chance.choice((1, 2, chance.randrange(1, FAR)))
            again = sent[-min(back, len(sent))]
            if again.told is not None and chance.randrange(10) == 0:
                # In another partition, nobody could say which of them is the first.
                again = _changed(again, count + number)
            elif scattered and again.row.key is None:
                elsewhere = again.row._replace(partition=chance.randrange(partitions))
                again = again._replace(row=elsewhere)
            made.add(again)
            continue
        strange = next(odd, None) if number % 12 == 5 else None
        if strange is None:
            name, partition = f"{seed}-{number}", chance.randrange(partitions)
            key = chance.choice((None, b"k%d" % partition))
            pad = base64.b64encode(padding.randbytes(pad_bytes * 3 // 4)).decode()
            body = _body(name, number, **({"pad": pad} if pad else {}))
            row = Row(partition, key, body, ((_ID, name.encode()),))
            strange = _Sent(row, name, number)
        sent.append(strange)
        made.add(strange)
    # One of each at the least, whatever the seed and however few.
    for strange in odd:
        made.add(strange)
    if sent:
        for again in (sent[-1], sent[-1], sent[0], _changed(sent[0], 2 * count)):
            made.add(again)
    placed = Row(chance.randrange(partitions), None, _body("placed", -6), ())
    made.add(_Sent(placed, "placed", -6))
    return made


def _changed(sent: _Sent, number: int) -> _Sent:
    """Return a repeat of another content, as from a publisher that makes its records anew."""
    return sent._replace(row=sent.row._replace(value=_body(sent.name, number)), told=number)


def _body(name: str, number: int, **more: str) -> bytes:
    return json.dumps({"id": name, "n": number} | more).encode()


def _odd(chance: random.Random, partitions: int, lanes: str) -> Iterator[_Sent]:
    """Yield records that nobody should send."""
    noise = chance.randbytes(40)
    many = tuple((f"h{number}", b"x") for number in range(MANY_HEADERS))
    kinds: dict[str, tuple[bytes | None, Headers, int | None]] = {
        "null": (None, (), None),
        "torn": (b'{"id": "\xff\xfe"', (), None),
        "torn-forged": (b"\xc3\x28", ((NAME, b"forged"),), None),
        "list": (b"[1, 2]", (), None),
        "empty": (b"", (), None),
        "large": (_body("large", -1, pad="x" * LARGE_BYTES), (), -1),
        "many": (_body("many", -2), many, -2),
        "noise": (_body("noise", -3), ((NAME, noise),), -3),
        "forged": (_body("forged", -4), ((NAME, b"forged"),), -4),
        "twice": (_body("twice", -5), ((_ID, b"x"), (NAME, noise), (NAME, b"forged")), -5),
    }
    for name, (value, headers, told) in kinds.items():
        partition = chance.randrange(partitions)
        forged = _forged(chance, f"{lanes}{partition}")
        worn = ((key, forged if text == b"forged" else text) for key, text in headers)
        yield _Sent(Row(partition, None, value, (*worn, (_ID, name.encode()))), name, told)


def _forged(chance: random.Random, lane: str) -> bytes:
    """Return a header of ours as a lane would write it that does not write this topic."""
    mark = Mark(lane, Incarnation(chance.randbytes(16)), 1, 1_700_000_000_000)
    return encode_header(Header(RecordId(chance.randbytes(16)), mark, (0, 7)))
