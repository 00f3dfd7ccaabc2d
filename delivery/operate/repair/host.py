"""The index of this host, held against the catalog, and made anew where it is wrong.

What it is: `examine`, which says of one lane what its files hold too little or too much of, and
`rebuild`, which throws them away and makes them from the segments.
What it must not know: why a file is wrong, other hosts.

Invariants:
    Examining changes nothing. Rebuilding deletes a manifest, which anybody may do at any moment:
    processes that run keep what they have mapped.
    An id that the catalog decided and the files lack lets a repeat through; one that they have and
    the catalog does not drops a record that is none. Both are told as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from dedup.arrays import Ids, contains, from_raw, sorted_unique
from dedup.catalog.catalog import Catalog
from dedup.errors import Unavailable
from dedup.expiry import WINDOW_MS_DEFAULT, forgettable
from dedup.filters import Filter, Filters, open_filter
from dedup.formats.segment import Part
from dedup.local import Home, LaneIndex
from dedup.local.home import Place
from dedup.local.intake import Gap, Intake, kept
from dedup.local.manifest import Manifest, NamedGroup
from dedup.local.shelf import filters_of
from dedup.model import LaneRow
from dedup.runs import Run, open_run
from delivery.operate.opening import database_of

__all__ = ["Examined", "State", "examine", "rebuild"]

_MANIFEST = "manifest"
_NO_IDS: Ids = np.empty((0, 2), dtype=np.uint64)


class State(StrEnum):
    """How the index of a lane stands on this host."""

    RIGHT = "right"
    #: No process of this host has made one; the first that needs it does.
    ABSENT = "absent"
    #: Nothing here can be relied on: torn, of another boot or release. It is made anew in any case.
    UNUSABLE = "unusable"
    #: It belongs to a history that is not the lane's; it is made anew in any case.
    STRAY = "of another history"
    #: It lacks ids, or has others: THIS would have let repeats through, or dropped records.
    WRONG = "wrong"
    #: Its lane is in a user's database, whose own index nobody else can judge.
    ELSEWHERE = "in a database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One lane's index on this host.

    Attributes:
        lane: its name.
        state: how it stands.
        seq: the seal it goes up to; -1 if that is not known.
        ids: how many it holds.
        missing: ids that the catalog decided and the runs lack.
        foreign: ids in the runs that the catalog did not decide.
        unfiltered: ids that the runs have and a filter denies.
        broken: files that the manifest names and that cannot be used.
        window_ms: how long it holds external ids.
    """

    lane: str
    state: State
    seq: int = -1
    ids: int = 0
    missing: int = 0
    foreign: int = 0
    unfiltered: int = 0
    broken: int = 0
    window_ms: int = WINDOW_MS_DEFAULT

    @property
    def repairable(self) -> bool:
        """Whether it is worth making anew."""
        return self.state in (State.UNUSABLE, State.STRAY, State.WRONG)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"state": self.state.value}


def examine(catalog: Catalog, home: Home, lane: str) -> Examined:
    """Hold the files of a lane against the catalog.

    Raises:
        Unavailable: the lane was collected while it was read; run it again.
        Corrupt: the catalog itself is damaged.
    """
    row = catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    place = home.place(catalog.store.url, lane)
    if database_of(row.head) is not None:
        return Examined(lane=lane, state=State.ELSEWHERE)
    if not place.path.is_dir():
        return Examined(lane=lane, state=State.ABSENT)
    manifest = place.read()
    if manifest is None:
        return Examined(lane=lane, state=State.UNUSABLE)
    intake = Intake(catalog, lane)
    if not intake.on_history(manifest.tag, row.head):
        # Of a lane whose entries are listed and gone, too, nobody can say that it is on it.
        state = State.RIGHT if intake.beyond(manifest.tag, row.head) else State.STRAY
        return Examined(lane=lane, state=state, seq=manifest.tag.seq, window_ms=manifest.window_ms)
    return _compared(catalog, place, manifest, row)


