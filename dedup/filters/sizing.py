"""How large a filter must be, and when it is too full.

What it is: the arithmetic of the blocked layout, the policy of growth, the alarm.
What it must not know: bits, files.

Invariants:
    `strangers(load)` grows with the load and is exact for random ids; no constant in it was fitted.
"""

from __future__ import annotations

from functools import cache
from math import ceil, comb, exp

from dedup.errors import InvalidUsage
from dedup.filters.port import Filter

#: A line is what one look-up touches: 512 bits, the cache line of every machine we know.
LINE_WORDS = 8
WORD_BITS = 64
LINE_BITS = LINE_WORDS * WORD_BITS
#: Bits an id sets in each of its two words.
PATTERN_BITS = 4
#: 4-of-64 patterns an id chooses from, twice; 32 KiB, so that they stay in the first-level cache.
PATTERNS = 4096
#: Beyond, a filter costs more than looking everything up, or more memory than it can save.
RATE_MIN, RATE_MAX = 1e-6, 0.1
#: 2 GiB, some 10**9 ids at 0.1%: 32 bits of an id choose the word, and more lines would leave the
#: words uneven. Buckets are far smaller.
LINES_MAX = 1 << 25
#: What a filter that overflows is made larger by. Each id is added anew 1/(factor-1) = 2 times on
#: average over a filter's life; a third of the largest filter is empty at worst.
GROWTH_FACTOR = 1.5
#: A filter is saturated when strangers get a True this many times as often as was asked.
SATURATED_TIMES = 2.0
#: So much of one line is never set by random ids at any rate up to RATE_MAX.
CROWDED_LINE_SHARE = 0.9

#: Halvings until a load is known to the last bit of a double.
_HALVINGS = 60


def checked(capacity: int, rate: float) -> None:
    """Refuse what no engine can size.

    Raises:
        InvalidUsage: the capacity or the rate is out of bounds.
    """
    if capacity < 1:
        raise InvalidUsage(
            "size a filter", f"capacity={capacity}", "a filter holds at least one id; give more"
        )
    if not RATE_MIN <= rate <= RATE_MAX:
        raise InvalidUsage(
            "size a filter",
            f"rate={rate}",
            f"nothing was created: choose a rate from {RATE_MIN} to {RATE_MAX}",
        )


def strangers(load: float) -> float:
    """Return the share of false positives when a line holds `load` ids on average.

    An id touches one even and one odd word of its line, each one of four, and sets 4 bits there. It
    leaves j > 0 given bits of a pattern in a given word alone with probability
    3/4 + 1/4 * C(64-j,4)/C(64,4) * (1 - 1/PATTERNS), where the last factor is for the very pattern
    coming again. Inclusion and exclusion over the 4 + 4 bits of a stranger, and the Poisson number
    of ids in its line, give a sum of exponentials.
    """
    words = LINE_WORDS // 2
    other = 1 - 1 / PATTERNS
    alone = [1.0] + [
        (words - 1 + other * comb(WORD_BITS - j, PATTERN_BITS) / comb(WORD_BITS, PATTERN_BITS))
        / words
        for j in range(1, PATTERN_BITS + 1)
    ]
    signed = [float((-1) ** j * comb(PATTERN_BITS, j)) for j in range(PATTERN_BITS + 1)]
    return sum(
        signed[j] * signed[k] * exp(-load * (1 - alone[j] * alone[k]))
        for j in range(PATTERN_BITS + 1)
        for k in range(PATTERN_BITS + 1)
    )


@cache
def load(rate: float) -> float:
    """Return how many ids a line may hold on average so that strangers get `rate`."""
    low, high = 0.0, float(LINE_BITS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if strangers(middle) < rate else (low, middle)
    return low


def bits_per_id(rate: float) -> float:
    """Return what an id takes in a blocked filter: 17.2 bits at 0.1%."""
    return LINE_BITS / load(rate)


def lines(capacity: int, rate: float) -> int:
    """Return how many lines a blocked filter needs; any number, not only powers of two.

    Raises:
        InvalidUsage: no filter is that large.
    """
    checked(capacity, rate)
    needed = ceil(capacity / load(rate))
    if needed > LINES_MAX:
        raise InvalidUsage(
            "size a filter",
            f"capacity={capacity}",
            f"nothing was created: at a rate of {rate} a filter holds up to "
            f"{int(LINES_MAX * load(rate))} ids; use more lanes or a shorter window",
        )
    return needed


def grown(capacity: int, count: int) -> int:
    """Return the capacity a filter should have to hold `count` ids: its own while they fit."""
    return capacity if count <= capacity else ceil(count * GROWTH_FACTOR)


def saturated(one: Filter) -> bool:
    """Tell whether a filter has become a burden: too full, or crowded by chosen ids.

    Nothing is wrong with its answers; every True costs an exact look-up. Too full: build a larger
    one (`grown`). Crowded: build one with a key. Reads every bit, so ask after a flush, not per
    batch.
    """
    return one.rate() > SATURATED_TIMES * one.target_rate or one.crowded()
