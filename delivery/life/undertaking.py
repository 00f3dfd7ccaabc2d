"""Something done to all lanes of a stage, so that a kill at any point leaves it finishable.

What it is: `Hands`, what verbs work with, and `Undertaking`: lanes put to rest, and taken on.
What it must not know: which verb it is, what is done while lanes rest.

Every lane is put to rest first, by one compare-and-set under a new incarnation: whoever runs it is
fenced by the same write, and whoever loads it afterwards is refused. Then the deeds are done, each
of which may be done again. Then each lane is taken on, or left at rest for good, by one more
compare-and-set.

Invariants:
    No lane is taken on before all of them rest.
    What was begun is known by an identity that every resting lane carries. The incarnation under
    which a lane is taken on is made from that identity, so the lane itself says for ever that this
    was done to it: who runs the same again goes on where it was killed.
    The first lane by name rests first, so two who begin at once meet there.
    A new incarnation puts back neither an acknowledgement nor a `collected` that moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from dedup.catalog.catalog import Catalog
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from dedup.model import Attempt, Head, HeadRef, Incarnation, Kept, LaneRow
from delivery.life import points
from delivery.life.survey import Surveyed
from delivery.operate.logs import Cluster
from delivery.operate.places import is_remade
from delivery.points import At, nowhere
from delivery.ports import Emitter
from delivery.protocol.rest import Kind, Rest, rest_of

__all__ = ["Hands", "Undertaking", "undertake"]

#: How often a lane that moves on is tried to be fenced. Each time it sealed or delivered just then.
TRIES_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What verbs work with.

    Attributes:
        catalog: what has been decided.
        cluster: the topics.
        sink: makes the sink of topics by their names.
        fresh: returns 16 bytes that nobody was given before.
        report: is told what is being done.
        at: is told each place at which a test may let the process die.
    """

    catalog: Catalog
    cluster: Cluster
    sink: Callable[[Sequence[str]], Emitter]
    fresh: Callable[[], bytes]
    report: Callable[[str], None] = lambda _: None
    at: At = nowhere