def rebuild(catalog: Catalog, home: Home, found: Examined) -> Examined:
    """Make the index of a lane anew from its segments, and examine it again."""
    place = home.place(catalog.store.url, found.lane)
    manifest = place.read()
    filters = Filters() if manifest is None else filters_of(manifest, place)
    with place.lock() as held:
        if not held:
            raise Unavailable(
                "rebuild an index",
                found.lane,
                "a process of this host publishes it just now; nothing was changed: run it again",
            )
        (place.path / _MANIFEST).unlink(missing_ok=True)
    row = catalog.load(found.lane)
    assert row is not None, "a lane is never deleted"
    index = LaneIndex(catalog, found.lane, window_ms=found.window_ms, home=home, filters=filters)
    with closing(index):
        index.catch_up(row.head)
    return examine(catalog, home, found.lane)


def _compared(catalog: Catalog, place: Place, manifest: Manifest, row: LaneRow) -> Examined:
    lane, head, window_ms = place.lane, row.head, manifest.window_ms
    groups = [_Group(place, lane, manifest, named) for named in manifest.groups]
    held = sorted_unique(np.concatenate([_NO_IDS, *(group.ids for group in groups)]))
    decided: list[Ids] = [_NO_IDS]
    missing = 0
    for part, ids in _sealed(catalog, lane, manifest, row):
        decided.append(ids)
        if not forgettable(part, head, window_ms):
            missing += int((~contains(held, ids)).sum())
    # What an abandoned history decided may lie in the runs: whoever asks leaves it out by its seal.
    counts = partial(kept, head)
    mine = [group.counting(counts) for group in groups] if head.past else [held]
    foreign = ~contains(sorted_unique(np.concatenate(decided)), np.concatenate([_NO_IDS, *mine]))
    unfiltered = sum(group.unfiltered for group in groups)
    broken = sum(group.broken for group in groups)
    wrong = missing or unfiltered or bool(foreign.any())
    return Examined(
        lane=lane,
        state=State.WRONG if wrong else State.UNUSABLE if broken else State.RIGHT,
        seq=manifest.tag.seq,
        ids=len(held),
        missing=missing,
        foreign=int(foreign.sum()),
        unfiltered=unfiltered,
        broken=broken,
        window_ms=window_ms,
    )


def _sealed(
    catalog: Catalog, lane: str, manifest: Manifest, row: LaneRow
) -> Iterator[tuple[Part, Ids]]:
    """Yield every part that was sealed up to the manifest's tag, and the ids of it that were."""
    intake, last = Intake(catalog, lane), manifest.tag.seq
    try:
        listed = intake.listed()
        for slot, part in intake.listed_parts(listed.slots if listed else (), row.head):
            ids = from_raw(part.ids)
            seqs = np.array([seq for _, seq in part.origins] or [slot.seq])
            rows = part.indexes() if part.origins else np.zeros(len(ids), dtype=np.intp)
            yield part, ids[seqs[rows] <= last]
        first = (listed.upto if listed else -1) + 1
        for seal in intake.seals(row.head, first, last) if first <= last else ():
            yield from ((part, from_raw(part.ids)) for part in intake.parts(seal))
    except Gap as error:
        raise Unavailable(
            "examine an index",
            lane,
            "the lane was collected while it was read; nothing was changed: run it again",
        ) from error


class _Group:
    """The files of one group: ids, and whether its filter admits them all."""

    def __init__(self, place: Place, lane: str, manifest: Manifest, named: NamedGroup) -> None:
        found = [open_run(place.path / run.name, lane) for run in named.runs]
        self._runs: list[Run] = [run for run in found if run is not None and run.verify()]
        self.ids: Ids = np.concatenate(
            [_NO_IDS, *(np.asarray(run.ids, dtype=np.uint64) for run in self._runs)]
        )
        self.broken = len(found) - len(self._runs)
        self.unfiltered = 0
        engine = manifest.filters.partition(" ")[0]
        filter_: Filter | None = open_filter(
            place.path / named.filter, lane=lane, bucket=named.bucket, engine=engine
        )
        if filter_ is None:
            self.broken += 1
        else:
            with closing(filter_):
                self.unfiltered = int((~filter_.maybe(self.ids)).sum())

    def counting(self, counts: Any) -> Ids:
        """Return the ids whose seals are on the lane's history."""
        found = [_NO_IDS]
        for run in self._runs:
            told = np.array([counts(*origin) for origin in run.origins], dtype=np.bool_)
            ids = np.asarray(run.ids, dtype=np.uint64)
            found.append(ids[told[run.origin(np.arange(len(ids), dtype=np.int64))]])
        return np.concatenate(found)
