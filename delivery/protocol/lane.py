"""One lane in one process: the state machine that makes every input take effect exactly once.

    read → drop below frontier → drop duplicates → user code → store outputs + id segment
         → SEAL (one compare-and-append) → emit from the stored rows → acknowledge → collect

The law: a seal is the only commit point. BEFORE it everything an attempt wrote is invisible and
disposable. AFTER it everything it promised is redone from what was stored, and no other execution
of user code for those inputs can ever count.

What it is: `handle(lane, event) -> (lane, instructions)`, a pure function on frozen values, and
the two tables that say which event may come when.
What it must not know: how an instruction is performed, what is in a bundle, which host runs it.

Invariants (the explorer checks them at every step of every plan):
    At most one append is in flight, for the oldest pending bundle, compared with the head that
    this process knows to be won.
    Pending bundles are contiguous from the head's frontier; when one is lost all behind it are
    thrown away, and their rows begin again under new tickets and attempts.
    `owed` is contiguous from the acknowledgement to the head: what is sealed and not yet known to
    be delivered. Only a prefix of it that this process flushed itself is acknowledged.
    The head, its frontier and the acknowledgement never move backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dedup.frozen import replace
from dedup.model import Ack, Head, HeadRef, LaneRow, advance
from delivery.protocol import messages as m
from delivery.protocol.state import (
    STORY_LENGTH,
    Bundle,
    IllegalTransitionError,
    Lane,
    Owed,
    Phase,
    Step,
    refusal,
    span_of,
    unsealed,
)

Result = tuple[Lane, list[m.Instruction]]


def handle(lane: Lane, event: m.Event) -> Result:
    """Return the lane after an event, and what must be done next, in this order."""
    lane = replace(lane, story=(*lane.story[-STORY_LENGTH:], event))
    handler = _BY_PHASE.get((lane.phase, type(event)))
    if handler is None:
        raise IllegalTransitionError(lane, event)
    return handler(lane, event)


# Beginning ------------------------------------------------------------------------------------


def _opened(lane: Lane, event: m.Opened) -> Result:
    return replace(lane, phase=Phase.LOADING, start=event.start), [m.Load()]


def _loaded(lane: Lane, event: m.Loaded) -> Result:
    if event.row is None and lane.head is not None:
        return _close(lane, m.End.CORRUPT, "the lane's row is gone from the catalog")
    refused = refusal(lane.start, event)
    if refused:
        return _close(lane, m.End.REFUSED, refused)
    if event.row is None:
        return _begin(lane, event)
    return _adopt(lane, event.row) if lane.head is None else _readopt(lane, event.row)


def _begin(lane: Lane, event: m.Loaded) -> Result:
    """Append the starting frontier of a lane that never was."""
    if lane.unknown > lane.limits.unknown_max:
        return _close(lane, m.End.INDETERMINATE, "the lane could not be created")
    return replace(lane, phase=Phase.STARTING), [m.Start(lane.start, event.topics)]


def _started(lane: Lane, event: m.Started) -> Result:
    # Nothing hangs on who won: seq 0 has no outputs, and whoever reads the row goes on from it.
    unknown = lane.unknown + (event.outcome is m.Outcome.UNKNOWN)
    return replace(lane, phase=Phase.LOADING, unknown=unknown), [m.Load()]


def _adopt(lane: Lane, row: LaneRow) -> Result:
    """Take over from whoever was before: owe everything sealed above what is settled."""
    lane = replace(lane, phase=Phase.OPEN, head=row.head, ack=row.ack, unknown=0)
    lane, emissions = _owe(lane, row.settled, row.head.ref.seq)
    return _proceed(lane, [m.Release(row.head.frontier), *emissions])


def _readopt(lane: Lane, row: LaneRow) -> Result:
    """Follow the winner: begin again from its frontier with the rows that are still held."""
    if row.head.ref.incarnation != lane.known.ref.incarnation:
        return _close(lane, m.End.FENCED, "the lane has a new incarnation")
    if row.head.ref.seq < lane.known.ref.seq or not row.head.frontier.covers(lane.known.frontier):
        return _close(lane, m.End.CORRUPT, "the head moved backwards inside its incarnation")
    last = lane.known.ref.seq
    lane = replace(lane, phase=Phase.OPEN, head=row.head, unknown=0)
    lane = _settle(lane, row)
    lane, emissions = _owe(lane, max(last, row.settled), row.head.ref.seq)
    lane = replace(lane, held=tuple(unsealed(lane.held, row.head.frontier)))
    return _proceed(lane, [m.Release(row.head.frontier), *emissions])


# Bundles --------------------------------------------------------------------------------------


def _polled(lane: Lane, event: m.Polled) -> Result:
    span = span_of(lane.planned, lane.known.topics, event)
    if isinstance(span, str):
        return _close(lane, m.End.REFUSED, span)
    if span.start == span.end:
        return lane, []  # all of it is sealed or under way
    return _proceed(replace(lane, held=(*lane.held, span)), [])


def _bundle(lane: Lane, event: Any) -> Result:  # one handler, its events by the table
    """Pass an event about a bundle on, unless its ticket was discarded in between."""
    for index, bundle in enumerate(lane.pending):
        if bundle.ticket == event.ticket:
            handler = _BY_STEP.get((bundle.step, type(event)))
            if handler is None:
                raise IllegalTransitionError(lane, event)
            return handler(lane, index, event)
    return lane, []


def _classified(lane: Lane, index: int, event: m.Classified) -> Result:
    assert index == len(lane.pending) - 1, "bundles are classified one after the other"
    before: Head | Bundle = lane.pending[index - 1] if index else lane.known
    assert before.ref is not None, "the bundle before was classified"
    bundle = replace(
        lane.pending[index],
        step=Step.RUNNING,
        ref=HeadRef(before.ref.incarnation, before.ref.seq + 1, event.attempt),
        # Time only orders: strictly increasing per lane, also when the clock stands or jumps.
        minted_at_ms=max(event.now_ms, before.minted_at_ms + 1),
        # Never ahead of the clock, never falling.
        lane_time_ms=max(before.lane_time_ms, min(event.source_time_ms, event.now_ms)),
    )
    return _put(lane, index, bundle), [m.Run(bundle.ticket)]


def _ran(lane: Lane, index: int, event: m.Ran) -> Result:
    bundle = lane.pending[index]
    assert bundle.ref is not None, "a bundle that ran was classified"
    lane = _put(lane, index, replace(bundle, step=Step.STORING))
    store = m.Store(
        event.ticket,
        bundle.ref,
        bundle.span.start,
        bundle.span.end,
        bundle.minted_at_ms,
        bundle.lane_time_ms,
    )
    return _proceed(lane, [store])


def _stored(lane: Lane, index: int, event: m.Stored) -> Result:
    bundle = lane.pending[index]
    assert event.seal.ref == bundle.ref, "a seal is of the attempt that stored"
    assert (event.seal.start, event.seal.end) == bundle.span, "a seal covers its span"
    lane = _put(lane, index, replace(bundle, step=Step.STORED, seal=event.seal))
    return _proceed(lane, [])


def _appended(lane: Lane, index: int, event: m.Appended) -> Result:
    bundle = lane.pending[index]
    if event.outcome is m.Outcome.WON:
        return _won(lane)
    # SUBTLE: "refused" is looked into like "unknown". A driver that repeats a request whose reply
    # was lost is refused by its own first one, and an attempt must not be given up that is sealed.
    unknown = lane.unknown + (event.outcome is m.Outcome.UNKNOWN)
    if unknown > lane.limits.unknown_max:
        return _close(lane, m.End.INDETERMINATE, "an append stayed unanswered; it may have won")
    assert bundle.ref is not None, "an appended bundle was classified"
    lane = _put(lane, index, replace(bundle, step=Step.RESOLVING))
    resolve = m.Resolve(bundle.ticket, bundle.ref.incarnation, bundle.ref.seq)
    return replace(lane, unknown=unknown), [resolve]


def _resolved(lane: Lane, index: int, event: m.Resolved) -> Result:
    """Decide an unknown append from the head, read first, and the entry, read after it."""
    bundle, row = lane.pending[index], event.row
    assert bundle.ref is not None, "an appended bundle was classified"
    if row is None or row.head.ref.incarnation != bundle.ref.incarnation:
        return _close(lane, m.End.FENCED, "the lane has a new incarnation")
    if event.entry == bundle.ref.attempt:
        return _won(lane)
    if row.head.ref.seq >= bundle.ref.seq:
        return _lost(lane)
    if row.head.ref != lane.known.ref:
        return _close(lane, m.End.CORRUPT, "the head moved backwards inside its incarnation")
    # Absent does not mean failed: it may still be on its way, so the SAME attempt goes again.
    lane = _put(lane, index, replace(bundle, step=Step.STORED))
    return _proceed(lane, [])


def _won(lane: Lane) -> Result:
    """The oldest pending bundle is sealed: from here on everything is redone from what is stored."""
    bundle = lane.pending[0]
    assert bundle.seal is not None, "a sealed bundle was stored"
    head = advance(lane.known, bundle.seal)
    lane = replace(lane, head=head, pending=lane.pending[1:], losses=0, unknown=0)
    lane, emissions = _owe(lane, head.ref.seq - 1, head.ref.seq, bundle.ticket)
    return _proceed(lane, [m.Release(head.frontier), *emissions])


def _lost(lane: Lane) -> Result:
    """Somebody else sealed this position: give up all that was built on ours, and follow."""
    held = (*(bundle.span for bundle in lane.pending), *lane.held)
    discards: list[m.Instruction] = [m.Discard(bundle.ticket) for bundle in lane.pending]
    lane = replace(
        lane, phase=Phase.RELOADING, pending=(), held=held, losses=lane.losses + 1, unknown=0
    )
    return lane, [*discards, m.Load(lane.losses)]


# Emission and acknowledgement -----------------------------------------------------------------


def _owe(
    lane: Lane, after: int, last: int, ticket: int | None = None
) -> tuple[Lane, list[m.Instruction]]:
    """Owe the seals in (after, last], and emit them in order.

    What was found to be acknowledged meanwhile is owed no more: an append whose answer was late may
    have been emitted and acknowledged by somebody else.
    """
    head, seqs = lane.known, range(max(after, lane.acked.seq) + 1, last + 1)
    lane = replace(lane, owed=(*lane.owed, *(Owed(seq) for seq in seqs)))
    return lane, [m.Emit(seq, head.incarnation_of(seq), ticket) for seq in seqs]


def _delivered(lane: Lane, event: m.Delivered) -> Result:
    owed = tuple(
        replace(debt, delivered=event.offsets) if debt.seq == event.seq else debt
        for debt in lane.owed
    )
    return _proceed(replace(lane, owed=owed), [])


def _missing(lane: Lane, event: m.Missing) -> Result:
    if all(debt.seq != event.seq for debt in lane.owed):
        return lane, []
    return lane, [m.ReadRow(event.seq)]


def _acknowledged(lane: Lane, event: m.Acknowledged) -> Result:
    if event.outcome is not m.Outcome.WON:
        # Lost or unknown, the same: read it again and go on from what is there.
        unknown = lane.unknown + (event.outcome is m.Outcome.UNKNOWN)
        if unknown > lane.limits.unknown_max:
            return _close(lane, m.End.INDETERMINATE, "an acknowledgement stayed unanswered")
        return replace(lane, unknown=unknown), [m.ReadRow()]
    ack = event.ack if event.ack.seq > lane.acked.seq else lane.acked
    owed = tuple(debt for debt in lane.owed if debt.seq > ack.seq)
    return _proceed(replace(lane, ack=ack, acking=None, owed=owed, unknown=0), [])


def _row_read(lane: Lane, event: m.RowRead) -> Result:
    row = event.row
    if row is None or row.head.ref.incarnation != lane.known.ref.incarnation:
        return _close(lane, m.End.FENCED, "the lane has a new incarnation")
    if event.missing is not None and event.missing > row.settled:
        return _close(
            lane, m.End.CORRUPT, f"seal {event.missing} is not settled, but its outputs are gone"
        )
    lane = _settle(lane, row)
    if event.missing is None:
        lane = replace(lane, acking=None)
    return _proceed(lane, [])


def _settle(lane: Lane, row: LaneRow) -> Lane:
    """Take over what others acknowledged or collected."""
    ack = row.ack if row.ack.seq >= lane.acked.seq else lane.acked
    return replace(lane, ack=ack, owed=tuple(debt for debt in lane.owed if debt.seq > row.settled))


# Going on -------------------------------------------------------------------------------------


def _proceed(lane: Lane, first: list[m.Instruction]) -> Result:
    """Add whatever else can be done now. Each rule stands alone and adds at most one thing."""
    instructions = list(first)
    if lane.phase is not Phase.OPEN:
        return lane, instructions
    for rule in (_classify_next, _append_oldest, _acknowledge_prefix):
        lane, more = rule(lane)
        instructions += more
    if lane.goal is not None and lane.idle and lane.known.frontier.covers(lane.goal):
        lane, more = _close(lane, m.End.DONE, "everything is sealed and acknowledged")
        instructions += more
    return lane, instructions


def _classify_next(lane: Lane) -> Result:
    busy = any(bundle.step in (Step.CLASSIFYING, Step.RUNNING) for bundle in lane.pending)
    full = len(lane.pending) >= lane.limits.pending_max or len(lane.owed) >= lane.limits.owed_max
    if busy or full or not lane.held:
        return lane, []
    span = lane.held[0]
    bundle = Bundle(ticket=lane.tickets, span=span)
    classify = m.Classify(
        bundle.ticket,
        span.start,
        span.end,
        lane.known,
        tuple(other.ticket for other in lane.pending),
    )
    lane = replace(
        lane, held=lane.held[1:], pending=(*lane.pending, bundle), tickets=lane.tickets + 1
    )
    return lane, [classify]


def _append_oldest(lane: Lane) -> Result:
    """Append the oldest pending bundle, and no other: *k+1* waits until *k* is won."""
    if not lane.pending or lane.pending[0].step is not Step.STORED:
        return lane, []
    bundle = lane.pending[0]
    assert bundle.seal is not None, "a stored bundle has its seal"
    append = m.Append(bundle.ticket, lane.known.ref, advance(lane.known, bundle.seal), bundle.seal)
    return _put(lane, 0, replace(bundle, step=Step.APPENDING)), [append]


def _acknowledge_prefix(lane: Lane) -> Result:
    """Acknowledge the contiguous range this process flushed, beginning at the value it read."""
    if lane.acking is not None:
        return lane, []
    ack = lane.acked
    for debt in lane.owed:
        if debt.delivered is None:
            break
        ack = Ack(ack.incarnation, debt.seq, ack.delivered.merged(debt.delivered))
    if ack.seq == lane.acked.seq:
        return lane, []
    return replace(lane, acking=ack), [m.Acknowledge(lane.acked, ack)]


def _close(lane: Lane, end: m.End, why: str) -> Result:
    """Stop. What is pending is disposable, what is owed is redone by whoever comes next."""
    lane = replace(lane, phase=Phase.CLOSED, end=end, held=(), pending=(), owed=(), acking=None)
    return lane, [m.Stop(end, why)]


def _put(lane: Lane, index: int, bundle: Bundle) -> Lane:
    pending = (*lane.pending[:index], bundle, *lane.pending[index + 1 :])
    return replace(lane, pending=pending)


# The tables -----------------------------------------------------------------------------------

_Handler = Callable[[Lane, Any], Result]

_WHILE_OPEN: dict[type, _Handler] = {
    m.Polled: _polled,
    m.Classified: _bundle,
    m.Ran: _bundle,
    m.Stored: _bundle,
    m.Appended: _bundle,
    m.Resolved: _bundle,
    m.Delivered: _delivered,
    m.Missing: _missing,
    m.Acknowledged: _acknowledged,
    m.RowRead: _row_read,
}
_ALWAYS: dict[type, _Handler] = {
    m.Ending: lambda lane, event: _proceed(replace(lane, goal=event.goal), []),
    m.Broke: lambda lane, event: _close(lane, m.End.BROKEN, event.why),
}

#: Which event may come in which phase. Whatever is not here is illegal.
_BY_PHASE: dict[tuple[Phase, type], _Handler] = {
    (Phase.NEW, m.Opened): _opened,
    (Phase.LOADING, m.Loaded): _loaded,
    (Phase.RELOADING, m.Loaded): _loaded,
    (Phase.STARTING, m.Started): _started,
    **{(Phase.OPEN, kind): _WHILE_OPEN[kind] for kind in _WHILE_OPEN},
    **{(Phase.RELOADING, kind): _WHILE_OPEN[kind] for kind in _WHILE_OPEN},
    **{(phase, kind): _ALWAYS[kind] for phase in set(Phase) - {Phase.CLOSED} for kind in _ALWAYS},
    # What comes late to a lane that has stopped changes nothing.
    **{(Phase.CLOSED, kind): lambda lane, _: (lane, []) for kind in m.Event.__args__[1:]},
}

#: Which event moves a bundle on from which step.
_BY_STEP: dict[tuple[Step, type], Callable[[Lane, int, Any], Result]] = {
    (Step.CLASSIFYING, m.Classified): _classified,
    (Step.RUNNING, m.Ran): _ran,
    (Step.STORING, m.Stored): _stored,
    (Step.APPENDING, m.Appended): _appended,
    (Step.RESOLVING, m.Resolved): _resolved,
}
