"""A frozen value with some fields changed, made once for every event of a lane.

What it is: `replace`, which gives what `dataclasses.replace` gives.
What it must not know: which values there are.

Invariants:
    The new value is made by its class, so that whatever the class refuses is refused here as well.
    Only for dataclasses all of whose fields their class takes, and of more than one field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_T = TypeVar("_T")

#: The names of a class's fields, and what reads all of them at once.
_PLANS: dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {}


def replace(value: _T, **changes: object) -> _T:
    """Return the value with these fields changed."""
    kind: Any = type(value)
    plan = _PLANS.get(kind)
    if plan is None:
        names = tuple(field.name for field in fields(kind))
        plan = _PLANS[kind] = names, attrgetter(*names)
    names, read = plan
    made: _T = kind(**(dict(zip(names, read(value), strict=True)) | changes))
    return made
