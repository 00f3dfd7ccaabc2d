"""What tasks report of the rows they judged, and how the reports of a run become one.

What it is: `Piece`, the verdicts on one partition's range as columns; `Pieces`, the accumulator in
which Spark brings them to the driver; `merged`, which makes a bundle's verdicts of them.
What it must not know: how a verdict is found, what became of the rows.

Invariants:
    The same range judged twice against the same head gives the same piece; where it does not, the
    run is of no use, and that is seen.
    A repeat in another partition of the same range is found here, where all pieces are together:
    the first in the order of sources and offsets wins, and the run has to be made again without
    the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash
from pyspark.accumulators import AccumulatorParam

from dedup.arrays import Ids, Mask, first_places, to_raw
from dedup.formats.dropped import Run, Verdict, runs_of
from dedup.local.stats import Asked
from dedup.model import Source
from delivery.judge import CONFLICTS_SHOWN
from delivery.protocol.senders import Mark
from delivery.verdicts import EXTERNAL, Conflict, Verdicts

__all__ = ["Merged", "Piece", "Pieces", "merged", "piece_of", "runs"]

_Numbers = npt.NDArray[np.int64]


def _none() -> _Numbers:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """What became of the records of one partition.

    Attributes:
        read: how many there were.
        newest: the largest timestamp among them.
        offsets: of the fresh ones; `ids`, `buckets`, `mark_of` and `digests` go along.
        marks: what `mark_of` points to, or is -1.
        dropped, reasons: the others.
        conflict: how many of those said something else than what they repeat.
        conflicts: some of them.
        unnamed: how many have no name where the stage was told that they have.
        asked: how filters did meanwhile; two executions may differ in it.
        saturated: how many saturated ones were found meanwhile; likewise.
        failed: what went wrong instead, as plain data.
    """

    read: int = 0
    newest: int = 0
    offsets: _Numbers = field(default_factory=_none)
    ids: Ids = field(default_factory=lambda: np.empty((0, 2), dtype=np.uint64))
    buckets: _Numbers = field(default_factory=_none)
    marks: tuple[Mark, ...] = ()
    mark_of: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    digests: npt.NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))
    dropped: _Numbers = field(default_factory=_none)
    reasons: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    conflict: int = 0
    conflicts: tuple[Conflict, ...] = ()
    unnamed: int = 0
    asked: Asked = field(default_factory=Asked)
    saturated: int = 0
    failed: Mapping[str, Any] | None = None
    #: Two executions of a task did not agree.
    mixed: bool = False

    def digest(self) -> bytes:
        """Return what two executions are compared by."""
        digest = xxhash.xxh3_128()
        for column in (self.offsets, self.ids, self.buckets, self.dropped, self.reasons):
            digest.update(len(column).to_bytes(8, "big"))
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.digest()


#: Run of the plan and source → what was reported.
_Reported = dict[tuple[str, Source], Piece]


class Pieces(AccumulatorParam[_Reported]):
    """Adds up what tasks report: the same again is the same, and something else is noticed."""

    def zero(self, _value: _Reported) -> _Reported:
        """Return nothing."""
        return {}

    def addInPlace(self, value1: _Reported, value2: _Reported) -> _Reported:  # noqa: N802 - Spark's
        """Add reports to those that came before."""
        for key, piece in value2.items():
            known = value1.get(key)
            if known is None or piece.failed is not None:
                value1[key] = piece
            elif known.failed is None and known.digest() != piece.digest():
                value1[key] = Piece(mixed=True)
        return value1


class Merged(NamedTuple):
    """One bundle: its verdicts, what of it repeats across partitions, and its newest timestamp."""

    verdicts: Verdicts
    drops: tuple[Run, ...]
    newest: int


def piece_of(found: Sequence[Verdicts], newest: int, asked: Asked, saturated: int = 0) -> Piece:
    """Return the verdicts on a partition's records, judged one batch after the other."""
    marks: list[Mark] = []
    mark_of = []
    for verdicts in found:
        mark_of.append(np.where(verdicts.mark_of < 0, -1, verdicts.mark_of + len(marks)))
        marks += [mark for mark, _ in verdicts.marks]
    runs_found = [run for verdicts in found for run in verdicts.dropped]
    return Piece(
        read=sum(v.read for v in found),
        newest=newest,
        offsets=_joined([p.batch.offsets[p.rows] for v in found for p in v.picks], _none()),
        ids=_joined([v.ids for v in found], np.empty((0, 2), dtype=np.uint64)),
        buckets=_joined([v.buckets for v in found], _none()),
        marks=tuple(marks),
        mark_of=_joined(mark_of, np.zeros(0, dtype=np.intp)),
        digests=_joined([v.digests for v in found], np.zeros(0, dtype=np.uint16)),
        dropped=_joined([np.arange(r.offset, r.offset + r.count) for r in runs_found], _none()),
        reasons=np.repeat(
            np.array([r.verdict for r in runs_found], dtype=np.uint8),
            np.array([r.count for r in runs_found], dtype=np.intp),
        ),
        conflict=sum(v.conflict for v in found),
        conflicts=tuple(c for v in found for c in v.conflicts),
        unnamed=sum(v.unnamed for v in found),
        asked=asked,
        saturated=saturated,
    )


