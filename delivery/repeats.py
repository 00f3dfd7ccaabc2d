"""Records that take no effect, told to whoever asked for them: which, why, and where they were first.

What it is: `repeats_of`, which finds where the ids of dropped records were first seen, and `told`,
which makes of such a record an output for the stage's duplicates.
What it must not know: how a verdict is found, user code, how a bundle is stored.

Invariants:
    What is told of a record depends on what its lane has sealed and on its bundle, never on who
    tells it: two attempts at the same records say the same.
    An id is first seen in its own lane; a seq that is not known is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dedup.arrays import Ids, Places, to_raw
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Verdict
from dedup.model import IDENTITY_BYTES, Head, Incarnation
from delivery.batch import Batch
from delivery.header import NAME, decode_header
from delivery.records import Output, Record, as_bytes
from delivery.stage import truncated

#: Header of a record in the duplicates of a stage: why it took no effect, and where it was first.
DUPLICATE = "delivery-duplicate"


class Index(Protocol):
    """The ids a lane has decided."""

    def first_seen(self, ids: Ids) -> Sequence[tuple[Incarnation, int] | None]:
        """Return of each id incarnation and seq of the seal that decided it, if that is known."""


class Judged(Protocol):
    """A batch whose verdicts are there."""

    @property
    def batch(self) -> Batch:
        """Its records."""

    @property
    def ids(self) -> Ids:
        """Of all of them."""

    @property
    def rows(self) -> Places:
        """Those that are fresh."""

    @property
    def dropped(self) -> Places:
        """Those that are not."""

    def verdict(self, row: int) -> Verdict:
        """Return why a row was dropped."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A record that takes no effect."""

    record: Record
    verdict: Verdict
    id: bytes
    #: The seal that decided its id; None: nobody knows any more.
    seq: int | None
    #: Partition and offset of the record that took effect, if that is in the same bundle.
    place: tuple[int, int] | None = None


def repeats_of(
    sheets: Sequence[Judged], pending: Iterable[Ids], head: Head, index: Index
) -> Iterator[Repeat]:
    """Yield what was dropped of a bundle, in the order of its records.

    Args:
        sheets: the bundle.
        pending: the ids of this process's own bundles before it that are not sealed yet.
        head: the sealed head before all of these.
        index: exact for `head`.
    """
    if not any(len(sheet.dropped) for sheet in sheets):
        return
    seq = head.ref.seq
    seqs: dict[bytes, int] = {}
    for ids in pending:
        seq += 1
        seqs.update(dict.fromkeys(_names(ids), seq))
    own = seq + 1
    places: dict[bytes, tuple[int, int]] = {}
    for sheet in sheets:
        partition, offsets = sheet.batch.source.partition, sheet.batch.offsets[sheet.rows].tolist()
        for name, offset in zip(_names(sheet.ids[sheet.rows]), offsets, strict=True):
            places[name] = (partition, offset)
    for sheet in sheets:
        rows = sheet.dropped
        ids = sheet.ids[rows]
        columns = zip(
            rows.tolist(),
            sheet.batch.records(rows),
            _names(ids),
            index.first_seen(ids),
            strict=True,
        )
        for row, record, name, sealed in columns:
            place = places.get(name)
            known = own if place else seqs.get(name, sealed[1] if sealed else None)
            yield Repeat(record, sheet.verdict(row), name, known, place)


def told(repeat: Repeat, lane: str, edge: int) -> Output:
    """Return a record that took no effect as it came, with what is known of it in a header."""
    record = repeat.record
    said: dict[str, Any] = {"reason": repeat.verdict.name.lower(), "id": repeat.id.hex()}
    header = decode_header(record.header(NAME) or b"")
    if repeat.verdict is not Verdict.DUPLICATE and header is not None:
        said |= {"sender": header.mark.sender, "sender_seq": header.mark.seq}
    said["lane"] = lane
    if repeat.seq is not None:
        said["seq"] = repeat.seq
    if repeat.place is not None:
        said |= {"partition": repeat.place[0], "offset": repeat.place[1]}
    ours = (DUPLICATE, as_bytes(said))
    try:
        return Output(record.value, record.key, (*record.headers, ours), edge)
    except InvalidUsage:
        return truncated(record, ours, edge)


def _names(ids: Ids) -> list[bytes]:
    raw = to_raw(ids)
    return [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]
