"""docs/protocol.md says what the code says."""

from __future__ import annotations

import pytest

from tests.crash.mutants import MUTANTS
from tests.crash.page import COMMAND, PAGE, PARTS, rendered
from tests.crash.worlds import WORLDS


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == rendered(page), f"run `{COMMAND}` and read the difference"


def test_every_mutant_and_every_world_is_named() -> None:
    page = PAGE.read_text()
    assert [mutant.name for mutant in MUTANTS if f"| {mutant.name} |" not in page] == []
    assert [name for name in WORLDS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", PARTS)
def test_a_page_that_differs_is_noticed(name: str) -> None:
    page = PAGE.read_text()
    line = PARTS[name]().splitlines()[-2]
    spoilt = page.replace(line + "\n", "", 1)
    assert spoilt != page
    assert rendered(spoilt) == rendered(page)


def test_the_diagrams_show_what_the_tables_allow() -> None:
    """What nobody may do is not drawn: to know a head is to have loaded it."""
    drawn = PARTS["phases"]()
    assert "LOADING --> OPEN: Loaded" in drawn
    assert "OPEN --> RELOADING: Resolved" in drawn
    assert "RELOADING --> STARTING" not in drawn
    assert "OPEN --> STARTING" not in drawn
    assert "RESOLVING --> STORED: Resolved" in PARTS["steps"]()
