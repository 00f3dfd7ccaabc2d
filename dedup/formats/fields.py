"""The fields that more than one body has: read seqs and slots.

What it is: one write and one read each.
What it must not know: which body they stand in.

Invariants:
    A field is written the same way wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from dedup.formats.envelope import Reader, Writer
from dedup.model import IDENTITY_BYTES, Attempt, Incarnation, ReadSeq, Slot, TopicId


def write_reads(out: Writer, reads: Sequence[ReadSeq]) -> None:
    """Write read seqs behind their number."""
    out.uint(len(reads))
    for read in reads:
        out.text(read.sender).raw(read.incarnation).raw(read.topic).uint(read.seq)


def read_reads(body: Reader) -> tuple[ReadSeq, ...]:
    """Read what `write_reads` wrote."""
    return tuple(
        ReadSeq(
            body.text(),
            Incarnation(body.raw(IDENTITY_BYTES)),
            TopicId(body.raw(IDENTITY_BYTES)),
            body.uint(),
        )
        for _ in range(body.uint())
    )


def write_slot(out: Writer, slot: Slot) -> Writer:
    """Write a slot."""
    return out.text(slot.lane).raw(slot.incarnation).uint(slot.seq).raw(slot.attempt)


def read_slot(body: Reader) -> Slot:
    """Read what `write_slot` wrote."""
    return Slot(
        body.text(),
        Incarnation(body.raw(IDENTITY_BYTES)),
        body.uint(),
        Attempt(body.raw(IDENTITY_BYTES)),
    )
