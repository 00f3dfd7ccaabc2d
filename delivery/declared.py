"""What is known of a function that was declared a stage, beside the function itself.

What it is: how many outputs it was declared with, for whoever is handed the function alone.
What it must not know: pipelines, who asks.

Invariants:
    The function stays what it was: nothing is written on it, and nothing keeps it alive.
    A function that is several stages has as many outputs as the one with the most.
"""

from __future__ import annotations

from types import FunctionType
from weakref import WeakKeyDictionary

__all__ = ["declare_outputs", "declared_outputs"]

_OUTPUTS: WeakKeyDictionary[FunctionType, int] = WeakKeyDictionary()


def declare_outputs(call: object, outputs: int) -> None:
    """Remember with how many outputs a function was declared; only of functions, which are users'."""
    if isinstance(call, FunctionType):
        _OUTPUTS[call] = max(outputs, _OUTPUTS.get(call, 0))


def declared_outputs(call: object) -> int | None:
    """Return with how many outputs a function was declared; None if it was not."""
    return _OUTPUTS.get(call) if isinstance(call, FunctionType) else None
