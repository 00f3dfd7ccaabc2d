"""Collection: taking away what no attempt and no receiver can need any more.

What it is: `survey` reads a lane and returns a plan, a list of steps in the order that makes every
prefix of it safe; `Step.perform` does one, and `dedup.steps` has the names of all. A dry run is a
plan that is only printed.
What it must not know: clocks, Kafka, who writes the lane meanwhile.

Invariants:
    `collected` is raised BEFORE the first delete, by a compare-and-set of its own.
    An entry goes only AFTER its ids are in the segment list, or expired.
    A segment goes only AFTER the list no longer names it.
    Dropped offsets go only AFTER the entry that they account for.
    Outputs of an append that may be in flight are never touched: an attempt is dead when its
    position is sealed by another, or belongs to a history that was given up.
    A step that lost its comparison ends the plan; running it all again is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dedup import steps as named
from dedup.catalog.catalog import Catalog, dead_slots, segment_place
from dedup.catalog.store import Blob
from dedup.expiry import WINDOW_MS_DEFAULT, forgettable
from dedup.formats.merged import Merged, merged_at
from dedup.formats.segment import Origin, Part, whole_segment
from dedup.model import Head, Incarnation, LaneRow, Seal, SegmentList, Slot
from dedup.steps import Step

_WORDS = {Blob.OUTPUTS: "outputs", Blob.SEGMENT: "segment", Blob.DROPPED: "dropped offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a collection leaves although nobody needs it."""

    #: Entries above this seq stay for audits; None: nothing stays for audits alone.
    entries_after: int | None = None
    #: Outputs above this seq stay for replays; None: nothing stays for replays.
    outputs_after: int | None = None
    #: How long external ids are held, along lane time.
    window_ms: int = WINDOW_MS_DEFAULT


def survey(catalog: Catalog, lane: str, keep: Keep) -> list[Step]:
    """Return what can be collected of a lane just now, as steps in their order."""
    row = catalog.load(lane)
    if row is None:
        return []
    steps: list[Step] = []
    upto = row.ack.seq if keep.outputs_after is None else min(row.ack.seq, keep.outputs_after)
    if upto > row.collected:
        steps.append(_raise(lane, row, upto))
    collected = max(upto, row.collected)
    seals = {seal.ref.seq: seal for seal in catalog.history(lane, row.head)}
    steps += _outputs(catalog, lane, row, collected, seals)
    last = collected if keep.entries_after is None else min(collected, keep.entries_after)
    more, listed = _entries(catalog, lane, row, last, seals)
    steps += more
    gone = min(last, listed.upto if listed else -1)
    kept = {seq: seal for seq, seal in seals.items() if seq > gone}
    steps += _dropped(catalog, lane, row, collected, kept)
    if listed is not None:
        # From the list as the steps before leave it: a busy lane has always more to list, and a
        # plan that replaced the list of before would be void each time.
        steps += _expired(catalog, lane, row, listed, seals, window_ms=keep.window_ms)
    return steps


def collect(catalog: Catalog, lane: str, keep: Keep) -> list[str]:
    """Survey a lane and perform the plan; return what was done."""
    done = []
    for step in survey(catalog, lane, keep):
        if not step.perform(catalog):
            break
        done.append(step.what)
    return done


def _raise(lane: str, row: LaneRow, upto: int) -> Step:
    return Step(
        named.OUTPUTS_MARKED,
        f"mark outputs up to seq {upto} as collected",
        lambda catalog: catalog.raise_collected(lane, row, upto),
    )


def _outputs(
    catalog: Catalog, lane: str, row: LaneRow, collected: int, seals: dict[int, Seal]
) -> Iterator[Step]:
    """Delete the outputs of everything collected, and of attempts that lost above it."""
    stored = list(catalog.store.slots(Blob.OUTPUTS, lane, last=row.head.ref.seq))
    done = [slot for slot in stored if slot.seq <= collected and _ours(slot, row.head)]
    lost = dead_slots([slot for slot in stored if slot.seq > collected], row, seals)
    if done or lost:
        yield _delete(named.OUTPUTS_DELETED, Blob.OUTPUTS, [*done, *lost])
    segments = list(catalog.store.slots(Blob.SEGMENT, lane, last=row.head.ref.seq))
    losers = dead_slots(segments, row, seals)
    if losers:
        yield _delete(named.LOST_IDS_DELETED, Blob.SEGMENT, losers)


def _entries(
    catalog: Catalog, lane: str, row: LaneRow, last: int, seals: dict[int, Seal]
) -> tuple[list[Step], SegmentList | None]:
    """List the segments of old entries, and then delete the entries; return the list after it."""
    steps: list[Step] = []
    old = after = catalog.segment_list(lane)
    listed = old.upto if old else -1
    fresh = [seals[seq] for seq in range(listed + 1, last + 1) if seq in seals]
    if last > listed and len(fresh) == last - listed:
        slots = []
        for seal in fresh:
            if seal.segment.chunks:
                slot = Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)
                slots.append(slot)
                if seal.inline_segment:
                    steps.append(_put_segment(slot, seal.inline_segment))
        known = old.slots if old else ()
        version = (old.version if old else 0) + 1
        after = SegmentList(version=version, upto=last, slots=(*known, *slots))
        what = f"list the ids of seals up to {last} apart from their entries"
        replaced = _replaces(lane, old, after)
        steps.append(Step(named.IDS_LISTED, what, replaced))
        listed = last
    gone = min(last, listed)
    for incarnation, first, end in row.head.runs(0, gone):
        if any(first <= seq <= end for seq in seals):
            steps.append(_delete_entries(lane, row, incarnation, end))
    # What a loser had made is compared with the winner's entry, and that is gone.
    if any(slot.seq <= gone for slot, _ in catalog.store.losers(lane)):
        steps.append(_forget_losers(lane, gone))
    return steps, after


