"""Worlds in which it matters how a record is named, and for how long its name is held."""

from __future__ import annotations

from dataclasses import replace

from dedup.formats.segment import BUCKET_MS
from dedup.model import Incarnation, RecordId
from delivery.checker import Kind
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark
from delivery.records import Record
from delivery.testing.faulty import Fault
from delivery.testing.scenario import NOW_MS, Scenario
from tests.crash.parts import ALONE, RECEIVER, SENDER, pass_on, written


def _copied(record_id: bytes, *, kept: bool) -> bytes:
    """A header of ours that somebody copied onto a record of their own."""
    incarnation = Incarnation(b"S0:1".ljust(16, b"."))
    mark = Mark("w/s/S", incarnation, 1, NOW_MS, kept=kept)
    return encode_header(Header(RecordId(record_id), mark))


#: Two different records carry the same copied header, two others one that says its id is kept.
COPIED = Scenario(
    lanes=(replace(SENDER, cuts=((1,), ()), senders=("w/s/S",)),),
    topics=(("in", 1), ("mid", 1)),
    records=tuple(
        (
            "in",
            0,
            Record(
                value=name.encode(),
                headers=(("id", name.encode()), (NAME, _copied(b"x" * 16, kept=name in "cd"))),
            ),
        )
        for name in "abcd"
    ),
    faults=1,
    kinds=frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER}),
    limits=ALONE,
)

#: Re-keying: a publisher repeats a record in another partition, and the topic behind it is keyed.
REKEYED = Scenario(
    lanes=(
        replace(SENDER, name="w/k/K", call=pass_on, keep_ids=True, cuts=((1,),)),
        replace(SENDER, name="w/k/L", partitions=(1,), call=pass_on, keep_ids=True, cuts=((1,),)),
        replace(RECEIVER, senders=("w/k/K", "w/k/L")),
    ),
    topics=(("in", 2), ("mid", 1), ("out", 1)),
    records=written("a") + written("a", partition=1),
    limits=ALONE,
)

_LATE = NOW_MS - 20 * BUCKET_MS
#: A window: the publisher's clock is wrong, lane time moves on, and the record comes again.
WINDOW = Scenario(
    lanes=(replace(SENDER, cuts=((1, 2, 3, 4),)),),
    topics=(("in", 1), ("mid", 1)),
    records=(
        written("b", at_ms=_LATE)
        + written("a", at_ms=_LATE - 15 * BUCKET_MS)
        + written("c", at_ms=_LATE + 3 * BUCKET_MS)
        + written("a", at_ms=_LATE + 3 * BUCKET_MS)
    ),
    window_ms=10 * BUCKET_MS,
    faults=1,
    limits=ALONE,
)


def _made(name: str, time_ms: int, stamped_ms: int = 0) -> tuple[str, int, Record]:
    """A record that says when it was made, and when Kafka says it came."""
    headers = (("id", name.encode()), ("at", str(time_ms).encode()))
    return ("in", 0, Record(value=name.encode(), headers=headers, timestamp_ms=stamped_ms))


def _said(record: Record) -> int:
    return int(record.header("at") or b"")


#: The same window where records say when they were made, and are trusted: lane time is measured on
#: that alone, and the record that comes again after its id was let go is put aside.
TIMED = Scenario(
    lanes=(replace(SENDER, cuts=((1, 2, 3, 4),), time_from=_said, dead_letters="dead"),),
    topics=(("in", 1), ("mid", 1), ("dead", 1)),
    records=(
        _made("a", _LATE),
        _made("b", _LATE + BUCKET_MS, _LATE + 15 * BUCKET_MS),
        _made("c", _LATE + BUCKET_MS),
        _made("d", _LATE + 12 * BUCKET_MS),
        _made("a", _LATE),
    ),
    window_ms=10 * BUCKET_MS,
    faults=1,
    limits=ALONE,
)

#: A record says a time ahead of the clock, whose next process has a later one: lane time passes the
#: window of the first clock, and not that of the record.
TIMED_AHEAD = replace(
    TIMED,
    lanes=(replace(TIMED.lanes[0], cuts=((1, 2),), clocks_ms=(NOW_MS, NOW_MS + 20 * BUCKET_MS)),),
    records=(
        _made("a", NOW_MS + 5 * BUCKET_MS),
        _made("b", NOW_MS + 12 * BUCKET_MS),
        _made("a", NOW_MS + 5 * BUCKET_MS),
    ),
)

#: A collector and a compactor at any moment: what was let go is gone from the catalog as well.
TIMED_COLLECTED = replace(
    TIMED,
    faults=0,
    collectors=("w/s/S",),
    compactors=("w/s/S",),
    # Where the entry of the first is gone, the checker cannot tell a late repeat from a double effect.
    pardoned=frozenset({("w/s/S", Kind.DECIDED_TWICE)}),
)

_BEHIND = NOW_MS - 30 * BUCKET_MS
#: Re-keying with a window: a publisher's retry waits in a partition that lags, everything stands
#: still for longer than the window, and what was read before the retry is sent behind that.
REKEYED_LAG = replace(
    REKEYED,
    records=(
        written("a", at_ms=_BEHIND)
        + written("b", partition=1, at_ms=_BEHIND - BUCKET_MS)
        + written("a", partition=1, at_ms=_BEHIND + BUCKET_MS)
    ),
    sent_at_ms=(NOW_MS - 20 * BUCKET_MS, NOW_MS),
    window_ms=10 * BUCKET_MS,
)

#: The partition without the retry goes on, by more than the window.
REKEYED_AHEAD = replace(
    REKEYED_LAG,
    records=(
        written("a", at_ms=_BEHIND)
        + written("b", at_ms=_BEHIND + 15 * BUCKET_MS)
        + written("a", partition=1, at_ms=_BEHIND + BUCKET_MS)
    ),
    sent_at_ms=(),
)
