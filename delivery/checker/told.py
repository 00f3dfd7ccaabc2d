"""Records that took no effect and are told all the same: every one of them, once, and rightly.

What it is: `Told`, the outputs of one seal whose parents it dropped, held against what it dropped.
What it must not know: the code that tells.

Invariants:
    An output of a dropped record is that record itself, and says in a header why it was dropped:
    anything else that is made of it is a second effect.
    A seal tells of all that it dropped, or of nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from delivery.checker.chunks import Promise
from delivery.checker.inputs import Ledger

#: The header by which a record that took no effect is known, and the one of what is cut.
_DUPLICATE = "delivery-duplicate"
_TRUNCATED = "delivery-truncated"
_Headers = Sequence[tuple[str, bytes]]


class Told:
    """What one seal tells of the records that it dropped."""

    def __init__(self, ledger: Ledger, lane: str, seq: int) -> None:
        self._parents, self._lane, self._seq = ledger.parents, lane, seq
        self.dropped = ledger.dropped.get(seq, {})
        self._told: set[tuple[int, int]] = set()

    def tells(self, row: Promise) -> bool:
        """Tell whether an output is not an effect, but tells of a record that had none."""
        return row.parent in self.dropped and not row.kept and tells(row.headers, self._lane)

    def wrong(self, row: Promise) -> str:
        """Say what is wrong with what is told; nothing if it is right."""
        (one, verdict), said = self.dropped[row.parent], _said(row.headers)
        assert said is not None, "it tells something"
        if row.parent in self._told:
            return f"{row.parent} is told twice"
        self._told.add(row.parent)
        record = one.seen.record
        same = (row.key, row.value) == (record.key, record.value)
        if not same and _TRUNCATED not in dict(row.headers):
            return f"it is not the record at {row.parent}"
        right = {"reason": verdict.name.lower(), "id": one.id.hex()}
        if right.items() - said.items():
            return f"{said} of {row.parent}: {right}"
        return self._wrong_place(one.id, said)

    def _wrong_place(self, record_id: bytes, said: dict[str, Any]) -> str:
        """Say why an id was not first seen where it is said, as far as that can be read."""
        seq, place = said.get("seq"), (said.get("partition"), said.get("offset"))
        if seq is None:
            return "" if place == (None, None) else "a place without a seal"
        if not isinstance(seq, int) or seq > self._seq:
            return f"first seen in seal {seq}, behind its own"
        if seq == 0 or seq not in self._parents:
            return ""  # it was brought in with the lane, or the entry is gone
        places = {at for at, decided in self._parents[seq] if decided == record_id}
        if not places or (place != (None, None) and place not in places):
            return f"first seen in seal {seq} at {place}; that decided it at {sorted(places)}"
        return ""

    def missing(self) -> str:
        """Say what was not told although others were; nothing if all was, or nothing."""
        left = self.dropped.keys() - self._told
        return (
            f"{len(left)} dropped records are not told: {min(left)}" if self._told and left else ""
        )


def tells(headers: _Headers, lane: str) -> bool:
    """Tell whether a record says that a lane dropped it: it is no execution of anything.

    Another lane's word is passed on by code like any other header, and counts for nothing.
    """
    said = _said(headers)
    return said is not None and said.get("lane") == lane


def _said(headers: _Headers) -> dict[str, Any] | None:
    try:
        said = json.loads(dict(headers).get(_DUPLICATE) or b"")
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
