"""Collecting and compacting lanes: what would go, what goes, and what stays and why.

What it is: `tidy`, which rehearses or performs `dedup.collect` and then `dedup.compact` of a lane, and
says in words what holds the rest.
What it must not know: how it is shown, the clock.

Invariants:
    A rehearsal runs the very steps that would be performed, on a store whose writes stay in memory.
    Ids that publishers name are held for the window that is given; `windows` says which is right.
    A lane that is kept in a user's database is left to its receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dedup import collect, compact
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.collect import Keep
from dedup.errors import InvalidUsage
from dedup.expiry import WINDOW_MS_MAX
from dedup.formats.merged import merged_at
from dedup.formats.segment import Origin, Part, whole_segment
from dedup.model import LaneRow, Seal, SegmentList, Slot
from dedup.steps import Step
from delivery.operate.opening import database_of
from delivery.operate.watched import Deeds, Rehearsal, Watched

__all__ = ["ENTRIES_KEPT_MS", "Rules", "Tidied", "tidy"]

#: Seals are kept so long, so that an audit can still read what they decided.
ENTRIES_KEPT_MS = 7 * 24 * 60 * 60 * 1000
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS
#: A plan that somebody else made void is made again, this often at most.
PLANS_MAX = 5
#: So many plans one behind the other leave nothing that need not stay.
COLLECTIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a collection leaves although nobody needs it.

    Attributes:
        window_ms: how long the lane's publishers may repeat themselves.
        entries_ms: seals stay so long, for audits.
        outputs_ms: outputs stay so long, for replays.
    """

    window_ms: int = WINDOW_MS_MAX
    entries_ms: int = ENTRIES_KEPT_MS
    outputs_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse what no stage can mean."""
        if not 0 < self.window_ms <= WINDOW_MS_MAX:
            raise InvalidUsage(
                "compact a catalog",
                f"a window of {self.window_ms} ms",
                "it is more than nothing and at most 30 days, as for stages; nothing was done: say "
                "the longest that a stage of this catalog has, or leave it out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What was done of one lane, or would be.

    Attributes:
        lane: its name.
        done: whether it was done.
        window_ms: for how long ids that publishers name are held.
        steps: what was done, in words and order.
        deeds: what went and what was written.
        merges: how many merges of segments there were.
        stays: what stays, and why, in sentences.
        void: another process moved the lane each time; run again.
        more: there is more to merge than a rehearsal keeps in memory.
    """

    lane: str
    done: bool
    window_ms: int
    steps: tuple[str, ...]
    deeds: Deeds
    merges: int
    stays: tuple[str, ...]
    void: bool = False
    more: bool = False

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"freed": self.deeds.freed}


def tidy(
    catalog: Catalog,
    lane: str,
    rules: Rules,
    now_ms: int,
    *,
    perform: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Tidied:
    """Collect a lane and compact its segments, or say what that would do.

    Safe beside writers, other collectors, and a kill at any moment.

    Args:
        catalog: where the lane is.
        lane: its name.
        rules: what is left although nobody needs it.
        now_ms: what the ages of seals are measured from.
        perform: whether it is done.
        report: is told each step.
    """
    row = catalog.load(lane)
    if row is None or database_of(row.head) is not None:
        where = database_of(row.head) if row else None
        why = f"it is kept in {where}: its receiver collects it, with that database open"
        return Tidied(
            lane=lane,
            done=perform,
            window_ms=rules.window_ms,
            steps=(),
            deeds=Deeds(),
            merges=0,
            stays=(why if where else "it is not there",),
        )
    seals = catalog.history(lane, row.head)
    keep = Keep(
        entries_after=_before(seals, now_ms, rules.entries_ms),
        outputs_after=_before(seals, now_ms, rules.outputs_ms),
        window_ms=rules.window_ms,
    )
    known = {key: size for seal in seals for key, size in _sizes(lane, seal)}
    store = Watched(catalog.store, known) if perform else Rehearsal(catalog.store, known)
    work = _Work(Catalog(store), lane, keep, report)
    void = not work.collect()
    more = not work.compact(until=lambda: isinstance(store, Rehearsal) and store.full)
    return Tidied(
        lane=lane,
        done=perform,
        window_ms=rules.window_ms,
        steps=tuple(work.done),
        deeds=store.deeds,
        merges=work.merges,
        stays=tuple(_stays(Catalog(store), lane, keep, rules)),
        void=void or work.void,
        more=more,
    )


class _Work:
    """The steps of one lane, performed one after the other."""

    def __init__(
        self, catalog: Catalog, lane: str, keep: Keep, report: Callable[[str], None]
    ) -> None:
        self._catalog, self._lane, self._keep, self._report = catalog, lane, keep, report
        self.done: list[str] = []
        self.merges = 0
        self.void = False

    def collect(self) -> bool:
        """Collect; False if every plan became void.

        What one plan lists apart from its entry, the one after it may find to be forgettable.
        """
        for _ in range(COLLECTIONS):
            before = len(self.done)
            if not any(
                self._perform(collect.survey(self._catalog, self._lane, self._keep))
                for _ in range(PLANS_MAX)
            ):
                return False
            if len(self.done) == before:
                break
        return True

    def compact(self, until: Callable[[], bool]) -> bool:
        """Merge until nothing is due; False if it ended before that."""
        lost = 0
        window_ms, least = self._keep.window_ms, compact.PLAIN_MIN
        while steps := compact.survey(self._catalog, self._lane, window_ms, plain_min=least):
            if until():
                return False
            if self._perform(steps):
                self.merges += 1
                continue
            lost += 1
            if lost == PLANS_MAX:
                self.void = True
                return True
        return True

    def _perform(self, steps: list[Step]) -> bool:
        for step in steps:
            self._report(f"{self._lane}: {step.what}")
            if not step.perform(self._catalog):
                return False
            self.done.append(step.what)
        return True


def _before(seals: list[Seal], now_ms: int, kept_ms: int) -> int | None:
    """Return the last seq that is so old; None if nothing is kept for its age."""
    if not kept_ms:
        return None
    old = [seal.ref.seq for seal in seals if seal.minted_at_ms <= now_ms - kept_ms]
    if old:
        return old[-1]
    return seals[0].ref.seq - 1 if seals else -1


def _sizes(lane: str, seal: Seal) -> list[tuple[tuple[Blob, Slot], int]]:
    slot = Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)
    kinds = (
        (Blob.OUTPUTS, seal.outputs, seal.inline_outputs),
        (Blob.DROPPED, seal.dropped, seal.inline_dropped),
        (Blob.SEGMENT, seal.segment, seal.inline_segment),
    )
    return [((kind, slot), ref.size) for kind, ref, inline in kinds if ref.chunks and not inline]


