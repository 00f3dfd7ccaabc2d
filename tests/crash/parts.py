"""What worlds are made of: user code, records, and the two lanes that most of them run."""

from __future__ import annotations

from delivery.protocol.state import Limits
from delivery.records import Output, Record
from delivery.testing.scenario import LaneSpec

#: One bundle at a time: what overtaking inside a process adds is explored in worlds of its own.
ALONE = Limits(pending_max=1)


def named(record: Record) -> bytes | None:
    """The publisher's name for a record."""
    return record.header("id")


def by_place(_record: Record) -> bytes | None:
    """No name: the record's place is its identity."""
    return None


def quote(nonce: bytes, record: Record) -> list[Output]:
    """User code that never says the same thing twice."""
    return [Output(value=nonce, key=record.key)]


def steady(_nonce: bytes, record: Record) -> list[Output]:
    """User code that says the same whenever it is called."""
    return [Output(value=b"p" + (record.value or b""), key=record.key)]


def unsteady(nonce: bytes, record: Record) -> list[Output]:
    """The same, but for the second process, which says something else."""
    return [Output(value=nonce[:3] if nonce.startswith(b"S1") else b"p", key=record.key)]


def pass_on(_nonce: bytes, record: Record) -> list[Output]:
    """Re-keying: the record as it came."""
    return [Output(value=record.value, key=record.key, headers=record.headers)]


def written(  # keys a, b, c go to the second of two partitions, d, e, f to the first
    ids: str, *, topic: str = "in", partition: int = 0, at_ms: int = 0
) -> tuple[tuple[str, int, Record | None], ...]:
    """One record for every letter, "." leaves an offset out."""
    return tuple(
        (
            topic,
            partition,
            None
            if name == "."
            else Record(
                key=name.encode(),
                value=name.encode(),
                headers=(("id", name.encode()),),
                timestamp_ms=at_ms,
            ),
        )
        for name in ids
    )


SENDER = LaneSpec(
    name="w/s/S",
    reads="in",
    writes="mid",
    cuts=((2,), (1,), (3,)),
    call=quote,
    id_from=named,
)
RECEIVER = LaneSpec(
    name="w/r/R",
    reads="mid",
    writes="out",
    call=quote,
    id_from=by_place,
    senders=("w/s/S",),
)
