"""Lengths of time as people write them: 30s, 15min, 12h, 7d.

What it is: types of options. What it must not know: what is measured.
"""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = ["BY_STAGE", "DURATION"]

_UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM = re.compile(r"(\d+)\s*(ms|s|min|h|d)")


class Duration(click.ParamType[int]):
    """A length of time, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        if value == "0":
            return 0
        found = _FORM.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no length of time; write 0, 30s, 15min, 12h or 7d", param, ctx)
        return int(found[1]) * _UNITS_MS[found[2]]


DURATION = Duration()


class ByStage(click.ParamType[tuple[str, int]]):
    """A length of time, of one stage ("price=24h") or of every other one."""

    name = "[stage=]duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the stage, empty if none is named, and milliseconds."""
        if isinstance(value, tuple):
            return value
        stage, _, length = str(value).rpartition("=")
        return stage.strip(), DURATION.convert(length, param, ctx)


BY_STAGE = ByStage()
