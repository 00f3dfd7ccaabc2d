"""What people see of a query: its live line, what began and what ended."""

from __future__ import annotations

import io
import queue
from types import SimpleNamespace

import pytest

from delivery.host.counters import Counters
from delivery.host.spec import Plan, StageSpec
from delivery.resident import line
from delivery.resident.line import Beat, Line, Pace, begun, ended, text_of

SECONDS_MAX = 30.0

SEEN = {
    "processedRowsPerSecond": 12345.6,
    "lag": 1234,
    "message": "2 tasks run",
    "counters": {"duplicate": 3, "remnant": 4, "seals": 5},
}
TEXT = "shop:  12,346 rows/s  lag 1,234  duplicates 7  seals 5  | 2 tasks run"


def test_the_live_line_says_how_it_goes():
    assert text_of("shop", SEEN) == TEXT
    assert "lag" not in text_of("shop", SEEN | {"lag": None})
    letters = SEEN | {"counters": {"dead_letter": 1080}}
    assert "duplicates 0  dead letters 1,080  seals 0" in text_of("shop", letters)


@pytest.mark.parametrize("columns", range(20, 90))
def test_a_narrow_line_says_the_state_before_anything_else(columns):
    found = SEEN | {"counters": {"dead_letter": 9, "seals": 5}, "message": "failed: price\n at 1"}
    text = text_of("shop", found, columns)
    assert len(text) <= columns
    assert "| failed: pr" in text
    assert ("| failed: price" in text) == (columns >= len("shop:  | failed: price"))
    # Nothing that goes first is there where something is missing that goes later.
    there = [word in text for word in ("dead letters 9", "lag 1,234", "rows/s", "dupl", "seals 5")]
    assert there == sorted(there, reverse=True)
    assert text_of("shop", found).endswith("| failed: price")


def test_a_rate_is_not_that_of_a_moment(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(line, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = Pace()
    found = []
    for at, count in ((100.001, 400), (101.0, 500), (101.001, 900), (103.0, 1500)):
        now[0] = at
        found.append(pace.of(count))
    assert found == pytest.approx([0, 500, 500, 500])
    assert pace.of(1500, whole=True) == pytest.approx(500)


def test_the_live_line_is_quiet_where_there_is_no_terminal():
    quiet, loud = io.StringIO(), io.StringIO()
    Line("shop", wanted=None, stream=quiet).show(SEEN)
    shown = Line("shop", wanted=True, stream=loud)
    shown.show(SEEN)
    shown.show(SEEN, last=True)
    assert quiet.getvalue() == ""
    assert loud.getvalue().count(TEXT) == 2
    assert loud.getvalue().endswith("\n")
    loud.close()
    shown.show(SEEN)


def test_where_no_line_is_live_it_is_said_what_began():
    heard = {}
    for wanted in (None, True, False):
        heard[wanted] = io.StringIO()
        Line("shop", wanted=wanted, stream=heard[wanted]).say("started")
    terminal = Terminal()
    Line("shop", wanted=None, stream=terminal).say("started")
    assert {wanted: stream.getvalue() for wanted, stream in heard.items()} == {
        None: "shop: started\n",
        True: "",
        False: "",
    }
    assert terminal.getvalue() == ""
    heard[None].close()
    closed = Line("shop", wanted=None, stream=io.StringIO())
    closed._stream.close()
    closed.say("nobody is there")


@pytest.mark.parametrize("wanted", [None, True, False])
def test_what_ended_is_said_below_a_live_line_as_well(wanted):
    terminal = Terminal()
    shown = Line("shop", wanted=wanted, stream=terminal)
    shown.show(SEEN, last=True)
    shown.say("ended", live=True)
    assert terminal.getvalue().endswith(f"{TEXT}\nshop: ended\n" if wanted is not False else "")
    assert (terminal.getvalue() == "") == (wanted is False)


def test_what_began_names_the_catalog_without_its_user():
    spec = StageSpec(pipeline="shop", name="price", reads="in", call=len)
    plan = Plan(catalog="cassandra://me:secret@here:1/shop", kafka="k:1", stages=(spec,))
    said = "started stages price (8 lanes), catalog cassandra://…@here:1/shop"
    assert begun(plan, 8) == said
    counts = Counters(read=8000, fresh=7600, duplicate=399, remnant=1, seals=12)
    assert ended(counts.document()) == (
        "ended: 8,000 records read, 7,600 took effect, 400 were repeats; 12 seals"
    )
    counts.dead_letter = 1080
    assert "7,600 took effect (1,080 as dead letters), 400 were repeats" in ended(counts.document())


class Terminal(io.StringIO):
    """A terminal that tells of each time something was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: queue.Queue[str] = queue.Queue()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        super().flush()
        self.drawn.put(self.getvalue().rpartition("\r")[2])


def test_a_line_without_a_beat_of_its_own_is_drawn_until_the_end(monkeypatch):
    monkeypatch.setattr(line, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(line, "PACE_SECONDS_MIN", 0.01)
    terminal, counters = Terminal(), Counters()

    def look():
        counters.read += 500
        return {"counters": counters.document(), "lag": 7, "message": "price: running"}

    beat = Beat(Line("shop", wanted=None, stream=terminal), look)
    assert "lag 7" in terminal.drawn.get(timeout=SECONDS_MAX)
    again = terminal.drawn.get(timeout=SECONDS_MAX)
    # At most one look in each beat; on a slow machine they are further apart.
    rate = int(again.partition("shop:  ")[2].partition(" rows/s")[0].replace(",", ""))
    assert 0 < rate <= 500 / 0.05
    assert not terminal.getvalue().endswith("\n")
    beat.end()
    beat.end()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("| price: running\n")


def test_nobody_looks_where_nobody_sees_it():
    looks = []
    Beat(Line("shop", wanted=False, stream=Terminal()), lambda: looks.append(1)).end()
    assert looks == []


# Clusters -------------------------------------------------------------------------------------
