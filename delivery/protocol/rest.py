"""A lane at rest: what its head says while nobody may run it, and why.

What it is: `Rest`, and how it stands in the state of a head.
What it must not know: who put the lane there, what is done to it meanwhile.

Invariants:
    Whoever loads a lane at rest is refused; only what put it there takes it on.
    A lane at rest remembers the state that it had: it is put back with it.
    A spelling of a newer release is a rest too: what is not understood does not run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["REST", "Kind", "Rest", "rest_of"]

#: What the state of a head begins with while its lane is at rest; a version and JSON follow.
REST = b"rest\x00"
_VERSION = b"\x01"


class Kind(StrEnum):
    """How a lane rests. All but the first are for good, or until an operator says otherwise."""

    #: Something is being done to its stage, and is not finished.
    UNDER_WAY = "under way"
    RETIRED = "retired"
    #: Its stage has another name now.
    RENAMED = "renamed"
    #: Its stage deduplicates otherwise now, in lanes of other names.
    REKEYED = "rekeyed"
    #: A job without this library goes on where it stands.
    LEFT = "left"
    #: Its catalog was moved: it goes on in another one.
    MOVED = "moved"
    #: It was copied from another catalog, which may still go on.
    COPIED = "copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Why a lane rests.

    Attributes:
        kind: how.
        verb: what is done, or was, as on the command line.
        said: what was said with it, as words and their values.
        intent: identity of what is done, the same in every lane of it.
        target: where the lane is to go on, by partition; empty if that is where it stands.
        state: the state that the head had.
    """

    kind: Kind
    verb: str
    said: tuple[tuple[str, str], ...] = ()
    intent: bytes = b""
    target: tuple[tuple[int, int], ...] = ()
    state: bytes = b""

    def encode(self) -> bytes:
        """Return it as the state of a head."""
        body = {
            "kind": self.kind.value,
            "verb": self.verb,
            "said": dict(self.said),
            "intent": self.intent.hex(),
            "target": list(self.target),
            "state": self.state.hex(),
        }
        return REST + _VERSION + json.dumps(body, sort_keys=True).encode()

    def why(self) -> str:
        """Say why the lane may not run, and what to do."""
        words = dict(self.said)
        if self == _NEWER:
            return (
                "a newer release put it to rest, and this one cannot read why: install that release"
            )
        if self.kind in (Kind.MOVED, Kind.COPIED):
            return self._of_another_catalog(words)
        return self._of_its_stage(words)

    def _of_its_stage(self, words: dict[str, str]) -> str:
        if self.kind is Kind.UNDER_WAY:
            return (
                f"`delivery stage {self.verb}` was begun on its stage and is not finished: run "
                "the same again, and it finishes"
            )
        if self.kind is Kind.RENAMED:
            return (
                f"its stage was renamed, and goes on as {words.get('to', 'another')}: declare it "
                "by that name"
            )
        if self.kind is Kind.REKEYED:
            return (
                f"its stage was changed to dedup={words.get('to', '?')!r}, and goes on in other "
                "lanes: declare it so, or change it back with `delivery stage change-dedup`"
            )
        if self.kind is Kind.LEFT:
            return (
                "a job without this library goes on where it stands; to take the work back, say "
                "`delivery stage reset` with the offsets where that job stands"
            )
        return (
            "its stage was retired, and its ids are gone; name the stage otherwise, or say "
            "`delivery stage reset` to begin it anew"
        )

    def _of_another_catalog(self, words: dict[str, str]) -> str:
        if self.kind is Kind.MOVED:
            return f"its catalog was moved, and it goes on in {words.get('to', '?')}: open that one"
        return (
            f"`delivery catalog {self.verb}` was begun from {words.get('from', '?')} and is not "
            "finished: run the same again, and it finishes"
        )


#: What a newer release does to a lane, in words that this one does not know.
_NEWER = Rest(kind=Kind.UNDER_WAY, verb="(of a newer release)")


def rest_of(state: bytes) -> Rest | None:
    """Return why the lane with this state of its head rests; None: it does not."""
    if not state.startswith(REST):
        return None
    if not state.startswith(REST + _VERSION):
        return _NEWER
    body = json.loads(state[len(REST) + len(_VERSION) :])
    if body["kind"] not in set(Kind):
        return _NEWER
    return Rest(
        kind=Kind(body["kind"]),
        verb=body["verb"],
        said=tuple(sorted(body["said"].items())),
        intent=bytes.fromhex(body["intent"]),
        target=tuple((partition, offset) for partition, offset in body["target"]),
        state=bytes.fromhex(body["state"]),
    )
