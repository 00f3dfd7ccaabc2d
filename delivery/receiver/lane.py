"""One lane of a receiver in this process: it stops before every append that has an effect.

What it is: `ReceiverLane`, a lane whose user code is the body of a loop: it prepares a bundle up to
its seal and waits there.
What it must not know: connections, where lanes are kept, what the effect is.

Invariants:
    A bundle with fresh records is appended only by `seal`, which the effect asks for. One without
    is sealed at once.
    A seal that was given up is offered again with the same records, or with what is left of them
    behind the winner's frontier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.errors import DeliveryError, Indeterminate
from dedup.model import Attempt, Frontier, Head, HeadRef, Seal, TopicId, advance
from delivery.host.lane import LaneTask
from delivery.ports import Batch, Clock, Emissions, Output, Record, Rows
from delivery.protocol import messages as m
from delivery.protocol.state import Limits, Step
from delivery.stage import Policy
from delivery.verdicts import Pick

__all__ = ["LIMITS", "NoOutputs", "NoUserCode", "ReceiverLane", "claim"]

#: One bundle is in the hands of the user; what is prepared behind it would be judged by a head that
#: is about to move.
LIMITS = Limits(pending_max=1)


class NoUserCode:
    """The stage of a receiver: records become nothing before the body of the loop sees them.

    Args:
        member: this process's name; every seal carries it, which is how others know who works.
    """

    def __init__(self, member: str) -> None:
        self.code = member

    def run(self, _record: Record) -> tuple[Output, ...]:
        """Return nothing."""
        return ()

    def run_rows(self, _batch: Batch, _chosen: Any, _policy: Policy, _rows: Rows) -> int:
        """Add nothing."""
        return 0


class NoOutputs:
    """The emitter of a receiver."""

    writes: tuple[TopicId, ...] = ()

    def place(self, _rows: Rows) -> list[int]:
        """Return nothing."""
        return []

    def emit(self, _emissions: Emissions) -> Frontier:
        """Send nothing."""
        return Frontier()


class ReceiverLane(LaneTask):
    """One lane; see `LaneTask`."""

    #: Whether even a bundle without fresh records waits: where the lane is kept is not decided.
    undecided: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def waiting(self) -> m.Append | None:
        """The append of the bundle that is ready, or None."""
        todo = self._runner.state.todo
        if self.stopped is not None or not todo or not isinstance(todo[0], m.Append):
            return None
        append = todo[0]
        return append if append.seal.counts.fresh or self.undecided() else None

    @property
    def fresh(self) -> list[Pick]:
        """The fresh records of the bundle that is ready."""
        append = self.waiting
        return [] if append is None else self._runner.state.work[append.ticket].verdicts.picks

    def turn(self, *, linger: float = 0.0) -> bool:
        """Prepare a bundle if one is due; False if there was nothing to do."""
        moved = False
        lane = self._runner.state.lane
        if self.stopped is None and self.waiting is None and lane.hungry and self._due(linger):
            self._offer()
            moved = True
        while self.waiting is None and self._runner.step():
            moved = True
        return moved

    def seal(self) -> bool:
        """Append the bundle that is ready; False if it was not sealed, and nothing of it counts.

        Raises:
            DeliveryError: the lane cannot go on.
        """
        append = self.waiting
        assert append is not None, "what is sealed was prepared"
        self._runner.state.todo.popleft()
        answer = self._runner.perform(append)
        assert answer is not None, "an append is answered"
        self._runner.tell(answer)
        while self._is_resolving(append.ticket) and self._runner.step():
            pass
        if isinstance(self.error, DeliveryError):
            raise self.error
        head = self._runner.state.lane.head
        return head is not None and head.ref == append.seal.ref

    def _is_resolving(self, ticket: int) -> bool:
        pending = self._runner.state.lane.pending
        return any(one.ticket == ticket and one.step is Step.RESOLVING for one in pending)


def claim(catalog: Catalog, lane: str, head: Head, member: str, clock: Clock) -> bool:
    """Seal an empty range in this process's name: whoever worked on the lane lets go of it.

    False: somebody else moved it meanwhile, or nobody knows; whoever looks again will see.

    Raises:
        DeliveryError: it did not happen.
    """
    ref = HeadRef(head.ref.incarnation, head.ref.seq + 1, Attempt(clock.fresh()))
    seal = Seal(
        ref=ref,
        start=head.frontier,
        end=head.frontier,
        minted_at_ms=max(clock.now_ms(), head.minted_at_ms + 1),
        lane_time_ms=head.lane_time_ms,
        code=member,
    )
    try:
        return catalog.append(lane, head.ref, advance(head, seal), seal)
    except Indeterminate:
        return False
