"""What lanes have sealed and are sending: begun in order, looked at in order.

What it is: `Outbox`, between one lane's `Emit` instructions and an emitter that need not be waited
for, and `Road`, which the lanes of a stage share.
What it must not know: which lanes there are, what is sealed next.

Invariants:
    Emissions are begun in the order of their seals, and landed in that order. Everything else may
    overtake them: what they send is sealed.
    A lane that has ended begins none: whatever is behind a failure is for the next owner to send.
    What fails is emitted again by the runner, and everything begun behind it as well.
    What waits goes out after at most what is on its way: nobody overtakes it for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dedup.errors import DeliveryError
from delivery.ports import Emitter, Frontier, Sending
from delivery.protocol import messages as m
from delivery.runner import LaneRunner

#: What librdkafka may have on its way, less one: with records that wait behind five requests, the
#: thread of its broker spins until one is answered.
REQUESTS_MAX = 4
#: More rows may be more than one request a partition.
SMALL_ROWS_MAX = 1_000
#: Keys and values that a lane may have sealed and not landed; behind it the lane takes nothing new.
#: Some bundles of Kafka's largest batches, so that only a broker that stands still comes up to it.
OUTBOX_BYTES_MAX = 32 * 1024 * 1024


class Outbox:
    """The emissions of one lane.

    Args:
        runner: the lane's.
        emitter: where they go; one that cannot `begin` is waited for.
    """

    def __init__(self, runner: LaneRunner, emitter: Emitter) -> None:
        self._runner = runner
        self._begin = getattr(emitter, "begin", None)
        #: With the requests that each takes, if that is known.
        self._waiting: deque[tuple[m.Emit, int | None]] = deque()
        self._sending: deque[tuple[m.Emit, Sending, int]] = deque()
        #: Of the rows in memory, by the seqs they are of.
        self._bytes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    @property
    def requests(self) -> int:
        """How many requests are on their way, at least."""
        return sum(requests for _, _, requests in self._sending)

    @property
    def waits(self) -> bool:
        """Whether something has not been begun."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether so much is in memory that the lane must take nothing new."""
        return sum(self._bytes.values()) >= OUTBOX_BYTES_MAX

    def add(self, emit: m.Emit) -> None:
        """Take what is to be sent when there is room."""
        work = None if emit.ticket is None else self._runner.state.work.get(emit.ticket)
        requests = None
        if work is not None:
            self._bytes[emit.seq] = work.rows.nbytes
            if len(work.rows) <= SMALL_ROWS_MAX:
                requests = len(set(zip(work.rows.edges, work.rows.partitions, strict=True)))
        self._waiting.append((emit, requests))

    def begin(self, room: int | None = None) -> bool:
        """Begin what is next; False if that was nothing.

        Args:
            room: for how many requests there is room; None: for all.
        """
        moved = False
        while self._waiting and not self._ended:
            emit, requests = self._waiting[0]
            if room is not None:
                if requests is None or requests > room:
                    break
                room -= requests
            self._waiting.popleft()
            self._send(emit, requests or 1)
            moved = True
        if self._ended:
            self._waiting.clear()
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
                self._redo()
                return True
            if offsets is None:
                break
            self._sending.popleft()
            self._tell(self._runner.delivered(emit, offsets))
            moved = True
        return moved

    # Inside -----------------------------------------------------------------------------------

    @property
    def _ended(self) -> bool:
        """Whether the core has ended the lane, performed or not: then nothing more may land."""
        return self._runner.state.lane.end is not None

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
            self._redo(emit)
            return
        self._tell(
            m.Missing(emit.seq) if rows is None else self._runner.delivered(emit, Frontier())
        )

    def _redo(self, *behind: m.Emit) -> None:
        """Emit everything that is on its way again, and what is behind it, and wait for each.

        A producer that failed takes with it all that it held, begun before the failure or after.
        """
        again = [*(emit for emit, _, _ in self._sending), *behind]
        self._sending.clear()
        for emit in again:
            if self._ended:
                return
            self._tell(self._runner.perform(emit))

    def _tell(self, answer: m.Event | None) -> None:
        if isinstance(answer, m.Delivered | m.Missing):
            self._bytes.pop(answer.seq, None)
        if answer is not None:
            self._runner.tell(answer)


class Road:
    """The way out that the lanes of a stage share: one producer."""

    def __init__(self) -> None:
        #: Whether something waits until nothing is on its way.
        self.crowded = False

    def begin(self, outboxes: Sequence[Outbox]) -> bool:
        """Begin what has room; False if that was nothing.

        SUBTLE: begun beside as many requests as librdkafka lets be on their way, records make a
        thread of its spin until one is answered: on a core that the broker may need for that. So
        what does not fit beside the others waits until they have landed, and goes with all that is
        ready by then. As soon as one waits nothing is begun before it: lanes that always fit would
        keep the road from ever being empty, and what waits from ever being sent.
        """
        under_way = sum(outbox.requests for outbox in outboxes)
        alone = under_way == 0
        if self.crowded and not alone:
            return False
        moved = False
        for outbox in outboxes:
            before = outbox.requests
            moved |= outbox.begin(None if alone else REQUESTS_MAX - under_way)
            under_way += outbox.requests - before
        self.crowded = any(outbox.waits for outbox in outboxes)
        return moved
