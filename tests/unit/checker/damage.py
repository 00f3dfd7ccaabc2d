"""How planted damage is entered in a list, with what it must be found as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delivery.checker import Kind
from tests.unit.checker.worlds import World

Damage = Callable[[World], None]


def register() -> tuple[list[Any], Callable[..., Callable[[Damage], Damage]]]:
    """Return a list, and the decorator that enters a damage in it.

    The decorator takes the kinds that must be found, no fewer and no more.
    """
    entered: list[Any] = []

    def found(*expected: Kind) -> Callable[[Damage], Damage]:
        def enter(damage: Damage) -> Damage:
            entered.append(pytest.param(damage, set(expected), id=damage.__name__))
            return damage

        return enter

    return entered, found
