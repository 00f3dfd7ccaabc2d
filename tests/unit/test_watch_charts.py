"""Charts draw what they are given: gaps, sums, lengths, limits."""

from __future__ import annotations

import numpy as np
import pytest

from delivery.watch.charts import WIDTH, Axis, bars, lines, short, stacks
from tests.unit.watch_kit import drawings, told


@pytest.fixture
def axis() -> Axis:
    return Axis(0, 7_200_000, 4)


def test_a_gap_is_a_gap(axis: Axis) -> None:
    (drawing,) = drawings(lines("t", "s", axis, [("a", [1, np.nan, 2, 3])]))
    paths = [one.get("d", "") for one in drawing.iter("path")]
    assert [path.count("L") for path in paths] == [1, 1]


def test_every_value_can_be_pointed_at(axis: Axis) -> None:
    (drawing,) = drawings(stacks("t", "s", axis, [("a", [1, 0, 2, 0]), ("b", [1, 0, 0, 5])]))
    told = [one.text for one in drawing.iter("title")]
    assert told == ["00:00\na: 1\nb: 1", "01:00\na: 2", "01:30\nb: 5"]


def test_stacks_stand_on_each_other(axis: Axis) -> None:
    (drawing,) = drawings(stacks("t", "s", axis, [("a", [2, 0, 0, 0]), ("b", [4, 0, 0, 0])]))
    lower, upper = (one for one in drawing.iter("rect") if "bar" in one.get("class", ""))
    assert float(upper.get("y", 0)) + float(upper.get("height", 0)) == pytest.approx(
        float(lower.get("y", 0)), abs=0.2
    )
    assert float(upper.get("height", 0)) == pytest.approx(
        2 * float(lower.get("height", 0)), rel=0.01
    )


def test_bars_are_as_long_as_their_values() -> None:
    (drawing,) = drawings(bars("t", "s", [("one", 10.0), ("two", 5.0), ("none", 0.0)]))
    widths = [float(one.get("width", 0)) for one in drawing.iter("rect")]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01)
    assert widths[2] == 0


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (999, "999"), (1_500, "1.5k"), (2.5e6, "2.5M"), (3e9, "3G")]
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert short(value) == said


@pytest.mark.parametrize("most", [0.0004, 0.07, 0.9, 1, 2.9, 3, 17, 99, 1_001, 987_654])
def test_an_axis_ends_above_the_largest_value_and_not_far(axis: Axis, most: float) -> None:
    (drawing,) = drawings(lines("t", "s", axis, [("a", [most, 0, 0, 0])]))
    (path,) = (one.get("d", "") for one in drawing.iter("path"))
    y = float(path.split()[1].split("L")[0])
    assert 7.9 <= y <= 110


def test_a_limit_is_a_line_on_the_scale_of_the_bars() -> None:
    (drawing,) = drawings(bars("t", "s", [("one", 4.0), ("two", 1.0)], limits=[2.0, 8.0]))
    assert told(drawing) == ["one: 4 of 2", "two: 1 of 8"]
    starts = [float(one.get("x", 0)) for one in drawing.iter("rect")]
    first, second = (float(one.get("width", 0)) for one in drawing.iter("rect"))
    lines_across = [float(one.get("x1", 0)) for one in drawing.iter("line")]
    ends = [x - start for x, start in zip(lines_across, starts, strict=True)]
    # Where bars begin is rounded.
    assert ends == pytest.approx([first / 2, 8 * second], abs=0.6)
    # What is said of a bar stands behind both.
    values = [float(one.get("x", 0)) for one in drawing.iter("text")][1::2]
    assert values[0] > starts[0] + first
    assert WIDTH > values[1] > lines_across[1]


def test_without_limits_no_line_is_drawn() -> None:
    (drawing,) = drawings(bars("t", "s", [("one", 4.0)]))
    assert list(drawing.iter("line")) == []