def merged(pieces: Mapping[Source, Piece]) -> Merged:
    """Return the verdicts of a bundle over several partitions."""
    ordered = sorted(pieces.items())
    first, differ = _repeated([piece for _, piece in ordered])
    verdicts, drops, at = Verdicts(), [], 0
    for source, piece in ordered:
        part = slice(at, at + len(piece.ids))
        at = part.stop
        again = piece.offsets[~first[part]]
        drops += runs(source, again, np.full(len(again), Verdict.DUPLICATE, dtype=np.uint8))
        _add(verdicts, source, piece, first[part])
        _add_conflicts(verdicts, source, piece, np.flatnonzero(differ[part]))
    newest = max((piece.newest for _, piece in ordered), default=0)
    return Merged(verdicts, tuple(drops), newest)


def _repeated(pieces: Sequence[Piece]) -> tuple[Mask, Mask]:
    """Tell of all fresh records whether each is the first of its id, and says else than the first."""
    ids = _joined([piece.ids for piece in pieces], np.empty((0, 2), dtype=np.uint64))
    places = first_places(ids)
    first: Mask = places == np.arange(len(ids))
    digests = _joined([piece.digests for piece in pieces], np.zeros(0, dtype=np.uint16))
    if len(digests) != len(ids):
        # The stage does not compare payloads.
        return first, np.zeros(len(ids), dtype=np.bool_)
    buckets = _joined([piece.buckets for piece in pieces], _none())
    return first, (buckets == EXTERNAL) & (digests[places] != digests)


def runs(source: Source, offsets: _Numbers, reasons: npt.NDArray[np.uint8]) -> list[Run]:
    """Return dropped offsets, in any order, as runs."""
    order = np.argsort(offsets, kind="stable")
    return list(runs_of(source, offsets[order], reasons[order]))


def _add(verdicts: Verdicts, source: Source, piece: Piece, mine: npt.NDArray[np.bool_]) -> None:
    """Add what is left of a piece once the repeats across partitions are taken out."""
    again = piece.offsets[~mine]
    reasons = np.concatenate([piece.reasons, np.full(len(again), Verdict.DUPLICATE, np.uint8)])
    dropped = np.concatenate([piece.dropped, again])
    shifted = np.where(piece.mark_of < 0, -1, piece.mark_of + len(verdicts.marks))
    verdicts.ids = np.concatenate([verdicts.ids, piece.ids[mine]])
    verdicts.buckets = np.concatenate([verdicts.buckets, piece.buckets[mine]])
    verdicts.mark_of = np.concatenate([verdicts.mark_of, shifted[mine]])
    digests = piece.digests[mine] if len(piece.digests) else piece.digests
    verdicts.digests = np.concatenate([verdicts.digests, digests])
    verdicts.marks += [(mark, source) for mark in piece.marks]
    verdicts.dropped += runs(source, dropped, reasons)
    verdicts.read += piece.read
    verdicts.duplicate += int((reasons == Verdict.DUPLICATE).sum())
    verdicts.remnant += int((reasons == Verdict.REMNANT).sum())
    verdicts.abandoned += int((reasons == Verdict.ABANDONED).sum())
    verdicts.unnamed += piece.unnamed


def _add_conflicts(
    verdicts: Verdicts, source: Source, piece: Piece, rows: npt.NDArray[np.intp]
) -> None:
    """Add what differs from what it repeats, there or in a partition before it."""
    verdicts.conflict += piece.conflict + len(rows)
    verdicts.conflicts += piece.conflicts
    verdicts.conflicts += [
        Conflict(source, int(piece.offsets[row]), to_raw(piece.ids[row : row + 1]))
        for row in rows[:CONFLICTS_SHOWN].tolist()
    ]


def _joined(parts: Sequence[Any], nothing: Any) -> Any:
    return np.concatenate(parts) if parts else nothing