@dataclass(frozen=True, slots=True)
class Undertaking:
    """One thing done to a stage, by whomever, however often it is begun.

    Attributes:
        hands: what it is done with.
        rest: how lanes rest meanwhile.
        begun: the lanes that rested for it already when it was looked for.
    """

    hands: Hands
    rest: Rest
    begun: frozenset[str] = field(default_factory=frozenset)

    def concerned(self, found: Surveyed) -> list[str]:
        """Return the lanes of a stage that it is done to: those that do not rest for good."""
        ours = {lane for lane, rest in found.rests.items() if rest.intent == self.rest.intent}
        return sorted({*found.live, *ours})

    def every(self, found: Surveyed) -> list[str]:
        """Return the lanes of a stage, those that rest for good as well."""
        return sorted(found.lanes)

    def done(self, lane: str) -> bool:
        """Tell whether it was done to a lane."""
        row = self.hands.catalog.load(lane)
        return row is not None and self._is_done(lane, row.head)

    def settle(self, lane: str, target: tuple[tuple[int, int], ...] = ()) -> None:
        """Put a lane to rest, unless it rests for this already, or it was done to it.

        Raises:
            InvalidUsage: the lane rests for something else, or owes what only its code can make.
            Unavailable: it moves on faster than it can be fenced.
        """

        def resting(row: LaneRow) -> Head | None:
            before = rest_of(row.head.state)
            if before is not None and before.kind in (Kind.MOVED, Kind.COPIED):
                raise InvalidUsage("change a stage", lane, f"{before.why()}; nothing was done")
            if before is not None and before.kind is Kind.UNDER_WAY:
                if before.intent == self.rest.intent:
                    return None
                raise _another(lane, before)
            if self._is_done(lane, row.head):
                return None
            self._refuse_unstored(lane, row)
            state = row.head.state if before is None else before.state
            rest = replace(self.rest, target=target, state=state)
            return self._anew(row.head, self.hands.fresh(), rest.encode())

        self._move(lane, resting)
        self.hands.at(points.RESTS)

    def conclude(
        self, lane: str, edit: Callable[[Head], Head] = lambda head: head, last: Kind | None = None
    ) -> None:
        """Take a lane on, or leave it at rest for good.

        Args:
            lane: which; it rests.
            edit: what changes in its head.
            last: how it rests from now on; None: it goes on.
        """

        def concluded(row: LaneRow) -> Head | None:
            if self._is_done(lane, row.head):
                return None
            rest = self._own(lane, row.head)
            state = rest.state if last is None else replace(rest, kind=last, target=()).encode()
            return edit(self._anew(row.head, self._mark(lane), state))

        self.hands.at(points.CONCLUDES)
        self._move(lane, concluded)
        self.hands.at(points.CONCLUDED)

    def give_up(self, lane: str) -> None:
        """Take a lane on as it was before: nothing was done to it."""

        def woken(row: LaneRow) -> Head | None:
            rest = rest_of(row.head.state)
            if rest is None or rest.kind is not Kind.UNDER_WAY:
                return None
            return self._anew(row.head, self.hands.fresh(), rest.state)

        self._move(lane, woken)

    def adopted(self, lane: str, row: LaneRow) -> None:
        """Make a lane that rests for this, unless it is there for this."""
        found = self.hands.catalog.load(lane)
        if found is None:
            state = replace(self.rest, state=row.head.state).encode()
            ref = HeadRef(
                Incarnation(self.hands.fresh()), row.head.ref.seq, Attempt(self.hands.fresh())
            )
            head = replace(row.head, ref=ref, state=state)
            ack = replace(row.ack, incarnation=ref.incarnation)
            self.hands.catalog.recreate(lane, replace(row, head=head, ack=ack))
        elif not self._is_done(lane, found.head):
            self._own(lane, found.head)
        self.hands.at(points.ADOPTED)

    def target(self, lane: str) -> tuple[tuple[int, int], ...]:
        """Return where a resting lane is to go on."""
        row = self.hands.catalog.load(lane)
        return (
            () if row is None or self._is_done(lane, row.head) else self._own(lane, row.head).target
        )

    def state(self, lane: str) -> bytes:
        """Return the state that a resting lane had before."""
        row = self.hands.catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        return self._own(lane, row.head).state

    # Inside -----------------------------------------------------------------------------------

    def _refuse_unstored(self, lane: str, row: LaneRow) -> None:
        """Refuse to put a lane to rest of which only its own code can deliver what it owes.

        SUBTLE: the row is the one that is compared when the lane is put to rest, so that nothing is
        sealed in between. Lanes that rest for this already are woken: else the stage could not run,
        and nothing would ever be delivered.
        """
        catalog = self.hands.catalog
        owed = catalog.history(lane, row.head, row.settled + 1)
        unstored = [seal for seal in owed if is_remade(catalog, lane, seal)]
        if not unstored:
            return
        stage = lane.rpartition("/")[0]
        for other in list(catalog.lanes(f"{stage}/")):
            there = catalog.load(other)
            rest = rest_of(there.head.state) if there is not None else None
            if rest is not None and rest.intent == self.rest.intent:
                self.give_up(other)
        raise InvalidUsage(
            f"delivery stage {self.rest.verb}",
            lane,
            f"{len(unstored)} of its seals are not delivered, and its stage is deterministic: their "
            "outputs are not stored, and only its code makes them again; nothing was done: run the "
            "stage until nothing is pending, stop it, and say this again",
        )

    def _mark(self, lane: str) -> bytes:
        """Return the incarnation under which a lane goes on, once this was done to it."""
        return xxhash.xxh3_128_digest(self.rest.intent + lane.encode())

    def _is_done(self, lane: str, head: Head) -> bool:
        return head.last_kept(Incarnation(self._mark(lane))) is not None

    def _own(self, lane: str, head: Head) -> Rest:
        rest = rest_of(head.state)
        if rest is None or rest.intent != self.rest.intent:
            raise _another(lane, rest)
        return rest

    def _anew(self, head: Head, incarnation: bytes, state: bytes) -> Head:
        ref = HeadRef(Incarnation(incarnation), head.ref.seq, Attempt(self.hands.fresh()))
        past = (*head.past, Kept(head.ref.incarnation, head.ref.seq))
        return replace(head, ref=ref, past=past, state=state)

    def _move(self, lane: str, step: Callable[[LaneRow], Head | None]) -> None:
        """Put a new incarnation in place of whatever head is there; `step` says what, or nothing."""
        catalog = self.hands.catalog
        for _ in range(TRIES_MAX):
            row = catalog.load(lane)
            assert row is not None, "a lane is never deleted"
            head = step(row)
            if head is None:
                return
            ack = replace(row.ack, incarnation=head.ref.incarnation)
            moved = LaneRow(head=head, ack=ack, collected=row.collected)
            try:
                if catalog.reincarnate(lane, row.head.ref, moved, row):
                    return
            except Indeterminate:
                continue  # the lane says next whether it happened
        raise Unavailable(
            f"delivery stage {self.rest.verb}",
            lane,
            "it moves on faster than it can be fenced; what was done so far is finished by running "
            "the same again: stop the stage first",
        )


def undertake(
    hands: Hands, stages: Sequence[Surveyed], verb: str, said: Sequence[tuple[str, str]] = ()
) -> Undertaking:
    """Return what is being done to stages: what was begun before if it is the same, else anew.

    Raises:
        InvalidUsage: something else was begun on one of them and is not finished.
    """
    wish = Rest(kind=Kind.UNDER_WAY, verb=verb, said=tuple(sorted(said)), intent=hands.fresh())
    begun = {
        lane: rest
        for found in stages
        for lane, rest in found.rests.items()
        if rest.kind is Kind.UNDER_WAY
    }
    for lane, rest in sorted(begun.items()):
        if (rest.verb, rest.said) != (wish.verb, wish.said):
            raise _another(lane, rest)
        wish = replace(wish, intent=rest.intent)
    return Undertaking(hands, wish, frozenset(begun))


def _another(lane: str, rest: Rest | None) -> InvalidUsage:
    if rest is None:
        hint = "it was taken on meanwhile by somebody else; nothing was done: look at it again"
        return InvalidUsage("change a stage", lane, hint)
    words = " ".join(f"{key}={value}" for key, value in rest.said)
    return InvalidUsage(
        "change a stage",
        lane,
        f"`delivery stage {rest.verb}` ({words or 'nothing more was said'}) was begun on it and is "
        "not finished; nothing was done: run that again, with the same words, and then this",
    )
