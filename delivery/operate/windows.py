"""How long the ids of a lane are held while its catalog is compacted.

What it is: `windows`, which holds what an operator asks for against what stages declare.
What it must not know: what is done with it, where stages are declared.

Invariants:
    No lane is given a window that is shorter than the one its stage declares.
    A lane that nobody declares (of a receiver, a wrapped job, another pipeline) is given the longest
    window there can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dedup.errors import InvalidUsage
from dedup.expiry import WINDOW_MS_MAX
from delivery.host.spec import StageSpec

__all__ = ["windows"]

_HOUR_MS = 60 * 60 * 1000
_OP = "compact a catalog"


def windows(
    lanes: Iterable[str], stages: Sequence[StageSpec], asked_ms: int | None
) -> dict[str, int]:
    """Return for each lane how long ids that publishers name are held, in milliseconds.

    Args:
        lanes: their names.
        stages: those that a pipeline declares.
        asked_ms: what the operator asks for; None: what each stage declares.

    Raises:
        InvalidUsage: it is shorter than what a stage declares, or none of the lanes is declared.
    """
    specs = {lane: next((s for s in stages if lane.startswith(s.prefix)), None) for lane in lanes}
    known = [spec for spec in specs.values() if spec is not None]
    if specs and not known:
        raise InvalidUsage(
            _OP,
            f"lane {next(iter(specs))}",
            "the pipeline that was given declares none of these stages, so nobody knows how long "
            "their publishers may repeat themselves; nothing was done: give the file that declares "
            "them, or leave out --pipeline",
        )
    longest = max(known, key=lambda spec: spec.window_ms, default=None)
    if longest is not None and asked_ms is not None and asked_ms < longest.window_ms:
        raise InvalidUsage(
            _OP,
            f"a window of {asked_ms / _HOUR_MS:g} h",
            f"stage {longest.prefix[:-1]} declares {longest.window_ms / _HOUR_MS:g} h: ids that its "
            "publishers may still repeat would be forgotten, and the repeats take effect a second "
            "time; nothing was done: say at least that, or leave out --window, and each stage's own "
            "is taken",
        )
    return {
        lane: WINDOW_MS_MAX if spec is None else (asked_ms or spec.window_ms)
        for lane, spec in specs.items()
    }
