"""The lane runner: the one loop that does what the core asks, against ports.

What it is: `perform(instruction) -> event`, the data of the bundles under way, and a loop. Used
unchanged by resident Spark tasks, micro-batch tasks, the driver and plain Python receivers.
What it must not know: which host it is in, which store, source or sink is behind a port; what
follows from what (that is the core's).

Invariants:
    An instruction is performed by one method, and an answer says what happened, not what to do.
    Whatever may have happened is answered UNKNOWN, never guessed.
    Rows are kept until the core releases them; verdicts and outputs until their bundle is
    discarded or delivered. `hungry` bounds both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, TypeVar

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import DeliveryError, Indeterminate, Unavailable
from dedup.model import (
    Attempt,
    Counts,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Seal,
    Slot,
    TopicId,
)
from delivery import points
from delivery.batch import Batch, Emissions, Rows, beyond, within
from delivery.conflicts import ConflictLog
from delivery.execution import execute
from delivery.judge import Judge
from delivery.outputs import content_digest, decode_outputs, emissions
from delivery.ports import Clock, Emitter, Reader, Stage, checked_identity
from delivery.protocol import messages as m
from delivery.protocol.lane import handle
from delivery.protocol.state import Lane, Limits
from delivery.recipe import recipe_in
from delivery.remaking import Remaker
from delivery.repeats import told
from delivery.stage import Policy, StoppedByRecordError
from delivery.storing import store_bundle
from delivery.work import State, Work

_T = TypeVar("_T")

#: Where a process may die before the core is told of what happened.
_TOLD = {
    m.Appended: points.SEAL_REPLY_LOST,
    m.Delivered: points.EMITTED_NOT_ACKNOWLEDGED,
    m.Acknowledged: points.ACKNOWLEDGED,
}

#: Times a call that did not happen is tried again before the task fails.
TRIES_MAX = 5


class LaneRunner:
    """Runs one lane in this process.

    Args:
        name: "pipeline/stage/lane".
        catalog: what has been decided.
        judge: gives verdicts for this lane.
        reader: the source, for its topics and bounds.
        stage: user code.
        emitter: where outputs go.
        clock: time and fresh identities.
        policy: what to do with a record that user code cannot process.
        limits: what bounds the lane.
        pool: runs user code on several records at once; their order stays.
        sealed: is told what became of each bundle that this process sealed and delivered.
        at: is told each place at which a test may let the process die.
    """

    def __init__(
        self,
        name: str,
        *,
        catalog: Catalog,
        judge: Judge,
        reader: Reader,
        stage: Stage,
        emitter: Emitter,
        clock: Clock,
        policy: Policy | None = None,
        limits: Limits | None = None,
        pool: Executor | None = None,
        sealed: Callable[[Counts], None] | None = None,
        at: points.At = points.nowhere,
    ) -> None:
        self.name = name
        self.state = State(lane=Lane(limits=limits or Limits()))
        self._catalog = catalog
        self._judge = judge
        self._reader = reader
        self._stage = stage
        self._emitter = emitter
        self._clock = clock
        self._policy = policy or Policy()
        self._conflicts = ConflictLog(name, stops=self._policy.conflict_stops)
        self._pool = pool
        self._sealed = sealed
        self._at = at
        self._remaker = Remaker(
            name,
            catalog=catalog,
            reader=reader,
            stage=stage,
            policy=self._policy,
            emitter=emitter,
            pool=pool,
        )

    # The loop ---------------------------------------------------------------------------------

    def tell(self, event: m.Event) -> None:
        """Tell the core what happened, and take up what it asks for."""
        point = _TOLD.get(type(event))
        if point is not None:
            self._at(point)
        self.state.lane, instructions = handle(self.state.lane, event)
        self.state.todo.extend(instructions)

    def offer(self, polled: m.Polled, batches: Sequence[Batch]) -> None:
        """Hand over a planned range with its rows, in offset order.

        Rows that were offered before are dropped: they are held, or sealed.
        """
        planned = self.state.lane.planned if self.state.lane.head else Frontier()
        self.state.rows += beyond(planned, batches)
        self.tell(polled)

    def step(self) -> bool:
        """Perform one instruction and tell its answer; False if there is none to perform."""
        if not self.state.todo:
            return False
        answer = self.perform(self.state.todo.popleft())
        if answer is not None:
            self.tell(answer)
        return True

    def drain(self) -> None:
        """Perform everything that can be performed without new rows."""
        while self.step():
            pass

    def perform(self, instruction: m.Instruction) -> m.Event | None:
        """Do what the core asks and return the answer; None where it wants none."""
        try:
            return self._PERFORM[type(instruction)](self, instruction)
        except (DeliveryError, StoppedByRecordError) as error:
            # What could be answered was answered; the rest stops this lane in this process. The
            # first error says why; what fails behind it may only be its echo.
            self.state.error = self.state.error or error
            return m.Broke(str(error))

    # Reading ----------------------------------------------------------------------------------

    def _load(self, load: m.Load) -> m.Event:
        if load.losses:
            self._clock.back_off(load.losses)
        self._judge.forget_senders()
        row = self._again(lambda: self._catalog.load(self.name))
        log = self._again(self._reader.log)
        return m.Loaded(row, log.topics, log.low, log.high, self._emitter.writes)

    def _read_row(self, read: m.ReadRow) -> m.Event:
        return m.RowRead(self._again(lambda: self._catalog.load(self.name)), read.missing)

    def _resolve(self, resolve: m.Resolve) -> m.Event:
        found = self._again(
            lambda: self._catalog.resolve(self.name, resolve.incarnation, resolve.seq)
        )
        return m.Resolved(resolve.ticket, found.row, found.seal.ref.attempt if found.seal else None)

    # Bundles ----------------------------------------------------------------------------------

    def _start(self, start: m.Start) -> m.Event:
        ref = HeadRef(Incarnation(self._fresh()), 0, Attempt(self._fresh()))
        begun_ms = self._clock.now_ms()
        head = Head(
            ref=ref,
            frontier=start.frontier,
            minted_at_ms=begun_ms,
            topics=tuple((name, TopicId(topic)) for name, topic in start.topics),
            writes=self._emitter.writes,
        )
        seal = Seal(
            ref=ref,
            start=start.frontier,
            end=start.frontier,
            minted_at_ms=begun_ms,
            lane_time_ms=0,
            code=self._stage.code,
        )
        return m.Started(_outcome(lambda: self._catalog.create(self.name, head, seal)))

    def _classify(self, classify: m.Classify) -> m.Event | None:
        if classify.ticket <= self.state.dead:
            return None
        batches = within(self.state.rows, classify.start, classify.end)
        self._hand_over_ids(classify.head)
        pending = [self.state.work[ticket].verdicts for ticket in classify.after]
        now_ms = self._clock.now_ms()
        verdicts = self._again(
            lambda: self._judge.judge(batches, classify.end, classify.head, pending, now_ms)
        )
        self._conflicts.tell(verdicts, now_ms)
        attempt = Attempt(self._fresh())
        self.state.work[classify.ticket] = Work(attempt=attempt, verdicts=verdicts)
        # The ids of a delivered bundle were needed until here: this bundle may have been asked for
        # before that one was sealed.
        for ticket in [
            t for t, w in self.state.work.items() if w.delivered and t < classify.ticket
        ]:
            del self.state.work[ticket]
        return m.Classified(classify.ticket, attempt, self._clock.now_ms(), verdicts.time_ms)

    def _run(self, run: m.Run) -> m.Event | None:
        work = self.state.work.get(run.ticket)
        if work is None:
            return None
        edge = self._policy.duplicate_edge
        repeats = work.verdicts.repeats if edge is not None else ()
        work.rows, work.dead_letters = execute(
            work.verdicts.picks,
            stage=self._stage,
            policy=self._policy,
            emitter=self._emitter,
            kept=work.verdicts.raw_ids() if self._policy.keep_ids else None,
            besides=[(told(one, self.name, edge or 0), one.record) for one in repeats],
            pool=self._pool,
        )
        return m.Ran(run.ticket)

    def _store(self, store: m.Store) -> m.Event | None:
        work = self.state.work.get(store.ticket)
        if work is None:
            return None
        seal = self._again(
            partial(
                store_bundle,
                self._catalog,
                self.name,
                store,
                work,
                code=self._stage.code,
                policy=self._policy,
                counts=self._remaker.counts,
                at=self._at,
            )
        )
        work.seal = seal
        # Not where it is appended: a host may hold a lock of the catalog by then, for other lanes too.
        self._at(points.STORED_NOT_SEALED)
        return m.Stored(store.ticket, seal)

    def _append(self, append: m.Append) -> m.Event:
        outcome = _outcome(
            lambda: self._catalog.append(self.name, append.expected, append.head, append.seal)
        )
        return m.Appended(append.ticket, outcome)

    def _discard(self, discard: m.Discard) -> None:
        self.state.dead = max(self.state.dead, discard.ticket)
        work = self.state.work.pop(discard.ticket, None)
        if work is not None and work.origin is not None and work.rows:
            ref = work.origin.ref
            slot = Slot(self.name, ref.incarnation, ref.seq, ref.attempt)
            digest = content_digest(work.rows)
            self._again(lambda: self._catalog.note_loser(slot, digest))

    # After the seal ---------------------------------------------------------------------------

    def _emit(self, emit: m.Emit) -> m.Event:
        rows = self.emissions(emit)
        if rows is None:
            return m.Missing(emit.seq)
        offsets = self._again(lambda: self._emitter.emit(rows)) if rows else Frontier()
        return self.delivered(emit, offsets)

    def emissions(self, emit: m.Emit) -> Emissions | None:
        """Return what is to be emitted, from memory or from the store; None if it is gone."""
        rows = self._own(emit)
        if rows is None:
            rows = self._stored(emit)
        if rows is not None:
            self._at(points.SEALED_NOT_EMITTED)
            if self._at is not points.nowhere and rows:
                self._emitter.emit(rows.cut(0, (len(rows) + 1) // 2))
                self._at(points.MID_EMIT)
        return rows

    def delivered(self, emit: m.Emit, offsets: Frontier) -> m.Delivered:
        """Return the answer to an emission whose records are all durable, and let go of its rows."""
        work = None if emit.ticket is None else self.state.work.get(emit.ticket)
        if work is not None:
            if self._sealed and work.seal:
                self._sealed(work.seal.counts)
            work.rows, work.delivered = Rows(), True
        return m.Delivered(emit.seq, offsets)

    def _own(self, emit: m.Emit) -> Emissions | None:
        """Return the rows this process stored and sealed: the very ones that are in the store."""
        work = None if emit.ticket is None else self.state.work.get(emit.ticket)
        if work is None or work.origin is None or work.delivered:
            return None
        return emissions(work.origin, work.rows)

    def _stored(self, emit: m.Emit) -> Emissions | None:
        """Return the rows of a seal from the store, or made again, whoever sealed it.

        None if they are gone.
        """
        seal = self._again(lambda: self._catalog.seal(self.name, emit.incarnation, emit.seq))
        if seal is None:
            return None
        chunks = self._again(lambda: self._catalog.get(Blob.OUTPUTS, self.name, seal))
        if chunks is None:
            return None
        place = f"outputs of {self.name} seq {emit.seq}"
        recipe = recipe_in(chunks, place)
        if recipe is None:
            return decode_outputs(chunks, place)
        now = self.state.lane.known.ref.incarnation
        return self._again(lambda: self._remaker.remade(seal, recipe, now))

    def _acknowledge(self, acknowledge: m.Acknowledge) -> m.Event:
        outcome = _outcome(
            lambda: self._catalog.acknowledge(self.name, acknowledge.expected, acknowledge.ack)
        )
        return m.Acknowledged(acknowledge.ack, outcome)

    def _release(self, release: m.Release) -> None:
        self.state.rows = beyond(release.frontier, self.state.rows)

    def _stop(self, stop: m.Stop) -> None:
        self.state.stopped = stop
        self.state.rows = ()
        self.state.work.clear()

    # Inside -----------------------------------------------------------------------------------

    def _hand_over_ids(self, head: Head) -> None:
        """Give the index what this process sealed up to `head`, instead of reading it back.

        SUBTLE: whatever is still among our work at or below the head was won by us: what was lost
        is discarded before anything is classified again.
        """
        for _, work in sorted(self.state.work.items()):
            if work.seal is not None and work.seal.ref.seq <= head.ref.seq:
                self._judge.took(work.seal, work.parts)

    def _fresh(self) -> bytes:
        return checked_identity(self._clock.fresh(), self.name)

    def _again(self, call: Callable[[], _T]) -> _T:
        """Repeat a call that changes nothing when it is repeated, while the world is away."""
        for losses in range(1, TRIES_MAX):
            try:
                return call()
            except (Unavailable, Indeterminate):
                self._clock.back_off(losses)
        return call()

    #: What performs which instruction.
    _PERFORM: ClassVar[dict[type, Callable[[LaneRunner, Any], m.Event | None]]] = {
        m.Load: _load,
        m.Start: _start,
        m.Classify: _classify,
        m.Run: _run,
        m.Store: _store,
        m.Append: _append,
        m.Resolve: _resolve,
        m.Discard: _discard,
        m.Emit: _emit,
        m.Acknowledge: _acknowledge,
        m.ReadRow: _read_row,
        m.Release: _release,
        m.Stop: _stop,
    }


def _outcome(call: Callable[[], bool]) -> m.Outcome:
    """Perform a conditional write and say how it ended, as far as can be told."""
    try:
        return m.Outcome.WON if call() else m.Outcome.LOST
    except (Indeterminate, Unavailable):
        # Unavailable says that it did not happen; finding that out again costs one read, and one
        # path for both is one path less to be wrong.
        return m.Outcome.UNKNOWN
