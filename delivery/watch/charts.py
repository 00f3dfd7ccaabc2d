"""Charts as inline SVG, drawn without anything from outside.

What it is: `lines`, `stacks` and `bars`, each a whole `<figure>`.
What it must not know: what is charted.

Invariants:
    Colours are classes, so that a page decides about light and dark.
    Every chart says in words what it shows, for whoever does not see it, and every mark says its
    value when it is pointed at.
    A value that is not a number is a gap, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import ceil, isnan, log10

__all__ = ["Axis", "bars", "figure", "lines", "short", "stacks"]

#: The drawing's own units; a phone shows them about one to one.
WIDTH, HEIGHT = 360, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 6, 8, 20
_ACROSS, _DOWN = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
#: Lines across, without the one at the bottom.
_STEPS = 3
#: Characters of a label beside a bar.
_LABEL_MAX = 24
#: How far a bar that lies is below the one before it.
_ROW = 20

Series = Sequence[tuple[str, Sequence[float]]]
Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of time in equal slices, and moments on it that are marked, with what they were."""

    since_ms: float
    until_ms: float
    slices: int
    marks: Sequence[tuple[float, str]] = ()

    def moment(self, number: float) -> str:
        """Return when a slice begins, as exactly as the axis is long."""
        span = self.until_ms - self.since_ms
        at = self.since_ms + span * number / self.slices
        form = "%b %d %H:%M" if span > 86_400_000 else "%H:%M:%S" if span < 3_600_000 else "%H:%M"  # noqa: PLR2004  a day, an hour
        return datetime.fromtimestamp(at / 1000, UTC).strftime(form)

    def marked(self) -> list[tuple[float, str]]:
        """Return the marks that are on it, each with how far along that is, from 0 to 1."""
        span = self.until_ms - self.since_ms
        shares = [((at - self.since_ms) / span, what) for at, what in self.marks]
        return [(share, what) for share, what in shares if 0 <= share <= 1]


