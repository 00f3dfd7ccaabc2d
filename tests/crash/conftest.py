"""Takes down what the deep tests saw, for docs/proof.md."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.proof import take_note

#: Takes down one fact: a kind ("world", "mutant") and its figures.
TakeDown = Callable[..., None]


@pytest.fixture
def take_down(request: pytest.FixtureRequest) -> TakeDown:
    """Return a function that appends one line to the record of this run."""
    began = time.monotonic()

    def append(**figures: object) -> None:
        seconds = figures.pop("seconds", time.monotonic() - began)
        take_note(**figures, seconds=seconds, test=request.node.nodeid)

    return append