def _dropped(
    catalog: Catalog, lane: str, row: LaneRow, collected: int, kept: dict[int, Seal]
) -> Iterator[Step]:
    """Delete dropped offsets whose entry is gone by now, and those of attempts that lost.

    `kept` are the entries that stay. Whatever else is stored up to `collected` is of an entry of
    this plan or of one before it, or of a loser that nobody can tell any more.
    """
    stored = list(catalog.store.slots(Blob.DROPPED, lane, last=row.head.ref.seq))
    behind = {
        slot
        for slot in stored
        if slot.seq <= collected and slot.seq not in kept and _ours(slot, row.head)
    }
    lost = [slot for slot in dead_slots(stored, row, kept) if slot not in behind]
    if behind or lost:
        yield _delete(named.DROPPED_DELETED, Blob.DROPPED, [*behind, *lost])


def _expired(
    catalog: Catalog,
    lane: str,
    row: LaneRow,
    old: SegmentList,
    seals: dict[int, Seal],
    *,
    window_ms: int,
) -> Iterator[Step]:
    """Take segments whose every id may be forgotten off the list; delete them and leftovers.

    SUBTLE: a segment that is stored at a listed position and not in the list is what a collector
    or a compactor left that was killed, or the late chunk of a loser whose winner's entry is gone.
    It can also be on its way INTO the list, put there by whoever merges segments. The list moves on
    by a version even if nothing leaves it, so whoever read an older one cannot name it any more;
    and who reads the new one and makes the same merge again gives it another name, because the
    version is part of that. Otherwise our delete, still to come, would take what the list names.
    """
    may_go = _Expiry(catalog, row.head, window_ms)
    gone = [slot for slot in old.slots if may_go(slot)]
    stored = list(catalog.store.slots(Blob.SEGMENT, lane, last=old.upto))
    known = {*old.slots, *dead_slots(stored, row, seals)}  # the dead have a step of their own
    left = [
        slot
        for slot in stored
        if slot not in known and (_ours(slot, row.head) or merged_at(slot) is not None)
    ]
    if not gone and not left:
        return
    rest = tuple(slot for slot in old.slots if slot not in gone)
    new = SegmentList(version=old.version + 1, upto=old.upto, slots=rest)
    forgets = f"forget the ids of {len(gone)} seals that no record can repeat any more"
    kind, what = (
        (named.IDS_UNLISTED, forgets)
        if gone
        else (named.LIST_CLOSED, "close the list to leftovers")
    )
    yield Step(kind, what, _replaces(lane, old, new))
    yield _delete(named.IDS_DELETED, Blob.SEGMENT, [*gone, *left])


@dataclass(slots=True)
class _Expiry:
    """Tells of listed segments whether every id in them may be forgotten.

    Of a merged one its name is enough, or one of its pieces: each says what all of it has seen.
    """

    catalog: Catalog
    head: Head
    window_ms: int
    known: dict[Merged, bool] = field(default_factory=dict)

    def __call__(self, slot: Slot) -> bool:
        found = merged_at(slot)
        if found is None:
            return self._read(slot)
        name, _ = found
        if name not in self.known:
            self.known[name] = (
                forgettable(Part(name.bucket, b""), self.head, self.window_ms)
                if name.bucket.origin is Origin.EXTERNAL
                else self._read(slot)
            )
        return self.known[name]

    def _read(self, slot: Slot) -> bool:
        chunks = self.catalog.store.get(Blob.SEGMENT, slot)
        parts = whole_segment(chunks, segment_place(self.catalog, slot))
        return bool(parts) and all(
            forgettable(part, self.head, self.window_ms) for part in parts or ()
        )


def _replaces(lane: str, old: SegmentList | None, new: SegmentList) -> Callable[[Catalog], bool]:
    return lambda catalog: catalog.replace_segment_list(lane, old, new)


def _forget_losers(lane: str, last: int) -> Step:
    def act(catalog: Catalog) -> bool:
        catalog.store.forget_losers(lane, last)
        return True

    return Step(named.LOSERS_FORGOTTEN, f"forget the digests of losers up to seq {last}", act)


def _delete(kind: str, blobs: Blob, slots: list[Slot]) -> Step:
    def act(catalog: Catalog) -> bool:
        catalog.store.delete(blobs, slots)
        return True

    return Step(kind, f"delete the {_WORDS[blobs]} of {len(slots)} attempts", act)


def _put_segment(slot: Slot, chunk: bytes) -> Step:
    def act(catalog: Catalog) -> bool:
        catalog.store.put(Blob.SEGMENT, slot, [chunk])
        return True

    return Step(named.IDS_STORED_APART, f"store the ids of seal {slot.seq} apart from it", act)


def _delete_entries(lane: str, row: LaneRow, incarnation: Incarnation, end: int) -> Step:
    return Step(
        named.ENTRIES_DELETED,
        f"delete entries up to seq {end}",
        lambda catalog: catalog.delete_seals(lane, row, incarnation, end),
    )


def _ours(slot: Slot, head: Head) -> bool:
    """Tell whether the slot is of a history that this survey has read about."""
    return head.last_kept(slot.incarnation) is not None
