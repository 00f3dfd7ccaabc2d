"""Worlds in which it matters how a record is named, and for how long its name is held."""

from __future__ import annotations

from dataclasses import replace

from dedup.formats.segment import BUCKET_MS
from dedup.model import Incarnation, RecordId
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark
from delivery.records import Record
from delivery.testing.faulty import Fault
from delivery.testing.process import NOW_MS
from delivery.testing.scenario import Scenario
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
