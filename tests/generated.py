"""Parts of a document that are made from the code: their places in it, and putting them there."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def filled(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with every generated part as the code has it now."""
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end of generated -->"
        before, found, rest = page.partition(begin)
        assert found, f"the page has no place for the generated part {name!r}"
        page = before + begin + part() + end + rest.partition(end)[2]
    return page