def short(value: float) -> str:
    """Return a number in few characters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def lines(title: str, said: str, axis: Axis, series: Series, words: Words = short) -> str:
    """Return a chart of lines over time."""
    top = _top(series)
    body = [_grid(top, words), _times(axis)]
    # The first series is drawn last, so that it is seen where several are equal.
    for number, (_, values) in reversed(list(enumerate(series))):
        body += [
            f'<path class="line{spot} c{number}" d="{path}"/>'
            for path, spot in _paths(values, axis.slices, top)
        ]
    body += [_marks(axis), _hovers(axis, series, words)]
    return figure(title, said, _svg(title, said, body), [name for name, _ in series])


def stacks(title: str, said: str, axis: Axis, series: Series, words: Words = short) -> str:
    """Return a chart of bars over time, one part upon the other."""
    sums = [sum(values) for values in zip(*(values for _, values in series), strict=True)]
    # These are counts, and parts of one are none.
    top = max(float(_STEPS), _top([("", sums)]))
    width = _ACROSS / axis.slices
    body = [_grid(top, words), _times(axis)]
    below = [0.0] * axis.slices
    for number, (_, values) in enumerate(series):
        for at, value in enumerate(values):
            if value > 0:
                tall = value / top * _DOWN
                y = HEIGHT - _BOTTOM - (below[at] + value) / top * _DOWN
                x = _LEFT + at * width
                body.append(
                    f'<rect class="bar c{number}" x="{x:.1f}" y="{y:.1f}" '
                    f'width="{max(0.6, width - 0.6):.1f}" height="{tall:.1f}"/>'
                )
                below[at] += value
    body += [_marks(axis), _hovers(axis, series, words)]
    return figure(title, said, _svg(title, said, body), [name for name, _ in series])


def bars(
    title: str,
    said: str,
    values: Sequence[tuple[str, float]],
    words: Words = short,
    limits: Sequence[float] = (),
) -> str:
    """Return a chart of bars that lie, each with its label and its value.

    Args:
        title: what is charted.
        said: what it shows, in words.
        values: labels, and what their bars are as long as.
        words: how a value is said.
        limits: of each bar what it is measured against, a line across it; empty: nothing.
    """
    most = max((*(value for _, value in values), *limits), default=0) or 1
    height = max(_ROW, _ROW * len(values))
    longest = max((len(_cut(label)) for label, _ in values), default=0)
    left = min(170, 14 + 6.4 * longest)
    room = WIDTH - left - 52
    body = []
    for number, (label, value) in enumerate(values):
        y = number * _ROW
        ends = [value / most * room]
        told = f"{label}: {words(value)}"
        if limits:
            ends.append(limits[number] / most * room)
            told += f" of {words(limits[number])}"
        body.append(
            f"<g><title>{escape(told)}</title>"
            f'<text class="label" x="{left - 6:.0f}" y="{y + 14}" text-anchor="end">'
            f"{escape(_cut(label))}</text>"
            f'<rect class="bar c0" x="{left:.0f}" y="{y + 4}" '
            f'width="{max(ends[0], 1 if value else 0):.1f}" height="{_ROW - 8}" rx="2"/>'
            f"{_limit(left + ends[1], y) if limits else ''}"
            f'<text class="label" x="{left + max(ends) + 5:.1f}" y="{y + 14}">{escape(words(value))}</text></g>'
        )
    return figure(title, said, _svg(title, said, body, height), [])


def _limit(x: float, y: float) -> str:
    """Return a line across a bar."""
    return f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1}" y2="{y + _ROW - 1}"/>'


def figure(title: str, said: str, inside: str, legend: Iterable[str]) -> str:
    """Return a card with a title, a drawing, what its colours are, and what it shows."""
    names = "".join(
        f'<li><span class="dot c{number}"></span>{escape(name)}</li>'
        for number, name in enumerate(legend)
    )
    keys = f'<ul class="legend">{names}</ul>' if names else ""
    return f"<figure><h4>{escape(title)}</h4>{inside}{keys}<figcaption>{escape(said)}</figcaption></figure>"


def _svg(title: str, said: str, body: Iterable[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(f"{title}. {said}")}">'
        f"{''.join(body)}</svg>"
    )


def _top(series: Series) -> float:
    """Return a round number that no value is above."""
    most = max((value for _, values in series for value in values if not isnan(value)), default=0)
    if most <= 0:
        return 1.0
    size = 10.0 ** int(log10(most / _STEPS)) if most >= _STEPS else 10.0 ** (ceil(log10(most)) - 2)
    return float(_STEPS * size * _nice(most / _STEPS / size))


def _nice(value: float) -> float:
    """Return the least of the round factors that is not below a value."""
    return next((one for one in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 20, 50) if one >= value), 100)


def _grid(top: float, words: Words) -> str:
    parts = []
    for step in range(_STEPS + 1):
        y = HEIGHT - _BOTTOM - step / _STEPS * _DOWN
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">'
            f"{escape(words(top * step / _STEPS))}</text>"
        )
    return "".join(parts)


def _times(axis: Axis) -> str:
    places = ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    return "".join(
        f'<text class="tick" x="{_LEFT + share * _ACROSS:.0f}" y="{HEIGHT - 5}" '
        f'text-anchor="{anchor}">{axis.moment(share * axis.slices)}</text>'
        for share, anchor in places
    )


def _marks(axis: Axis) -> str:
    """Return a line down the chart for every marked moment that is on it."""
    places = [_LEFT + share * _ACROSS for share, _ in axis.marked()]
    return "".join(
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        for x in places
    )


def _paths(values: Sequence[float], slices: int, top: float) -> list[tuple[str, str]]:
    """Return the stretches of a line between its gaps, and what a stretch of one point is."""
    found: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if isnan(value):
            found.append([])
            continue
        x = _LEFT + (at + 0.5) / slices * _ACROSS
        y = HEIGHT - _BOTTOM - min(value, top) / top * _DOWN
        found[-1].append(f"{x:.1f} {y:.1f}")
    # A single point is drawn as the shortest line there is, which a round cap makes a dot.
    return [
        ("M" + "L".join(one if len(one) > 1 else one * 2), "" if len(one) > 1 else " spot")
        for one in found
        if one
    ]


def _hovers(axis: Axis, series: Series, words: Words) -> str:
    """Return, over each slice with a value, a place that says the values when pointed at."""
    width = _ACROSS / axis.slices
    marks = [(min(int(at * axis.slices), axis.slices - 1), what) for at, what in axis.marked()]
    parts = []
    for at in range(axis.slices):
        told = [
            f"{name}: {words(values[at])}"
            for name, values in series
            if not isnan(values[at]) and values[at]
        ]
        told += [what for place, what in marks if place == at]
        if told:
            text = "\n".join([axis.moment(at), *told])
            parts.append(
                f'<rect class="hover" x="{_LEFT + at * width:.1f}" y="{_TOP}" width="{width:.1f}" '
                f'height="{_DOWN}"><title>{escape(text)}</title></rect>'
            )
    return "".join(parts)


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_MAX else f"…{label[1 - _LABEL_MAX :]}"
