"""What one lane has sealed and is sending: begun in order, looked at in order.

What it is: `Outbox`, between the runner's `Emit` instructions and an emitter that need not be
waited for.
What it must not know: other lanes, when there is room for more.

Invariants:
    Emissions are begun in the order of their seals, and told in that order. Everything else may
    overtake them: what they send is sealed.
    A lane that has stopped begins none.
    What fails is emitted again by the runner, and everything begun behind it as well.
"""

from __future__ import annotations

from collections import deque

from dedup.errors import DeliveryError
from delivery.ports import Emitter, Frontier, Sending
from delivery.protocol import messages as m
from delivery.runner import LaneRunner

#: What librdkafka may have on its way, less one: with records that wait behind five requests, the
#: thread of its broker spins until one is answered.
REQUESTS_MAX = 4
#: More rows may be more than one request a partition.
SMALL_ROWS_MAX = 1_000


class Outbox:
    """The emissions of one lane.

    Args:
        runner: the lane's.
        emitter: where they go; one that cannot `begin` is waited for.
    """

    def __init__(self, runner: LaneRunner, emitter: Emitter) -> None:
        self._runner = runner
        self._begin = getattr(emitter, "begin", None)
        self._waiting: deque[m.Emit] = deque()
        #: With the requests that each takes.
        self._sending: deque[tuple[m.Emit, Sending, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    @property
    def requests(self) -> int:
        """How many requests are on their way, at least."""
        return sum(requests for _, _, requests in self._sending)

    def add(self, emit: m.Emit) -> None:
        """Take what is to be sent when there is room."""
        self._waiting.append(emit)

    def begin(self, room: int | None = None) -> bool:
        """Begin what is next; False if that was nothing.

        Args:
            room: for how many requests there is room; None: for all.
        """
        if self._runner.state.stopped is not None:
            self._waiting.clear()
        moved = False
        while self._waiting:
            emit = self._waiting[0]
            requests = self._requests(emit)
            if room is not None:
                if requests is None or requests > room:
                    break
                room -= requests
            self._waiting.popleft()
            self._send(emit, requests or 1)
            moved = True
        return moved

    def look(self, seconds: float = 0.0) -> bool:
        """Tell the runner what has arrived; False if that was nothing.

        Args:
            seconds: how long to wait for what is on its way.
        """
        moved = False
        while self._sending:
            emit, sending, _ = self._sending[0]
            try:
                offsets = sending.done(seconds)
            except DeliveryError:
                # The runner emits the same again, and waits for it; so for all behind it.
                for lost, _, _ in self._sending:
                    self._tell(self._runner.perform(lost))
                self._sending.clear()
                return True
            if offsets is None:
                break
            self._sending.popleft()
            self._tell(self._runner.delivered(emit, offsets))
            moved = True
        return moved

    # Inside -----------------------------------------------------------------------------------

    def _requests(self, emit: m.Emit) -> int | None:
        """Return how many requests an emission takes; None if that is not known."""
        work = None if emit.ticket is None else self._runner.state.work.get(emit.ticket)
        if work is None or len(work.rows) > SMALL_ROWS_MAX:
            return None
        return len(set(zip(work.rows.edges, work.rows.partitions, strict=True)))

    def _send(self, emit: m.Emit, requests: int) -> None:
        if self._begin is None:
            self._tell(self._runner.perform(emit))
            return
        try:
            rows = self._runner.emissions(emit)
            if rows:
                self._sending.append((emit, self._begin(rows), requests))
                return
        except DeliveryError:
            # Again, where whatever goes wrong is told as it should be.
            self._tell(self._runner.perform(emit))
            return
        self._tell(
            m.Missing(emit.seq) if rows is None else self._runner.delivered(emit, Frontier())
        )

    def _tell(self, answer: m.Event | None) -> None:
        if answer is not None:
            self._runner.tell(answer)