# What stays --------------------------------------------------------------------------------------


def _stays(catalog: Catalog, lane: str, keep: Keep, rules: Rules) -> list[str]:
    """Say what is left of a lane that was tidied, and what holds it."""
    row = catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    seals = {seal.ref.seq: seal for seal in catalog.history(lane, row.head)}
    listed = catalog.segment_list(lane) or SegmentList()
    found = [*_outputs(row, seals, keep), *_entries(row, seals, keep, rules)]
    found += _ids(catalog, seals, listed, rules)
    return found


def _outputs(row: LaneRow, seals: dict[int, Seal], keep: Keep) -> list[str]:
    found = []
    owed = [seal for seq, seal in seals.items() if seq > row.settled]
    if owed:
        found.append(
            f"outputs of {len(owed)} seals, from seq {owed[0].ref.seq} on: they are not "
            "acknowledged, so whoever takes the lane over must be able to send them; a running "
            "stage acknowledges them"
        )
    last = row.ack.seq if keep.outputs_after is None else keep.outputs_after
    kept = [seq for seq, seal in seals.items() if last < seq <= row.ack.seq and seal.outputs.chunks]
    if kept:
        found.append(f"outputs of {len(kept)} seals: they are kept for replays (--keep-outputs)")
    return found


def _entries(row: LaneRow, seals: dict[int, Seal], keep: Keep, rules: Rules) -> list[str]:
    last = row.collected if keep.entries_after is None else keep.entries_after
    kept = [seq for seq in seals if last < seq <= row.collected]
    if not kept:
        return []
    hours = rules.entries_ms / _HOUR_MS
    text = (
        f"{len(kept)} entries and what they dropped, from seq {min(kept)} on: an audit can still "
        f"read them; they are younger than {hours:g} h (--keep-entries)"
    )
    return [text]


def _ids(catalog: Catalog, seals: dict[int, Seal], listed: SegmentList, rules: Rules) -> list[str]:
    found = []
    plain = [slot for slot in listed.slots if merged_at(slot) is None]
    free = [slot for slot in plain if slot.seq not in seals]
    if 0 < len(free) < compact.PLAIN_MIN:
        found.append(
            f"{len(free)} segments of single seals: fewer than {compact.PLAIN_MIN} are not worth a "
            "merge"
        )
    tiers = {place[0].bucket.origin for slot in listed.slots if (place := merged_at(slot))}
    origins = tiers | {
        part.bucket.origin
        for slot in free[: compact.PLAIN_MIN]
        for part in _parts(catalog, slot) or ()
    }
    if Origin.EXTERNAL in origins:
        days = rules.window_ms / _DAY_MS
        found.append(
            f"ids that publishers name: each is held for {days:g} days of lane time (its window)"
        )
    if Origin.INTERNAL in origins:
        found.append(
            "ids that other stages made: each is held until all that its sender emitted up to it "
            "is known to be read"
        )
    return found


def _parts(catalog: Catalog, slot: Slot) -> list[Part] | None:
    return whole_segment(catalog.store.get(Blob.SEGMENT, slot), segment_place(catalog, slot))
