"""A catalog that knows less than the topics do, on purpose.

What it is: `accept`, which gives every lane of a catalog that was put back from a copy a new
incarnation where it stands, so that what was sealed since is given up; `let_begin` and `may_begin`,
by which a stage may begin that a catalog does not know and topics do.
What it must not know: how the copy was made, topics.

Invariants:
    A lane is moved by one compare-and-set: whoever runs it is fenced by the same write, and nothing
    else of it changes. Killed in between, the same again finishes it.
    A lane that something else is being done to is left to that, and so are all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dedup.backup import renewed
from dedup.catalog.catalog import Catalog
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from dedup.model import LaneRow
from delivery.operate.opening import database_of, name_of
from delivery.protocol.rest import Kind, rest_of

__all__ = ["RE_KEYING", "Accepted", "Begins", "accept", "let_begin", "may_begin"]

_OP = "accept a catalog"
#: Somebody else's to finish: the incarnation under which such a lane goes on is settled already.
_BUSY = (Kind.UNDER_WAY, Kind.MOVED, Kind.COPIED)
#: A lane that its stage still moves is tried again, this often at most.
TRIES_MAX = 100
#: How the stage is called that re-keys in front of another one.
RE_KEYING = ".by-id"
#: What is stored of a stage that may begin, by "pipeline/stage"; it matters until that has lanes.
_BEGINS = "begins/"
_SAID = "meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Lanes that go on where they stand, with the seq of each, and those in users' databases."""

    catalog: str
    done: bool
    lanes: dict[str, int]
    elsewhere: list[str]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def accept(catalog: Catalog, fresh: Callable[[], bytes], *, perform: bool = False) -> Accepted:
    """Take a catalog for what it is: every lane goes on where it stands, as another history.

    Args:
        catalog: put back from a copy.
        fresh: returns 16 bytes that nobody was given before.
        perform: whether it is done.

    Raises:
        InvalidUsage: something else is not finished. Nothing was done.
        Unavailable: a lane moves all the time; those before it are done.
    """
    rows = {lane: row for lane in catalog.lanes() if (row := catalog.load(lane)) is not None}
    for lane, row in rows.items():
        rest = rest_of(row.head.state)
        if rest is not None and rest.kind in _BUSY:
            raise InvalidUsage(_OP, lane, f"{rest.why()}; nothing was done")
    elsewhere = [lane for lane, row in rows.items() if database_of(row.head) is not None]
    mine = {lane: row for lane, row in rows.items() if lane not in elsewhere}
    if perform:
        mine = {lane: _moved(catalog, lane, fresh) for lane in mine}
    return Accepted(
        catalog=catalog.store.url,
        done=perform,
        lanes={lane: row.head.ref.seq for lane, row in mine.items()},
        elsewhere=elsewhere,
    )


def _moved(catalog: Catalog, lane: str, fresh: Callable[[], bytes]) -> LaneRow:
    for _ in range(TRIES_MAX):
        row = catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        new = renewed(row, fresh)
        try:
            if catalog.reincarnate(lane, row.head.ref, new, row):
                return new
        except Indeterminate:
            continue  # one incarnation more does no harm
    raise Unavailable(
        _OP, lane, "it moves on all the time; what was done is done: stop its stage, run it again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begins:
    """A stage that may begin anew."""

    catalog: str
    stage: str
    done: bool

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def let_begin(catalog: Catalog, stage: str, *, perform: bool = False) -> Begins:
    """Let a stage begin that this catalog does not know, whatever topics and other stages say.

    Args:
        catalog: where it is to begin.
        stage: "pipeline/stage".
        perform: whether it is done.

    Raises:
        InvalidUsage: it has begun, or the name is none. Nothing was done.
    """
    pipeline, slash, name = stage.partition("/")
    if not (pipeline and slash and name) or "/" in name:
        raise InvalidUsage(
            _OP, f"stage {stage}", 'nothing was done: name it in full, as in "main/price"'
        )
    there = next(catalog.lanes(f"{stage}/"), None)
    if there is not None:
        raise InvalidUsage(
            _OP,
            f"stage {stage}",
            f"it has begun here (lane {there}), and goes on where it stands; nothing was done: to "
            "let it read again say `delivery stage reset`, and without --stage this is about a "
            "catalog that was put back from a copy",
        )
    if perform:
        catalog.store.setting(_BEGINS + stage, _SAID)
    return Begins(catalog=catalog.store.url, stage=stage, done=perform)


def may_begin(catalog: Catalog, lane: str) -> bool:
    """Tell whether it was said of a lane's stage that it is to begin here."""
    name = name_of(lane)
    stage = f"{name.pipeline}/{name.stage.removesuffix(RE_KEYING)}"
    return catalog.store.find_setting(_BEGINS + stage) is not None
