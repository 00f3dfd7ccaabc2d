"""What measured figures say about sizes that were not measured: slopes, and where a curve bends.

What it is: `beyond`, a straight line through the last two points, and `bends`, how steep a curve is
from each point to the next.
What it must not know: what the figures are of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

#: Ids that are extrapolated to.
BILLIONS = 10_000_000_000


def beyond(
    sizes: Sequence[float], figures: Sequence[float], size: float, *, logarithmic: bool = False
) -> float:
    """Return a figure at a size beyond the measured ones, on the line through the last two.

    Args:
        sizes: the measured ones, rising.
        figures: at each of them.
        size: that is asked for.
        logarithmic: whether the figure grows with each tenfold rather than with each one more.

    A figure that fell is taken to stay where it is: nothing gets better by being larger for ever.
    """
    scale = math.log10 if logarithmic else float
    (first, last), (low, high) = map(scale, sizes[-2:]), figures[-2:]
    slope = (high - low) / (last - first)
    return high + max(slope, 0.0) * (scale(size) - last)


def bends(
    names: Sequence[str], sizes: Sequence[float], figures: Sequence[float]
) -> Mapping[str, float]:
    """Return the exponent between each size and the next: 0 is flat, 1 is in proportion."""
    return {
        f"{names[at]} to {names[at + 1]}": math.log(figures[at + 1] / figures[at])
        / math.log(sizes[at + 1] / sizes[at])
        for at in range(len(sizes) - 1)
    }
