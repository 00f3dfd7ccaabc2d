"""Outputs of a deterministic stage made again, by a process that must emit what was sealed.

What it is: `Remaker`: the same range read again, what took no effect left out, the code run again,
and what it makes compared with the recipe in the seal.
What it must not know: what is done with the outputs; who sealed them.

Invariants:
    Nothing is returned that differs from what was sealed in key, value, headers, edge, partition,
    parent or order: the digest is compared BEFORE anybody may send the first record.
    The fresh set is what the seal's range holds without the offsets that it dropped, whatever the
    reason; as many records as the seal has counted, or none are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import groupby
from typing import cast

import numpy as np

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from dedup.formats.dropped import Run, decode_dropped
from dedup.model import Incarnation, Seal
from delivery.batch import Batch, Emissions, Rows, joined, within
from delivery.execution import execute
from delivery.outputs import Origin, content_digest, emissions
from delivery.ports import Counting, Emitter, Reader, Rereader, Stage
from delivery.recipe import Recipe
from delivery.stage import Policy, StoppedByRecordError
from delivery.verdicts import Pick

__all__ = ["Remaker"]

OP = "make sealed outputs again"
#: What every error says of the data.
MEANS = "its inputs count as read, its outputs are not stored, and none of them was sent by this process"


class Remaker:
    """Makes outputs of one lane again.

    Args:
        lane: its name.
        catalog: where its seals are.
        reader: gives ranges again.
        stage: user code.
        policy: of the stage.
        emitter: places outputs.
        pool: runs user code on several records at once.
    """

    def __init__(
        self,
        lane: str,
        *,
        catalog: Catalog,
        reader: Reader,
        stage: Stage,
        policy: Policy,
        emitter: Emitter,
        pool: Executor | None = None,
    ) -> None:
        self._lane = lane
        self._catalog = catalog
        self._reader = cast("Rereader", reader)
        self._stage = stage
        self._policy = policy
        self._emitter = emitter
        self._pool = pool

    @property
    def counts(self) -> tuple[int, ...] | None:
        """How many partitions each edge has, for the recipes of a stage whose rows are not stored."""
        return cast("Counting", self._emitter).counts if self._policy.deterministic else None

    def remade(self, seal: Seal, recipe: Recipe, incarnation: Incarnation) -> Emissions | None:
        """Return what a seal promises; None if nobody needs it any more.

        SUBTLE: whoever slept meanwhile finds that what others delivered long ago cannot be made any
        more. That is no damage: the row, read AFTER the failure, says so.

        Args:
            seal: whose outputs.
            recipe: stands in their place.
            incarnation: of the lane, as this process knows it.

        Raises:
            InvalidUsage: it was sealed by another version of the code.
            Corrupt: the same cannot be made again; nothing is to be sent.
        """
        try:
            return self._remade(seal, recipe)
        except (Corrupt, InvalidUsage):
            row = self._catalog.load(self._lane)
            if row is None or row.head.ref.incarnation != incarnation:
                return None
            if row.settled >= seal.ref.seq:
                return None
            raise

    def _remade(self, seal: Seal, recipe: Recipe) -> Emissions | None:
        if seal.code != self._stage.code:
            raise InvalidUsage(
                OP,
                self._subject(seal),
                f"they were made by code {seal.code!r}, and this is {self._stage.code!r}; {MEANS}: "
                "run the code of before until nothing of the stage is pending, then this one; a "
                "stage that is not declared deterministic stores its outputs, and needs no such care",
            )
        dropped = self._dropped(seal)
        if dropped is None:
            return None
        picks = self._fresh(seal, dropped)
        rows = self._made(seal, recipe, picks)
        if content_digest(rows) != recipe.digest or len(rows) != seal.outputs.rows:
            raise self._corrupt(seal, self._difference(seal, recipe, picks, rows))
        origin = Origin(lane=self._lane, ref=seal.ref, minted_at_ms=seal.minted_at_ms)
        return emissions(origin, rows)

    # Inputs -----------------------------------------------------------------------------------

    def _dropped(self, seal: Seal) -> list[Run] | None:
        chunks = self._catalog.get(Blob.DROPPED, self._lane, seal)
        place = f"dropped offsets of {self._lane} seq {seal.ref.seq}"
        return None if chunks is None else [r for c in chunks for r in decode_dropped(c, place)]

    def _fresh(self, seal: Seal, dropped: Sequence[Run]) -> list[Pick]:
        """Return the records that took effect, of each partition as one batch."""
        self._check_log(seal)
        found = within(list(self._reader.reread(seal.start, seal.end)), seal.start, seal.end)
        # Once more: retention may have taken what was being read.
        self._check_log(seal)
        batches = [joined(list(own)) for _, own in groupby(found, lambda batch: batch.source)]
        read = sum(map(len, batches))
        if read != seal.counts.read:
            raise self._corrupt(
                seal,
                f"there are {read} records in that range now, and {seal.counts.read} were read when "
                "it was sealed: something took records away, as compaction does or "
                "kafka-delete-records; set the topic's cleanup.policy to delete alone",
            )
        picks = [Pick(batch, np.flatnonzero(_keeps(batch, dropped))) for batch in batches]
        fresh = sum(len(pick.rows) for pick in picks)
        if fresh != seal.counts.fresh:
            raise self._corrupt(
                seal,
                f"{fresh} records are left without those that took no effect, and "
                f"{seal.counts.fresh} took effect: the seal contradicts itself; keep a copy of the "
                "catalog",
            )
        return [pick for pick in picks if len(pick.rows)]

    def _check_log(self, seal: Seal) -> None:
        low = self._reader.log().low
        for source, offset in seal.start:
            first = low.at(source)
            if first is None:
                raise self._corrupt(
                    seal,
                    "the topic that holds the records they were made of was deleted; one of its name "
                    "holds others",
                )
            if first > offset and offset != seal.end.at(source):
                raise self._corrupt(
                    seal,
                    f"the log of partition {source.partition} begins at {first} now: retention has "
                    "deleted the records that they were made of, and nobody can make them again; keep "
                    "records for longer than the stage may stand still",
                )

    # Outputs ----------------------------------------------------------------------------------

    def _made(self, seal: Seal, recipe: Recipe, picks: Sequence[Pick]) -> Rows:
        try:
            rows, _ = execute(
                picks,
                stage=self._stage,
                policy=self._policy,
                emitter=self._emitter,
                counts=recipe.counts,
                pool=self._pool,
            )
        except StoppedByRecordError as error:
            raise self._corrupt(seal, f"the code that made them fails now ({error})") from error
        return rows

    def _difference(self, seal: Seal, recipe: Recipe, picks: Sequence[Pick], rows: Rows) -> str:
        """Say in what the outputs differ, as far as a digest and one more execution can tell."""
        sealed = f"{len(rows)} outputs were made now, and {seal.outputs.rows} sealed"
        if len(rows) == seal.outputs.rows:
            sealed = (
                f"as many outputs were made as were sealed, {len(rows)}, and they say other things"
            )
        again = self._made(seal, recipe, picks)
        other = next((a for a, b in zip(rows, again, strict=False) if a != b), None)
        if other is None:
            return (
                f"{sealed}: run twice here, the code made the same twice, so what it depends on has "
                "changed since: a library, a setting, a file, the time; put it back as it was"
            )
        return (
            f"{sealed}: run twice just now, the code made two different things of offset "
            f"{other.parent[1]} of partition {other.parent[0]}: it is not deterministic; leave out "
            "deterministic=True for what is still to come"
        )

    # Words ------------------------------------------------------------------------------------

    def _subject(self, seal: Seal) -> str:
        spans = ", ".join(
            f"offsets {offset} to {seal.end.at(source)} of partition {source.partition}"
            for source, offset in seal.start
        )
        return f"seal {seal.ref.seq} of lane {self._lane}, {spans}"

    def _corrupt(self, seal: Seal, what: str) -> Corrupt:
        return Corrupt(
            OP,
            self._subject(seal),
            f"{what}; {MEANS}. While they cannot be made the lane stands still; to go on without "
            "them, give the stage another name and let it begin here, the other partitions where "
            "they stand: d.seed(NAME, topic=INPUT, start={PARTITION: OFFSET})",
        )


def _keeps(batch: Batch, dropped: Sequence[Run]) -> np.ndarray:
    """Tell of every record of a batch whether it took effect."""
    keeps = np.ones(len(batch), dtype=np.bool_)
    for run in dropped:
        if run.source == batch.source:
            first, last = np.searchsorted(batch.offsets, (run.offset, run.offset + run.count))
            keeps[first:last] = False
    return keeps
