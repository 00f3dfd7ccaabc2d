"""One lane of one stage in this process: rows that wait, and the runner they are offered to.

What it is: `LaneTask`, what stands between a shared consumer and the lane runner: it knows where
reading begins, buffers what comes, cuts it into bundles and says when the source must wait.
What it must not know: who reads, which lanes there are besides, Spark.

Invariants:
    A bundle begins where the one before it ended and ends at a position, not at a row.
    What waits is bounded in rows and bytes: `full` says when the source must be held back.
    A lane that stopped takes nothing any more; why it stopped is `stopped` and `error`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from dedup.catalog.catalog import Catalog
from dedup.filters import Filters
from dedup.local.home import Home
from dedup.local.index import FILTERS, LaneIndex
from dedup.model import Counts, Frontier, Source
from delivery.batch import OFFSET_MAX, Batch, joined
from delivery.host.clock import SystemClock, pause_seconds
from delivery.host.counters import Counters
from delivery.host.outbox import Outbox, Road
from delivery.host.reminding import warn_unnamed
from delivery.host.senders import Senders, Writers
from delivery.host.spec import BUFFER_BYTES_MAX, BUFFER_ROWS_MAX, StageSpec
from delivery.judge import Judge
from delivery.points import At, nowhere
from delivery.ports import Emitter, Reader, Stage
from delivery.protocol import messages as m
from delivery.runner import LaneRunner
from delivery.stage import stage_of

#: How long emissions on their way are waited for at a time, at the end.
FINISH_SECONDS = 0.1
#: A bundle of up to so many rows is one batch, however many polls it came in.
JOINED_ROWS_MAX = 1_000
#: Keys and values of outputs that are taken to fit into their seal, compressed as they are there.
RIDING_BYTES_MAX = 8 * 1024
#: How long an acknowledgement waits for an append to share a commit with, or for more bundles.
ACK_SECONDS = 0.1


class LaneTask:
    """One lane.

    Args:
        spec: its stage.
        source: the partition it reads.
        catalog, home, filters, clock: this process's.
        reader: the source's topics and bounds.
        emitter: where outputs go.
        stage: in place of user code, for a host that has none.
        pool: runs user code beside itself, if the stage asks for it.
        index: the lane's ids, of a host that keeps them from one task to the next.
        senders: who writes what the lane reads; lanes of a process look it up together.
        at: is told each named step.
    """

    def __init__(
        self,
        spec: StageSpec,
        source: Source,
        *,
        catalog: Catalog,
        home: Home | None,
        filters: Filters = FILTERS,
        clock: SystemClock,
        reader: Reader,
        emitter: Emitter,
        stage: Stage | None = None,
        pool: Executor | None = None,
        index: LaneIndex | None = None,
        senders: Senders | None = None,
        at: At = nowhere,
    ) -> None:
        self.name = spec.lane(source)
        self.spec = spec
        self.source = source
        self._counters = Counters()
        senders = senders or Senders(Writers(catalog), source.topic)
        senders.memory.rekeyed |= spec.rekeyed
        self._index = index or LaneIndex(
            catalog, self.name, window_ms=spec.window_ms, home=home, filters=filters, at=at
        )
        #: An index may have served tasks before this one.
        self._before = self._index.counters.copy()
        self._runner = LaneRunner(
            self.name,
            catalog=catalog,
            judge=Judge(
                catalog,
                self._index,
                spec.id_of(),
                senders,
                senders.memory,
                logs=senders.logs,
                payloads=spec.conflicts != "ignore",
                letters=spec.dead_letters is not None,
                repeats=spec.duplicates is not None,
                trust=spec.trust(),
            ),
            reader=reader,
            stage=stage or stage_of(spec.call, spec.code, batch=spec.batch),
            emitter=emitter,
            clock=clock,
            policy=spec.policy,
            limits=spec.limits,
            pool=pool,
            sealed=self._sealed,
            at=at,
        )
        self.outbox = Outbox(self._runner, emitter)
        self._ack: m.Acknowledge | None = None
        self._ack_since = 0.0
        #: Each with its bytes.
        self._waiting: list[tuple[Batch, int]] = []
        #: How many wait for their bundle.
        self.rows = 0
        self._bytes = 0
        self._since: float | None = None
        self._position = 0
        #: When a lost race is followed up.
        self._resumes: float | None = None

    # Beginning and ending ---------------------------------------------------------------------

    def open(self, start: int) -> None:
        """Load the lane, or let it begin at `start` if it never was; emit what is owed."""
        self._runner.tell(m.Opened(Frontier.of([(self.source, start)])))
        self._runner.drain()
        if self.stopped is None:
            self._position = self.planned

    def end_at(self, goal: int) -> None:
        """Let the lane end once everything below `goal` is sealed and acknowledged."""
        self._runner.tell(m.Ending(Frontier.of([(self.source, goal)])))
        self._runner.drain()

    def finish(self) -> None:
        """Do all that can be done about what was offered, and offer nothing more."""
        while True:
            self.hand_over()
            self.outbox.begin()
            if self._runner.step():
                continue
            if self.stopped is not None or not self.unsettled:
                return
            self.outbox.look(FINISH_SECONDS)
            self.tell(self.perform(self.acknowledges(now=True)))

    def close(self) -> None:
        """Leave everything to whoever comes next."""
        self._index.close()

    @property
    def counters(self) -> Counters:
        """What it has done in this process."""
        self._counters.asked(self._index.counters, self._before)
        return self._counters

    @property
    def stopped(self) -> m.Stop | None:
        """How the lane ended in this process; None while it goes on."""
        return self._runner.state.stopped

    @property
    def error(self) -> BaseException | None:
        """What stopped it, if something went wrong."""
        return self._runner.state.error

    @property
    def planned(self) -> int:
        """Where reading begins, or goes on."""
        return self._runner.state.lane.planned.at(self.source) or 0

    @property
    def frontier(self) -> int:
        """The next offset that no seal covers."""
        head = self._runner.state.lane.head
        return (head.frontier.at(self.source) or 0) if head else 0

    @property
    def seq(self) -> int:
        """The seq of the last seal known here."""
        head = self._runner.state.lane.head
        return head.ref.seq if head else -1

    @property
    def idle(self) -> bool:
        """Whether everything read is sealed and acknowledged."""
        return not (self.rows or self.unsettled) and self._runner.state.lane.idle

    def _sealed(self, counts: Counts) -> None:
        self._counters.count(counts)
        warn_unnamed(self.spec, self.name, counts)

    # Rows -------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the source must be held back."""
        return self.rows >= BUFFER_ROWS_MAX or self._bytes >= BUFFER_BYTES_MAX

    def take(self, batch: Batch, position: int) -> None:
        """Take what was read, and the position behind it."""
        if len(batch):
            if self._since is None:
                self._since = time.monotonic()
            size = batch.nbytes
            self._waiting.append((batch, size))
            self.rows += len(batch)
            self._bytes += size
        self._position = max(self._position, position)

    def turn(self, *, linger: float = 0.0) -> bool:
        """Do all that can be done without waiting for an emission; False if that was nothing.

        For a host that gives one lane after the other its turn.

        Args:
            linger: how long rows may wait for more.
        """
        moved = self.prepare(linger=linger)
        appends = self.appends()
        self.tell(self.perform(appends))
        self.hand_over()
        moved |= self.outbox.look()
        # A road remembers who waits for others, and here is nobody else.
        moved |= Road().begin([self.outbox])
        acks = self.acknowledges(now=False)
        self.tell(self.perform(acks))
        return moved or bool(appends or acks)

    # Phases, for a host that runs several lanes together ---------------------------------------

    def prepare(self, *, linger: float = 0.0, beside: bool = False) -> bool:
        """Do what concerns this lane alone, up to its next append; False if nothing was done.

        Args:
            linger: how long rows may wait for more.
            beside: whether the host has whatever waits for the store done beside other lanes.
        """
        runner, moved = self._runner, False
        todo = runner.state.todo
        while True:
            # Beside others, what comes behind a bundle would only stand before its emission.
            alone = not (beside and runner.state.lane.pending)
            if alone and self._hungry and self._due(linger):
                self._offer()
                moved = True
            self.hand_over()
            if not todo or self.appending or (beside and self._waits(todo[0])):
                return moved
            if self._paused():
                return moved
            moved |= runner.step()

    def hand_over(self) -> None:
        """Put aside what may be late.

        SUBTLE: everything may overtake an acknowledgement, because it says only what is durable
        already, and an emission, because it sends only what is sealed. Waiting for company saves
        the one a wait for the disk, the other requests; the next bundle waits for neither.
        """
        todo = self._runner.state.todo
        while todo:
            first = todo[0]
            if isinstance(first, m.Acknowledge):
                self._ack, self._ack_since = first, time.monotonic()
            elif isinstance(first, m.Emit):
                self.outbox.add(first)
            elif isinstance(first, m.Release):
                self._runner.step()
                continue
            else:
                return
            todo.popleft()

    @property
    def appending(self) -> bool:
        """Whether its append is next."""
        todo = self._runner.state.todo
        return bool(todo) and type(todo[0]) is m.Append

    def appends(self) -> list[m.Instruction]:
        """Take the append that is next, if it is."""
        return [self._runner.state.todo.popleft()] if self.appending else []

    def waits(self) -> list[m.Instruction]:
        """Take what is next, if it waits for the store."""
        todo = self._runner.state.todo
        return [todo.popleft()] if todo and self._waits(todo[0]) else []

    def acknowledges(self, *, now: bool) -> list[m.Instruction]:
        """Take the acknowledgement that waits, if it has waited enough, or `now`.

        It says what was delivered when it was asked for. Half of what a lane may owe does not wait
        for company: the lane would have to, for room.
        """
        ack, lane = self._ack, self._runner.state.lane
        if ack is None:
            return []
        pressing = len(lane.owed) >= lane.limits.owed_max // 2
        if not (now or pressing or time.monotonic() - self._ack_since >= ACK_SECONDS):
            return []
        self._ack = None
        return [ack]

    def perform(self, taken: Sequence[m.Instruction]) -> list[m.Event | None]:
        """Perform what was taken; the answers count once the commit they are part of has."""
        return [self._runner.perform(instruction) for instruction in taken]

    def tell(self, answers: Iterable[m.Event | None]) -> None:
        """Go on from answers."""
        for answer in answers:
            if answer is not None:
                self._runner.tell(answer)

    @property
    def unsettled(self) -> bool:
        """Whether something is on its way, or waits for company."""
        return bool(self.outbox) or self._ack is not None

    def _waits(self, instruction: m.Instruction) -> bool:
        """Tell whether performing it waits for the store; what rides in a seal need not be stored."""
        if isinstance(instruction, m.Store):
            work = self._runner.state.work.get(instruction.ticket)
            return work is not None and work.rows.nbytes > RIDING_BYTES_MAX
        return isinstance(instruction, m.Append | m.Resolve | m.ReadRow)

    def _paused(self) -> bool:
        """Tell whether the lane lost a race and lets the winner get on.

        The runner's clock would stand still for that, and with it every other lane of the process,
        the ones included that this process is winning.
        """
        todo = self._runner.state.todo
        if not todo or not isinstance(todo[0], m.Load) or not todo[0].losses:
            return False
        if self._resumes is None:
            self._counters.lost += 1
            self._resumes = time.monotonic() + pause_seconds(todo[0].losses)
        if time.monotonic() < self._resumes:
            return True
        self._resumes = None
        todo[0] = m.Load()
        return False

    @property
    def _hungry(self) -> bool:
        hungry = self.stopped is None and self._runner.state.lane.hungry
        return hungry and not self.outbox.full

    def _due(self, linger: float) -> bool:
        if self._position <= self.planned:
            # Somebody else sealed all of it meanwhile.
            self._waiting, self.rows, self._bytes, self._since = [], 0, 0, None
            return False
        if self.rows >= self.spec.bundle_rows or self._bytes >= self.spec.bundle_bytes:
            return True
        return self._since is None or time.monotonic() - self._since >= linger

    def _offer(self) -> None:
        """Cut a bundle off the rows that wait."""
        rows = size = 0
        taken: list[Batch] = []
        end = self._position
        while self._waiting:
            batch, weight = self._waiting[0]
            if taken and size + weight > self.spec.bundle_bytes:
                end = int(batch.offsets[0])
                break
            room = self.spec.bundle_rows - rows
            if room < len(batch):
                end = int(batch.offsets[room])
                part, rest = batch.cut(0, end), batch.cut(end, OFFSET_MAX)
                if room:
                    taken.append(part)
                self._waiting[0] = (rest, weight - part.nbytes)
                rows, size = rows + room, size + part.nbytes
                break
            taken.append(batch)
            del self._waiting[0]
            rows, size = rows + len(batch), size + weight
        self.rows -= rows
        self._bytes -= size
        self._since = time.monotonic() if self._waiting else None
        self._counters.bytes_read += size
        start = min(self.planned, end)
        polled = m.Polled(Frontier.of([(self.source, start)]), Frontier.of([(self.source, end)]))
        # Few rows in many batches cost more for the batches than for the rows.
        few = len(taken) > 1 and rows <= JOINED_ROWS_MAX
        self._runner.offer(polled, [joined(taken)] if few else taken)
