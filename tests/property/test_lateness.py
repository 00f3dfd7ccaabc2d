"""A record with a trusted time takes effect once, whatever is forgotten; one in time is not put aside."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from dedup import compact
from dedup.catalog.memory import MemoryStore
from dedup.collect import Keep, collect
from dedup.formats.segment import BUCKET_MS
from delivery.records import Record
from delivery.stage import Policy
from tests.unit.house import LANE, House

WINDOW_MS = 4 * BUCKET_MS
START = 1_600_000_200_000 // BUCKET_MS * BUCKET_MS
#: Of each record when it was made: most of them within some windows, some at the edge of a bucket,
#: and one that no clock here comes near to.
MADE = [
    *(START + at * BUCKET_MS + edge for at in range(16) for edge in (-1, 0, BUCKET_MS // 2)),
    START + 1000 * BUCKET_MS,
]


class Round(NamedTuple):
    """What happens before a process runs, which records come, and how it cuts them."""

    clock_ms: int
    forgets: bool
    records: list[int]
    cut: int


rounds = st.lists(
    st.builds(
        Round,
        st.integers(0, 20).map(lambda at: START + at * BUCKET_MS),
        st.booleans(),
        st.lists(st.integers(0, len(MADE) - 1), max_size=6),
        st.integers(1, 4),
    ),
    max_size=8,
)


def forget(house: House) -> None:
    """Drop and merge whatever may be."""
    for _ in range(2):
        collect(house.catalog(), LANE, Keep(window_ms=WINDOW_MS))
        compact.compact(house.catalog(), LANE, WINDOW_MS, plain_min=2)


def record(number: int) -> Record:
    headers = (("id", b"%d" % number), ("at", b"%d" % MADE[number]))
    return Record(value=b"%d" % number, headers=headers)


LATE, NEXT = MADE.index(START), MADE.index(START + 5 * BUCKET_MS)
AHEAD = MADE.index(START + 3 * BUCKET_MS)


@given(rounds)
@example([Round(START + 20 * BUCKET_MS, True, one, 1) for one in ([LATE], [NEXT], [LATE], [LATE])])
@example(
    [
        Round(START, False, [AHEAD], 1),
        Round(START + 20 * BUCKET_MS, False, [NEXT], 1),
        Round(START + 20 * BUCKET_MS, True, [AHEAD], 1),
    ]
)
def test_it_takes_effect_once_and_only_what_may_be_a_repeat_is_put_aside(story):
    house = House(MemoryStore())
    house.broker.create("dead")
    seen: set[int] = set()
    newest_ms, due = 0, set()
    for one in story:
        house.now = one.clock_ms
        if one.forgets and seen:
            forget(house)
        for number in one.records:
            # By no bucket and no lane time: the first of its kind, and near the newest so far.
            in_time = MADE[number] + WINDOW_MS > newest_ms and MADE[number] <= one.clock_ms
            if number not in seen and in_time:
                due.add(number)
            seen.add(number)
            newest_ms = max(newest_ms, MADE[number])
            house.broker.append(house.source(), record(number))
        if seen:
            runner = house.runner(
                call=lambda record: record,
                writes=("out", "dead"),
                policy=Policy(dead_letter_edge=1),
                window_ms=WINDOW_MS,
                time_from="header:at",
            )
            house.done(runner, cut=one.cut)
    effects = Counter(int(record.value) for record in house.sent())
    assert max(effects.values(), default=1) == 1
    assert due <= effects.keys()
    assert effects.keys() | {int(letter.value) for letter in house.sent("dead")} == seen
