"""Tables and figures for people: as wide as the terminal, and readable in a narrow one.

What it is: `table`, `paragraph`, `folded`, and figures in words.
What it must not know: what the rows are about.

Invariants:
    A table is aligned where it fits. Where it does not, each row becomes a block of lines; nothing
    is cut off. What is no terminal has room for everything.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

__all__ = ["ago", "folded", "number", "paragraph", "size", "table", "when", "where_any", "wide"]

_GAP = "  "
_THOUSAND = 1000
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SECOND_MS = 1000
#: Name of a unit of time, and how many milliseconds it is, the longest first.
_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", _SECOND_MS))
#: So many of a unit are still said in the next smaller one: 90 s, not 1 min.
_SMALL = 2


def wide() -> int | None:
    """Return the columns of the terminal; None if the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Return the lines of a table; figures stand to the right.

    Args:
        titles: of the columns. The first names a row.
        rows: as many cells each.
        columns: how wide it may be; None: as wide as it is.
    """
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    if columns is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > columns:
        return [line for row in rows for line in _block(titles, row, columns)]
    right = [all(_is_figure(row[at]) for row in rows) for at in range(len(titles))]
    return [
        _GAP.join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (titles, *rows)
    ]


def where_any(
    titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table without its last column where that says 0 of every row."""
    if any(row[-1] != "0" for row in rows):
        return titles, rows
    return titles[:-1], [row[:-1] for row in rows]


def paragraph(text: str, columns: int | None, indent: str = "") -> list[str]:
    """Return a sentence in lines; where it takes several, those behind the first stand further in.

    Args:
        text: the sentence.
        columns: how wide it may be; None: as wide as it is.
        indent: what its first line begins with.
    """
    if columns is None:
        return [f"{indent}{text}"]
    further = f"{indent}{_GAP}"
    return textwrap.wrap(
        text,
        max(columns, 2 * len(further)),
        initial_indent=indent,
        subsequent_indent=further,
        break_on_hyphens=False,
    ) or [indent]


def folded(text: str, columns: int | None) -> str:
    """Return lines of which none is wider than the terminal, but for a word that is.

    Args:
        text: the lines.
        columns: how wide they may be; None: as wide as they are.
    """
    return "\n".join(
        piece
        for line in text.split("\n")
        for piece in ([line] if columns is None or len(line) <= columns else _broken(line, columns))
    )


def number(count: int) -> str:
    """Return a number with its thousands apart."""
    return f"{count:,}"


def size(count: int) -> str:
    """Return bytes in their unit."""
    if count < 0:
        return f"-{size(-count)}"
    amount = float(count)
    for unit in _UNITS:
        if amount < _THOUSAND or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == _UNITS[0] else f"{amount:.1f} {unit}"
        amount /= _THOUSAND
    raise AssertionError("the last unit takes everything")


def ago(milliseconds: int | None) -> str:
    """Return a length of time in its unit; "-" for none."""
    if milliseconds is None:
        return "-"
    for unit, length in _TIMES:
        if milliseconds >= _SMALL * length:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds / _SECOND_MS:.1f} s"


def when(milliseconds: int) -> str:
    """Return a time, in UTC."""
    moment = datetime.fromtimestamp(milliseconds / _SECOND_MS, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{milliseconds % _SECOND_MS:03d} UTC"


def _broken(line: str, columns: int) -> list[str]:
    """Break a line between words only: an offset, an id or a path is there to be copied."""
    own = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        max(columns, 2 * len(own)),
        initial_indent=own,
        subsequent_indent=f"{own}{_GAP}",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _block(titles: Sequence[str], row: Sequence[str], columns: int) -> list[str]:
    first, *rest = row
    lines = textwrap.wrap(first, columns, break_on_hyphens=False) or [""]
    wide_title = max((len(title) for title in titles[1:]), default=0)
    for title, cell in zip(titles[1:], rest, strict=True):
        if not cell:  # as in the last row, whose sums are not of every column
            continue
        head = f"{_GAP}{title.ljust(wide_title)}{_GAP}"
        room = max(columns - len(head), columns // 2)
        pieces = textwrap.wrap(cell, room, break_on_hyphens=False) or [""]
        lines.append(f"{head}{pieces[0]}".rstrip())
        lines += [" " * len(head) + piece for piece in pieces[1:]]
    return lines


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell in {"", "-"}
