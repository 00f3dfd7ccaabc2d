"""Long work says how far it is: a bar on a terminal, a line now and then elsewhere, nothing with --json."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from delivery.cli.output import Output, verb
from delivery.operate.auditing import Terms, audit
from delivery.operate.keeping import back_up, restore
from delivery.operate.logs import Cluster
from delivery.operate.migration.migrate import migrate, survey
from delivery.operate.opening import chosen
from delivery.operate.replaying import Window, replay, surveyed
from delivery.operate.verification import verify
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, called, chained, housed

SHOW_SECONDS_MAX = 60
ERASE = "\r\x1b[K"
#: A verb of five steps, all of which are shown, and of a result.
STEPS = """
import sys, click
from delivery.cli import output
output._STEP_SECONDS = output._LINE_SECONDS = 0
@click.command()
@output.verb
def walk(out):
    for done in range(5):
        out.step("read the topic orders.priced.by.customer", done, 4)
    out.step("and more")
    if sys.argv[-1] == "fail":
        raise RuntimeError("it broke")
    out.result("all is read", {})
walk([one for one in sys.argv[1:] if one != "fail"])
"""


def on_terminal(*arguments: str, columns: int, named: bool = True) -> tuple[str, str]:
    """Run Python with standard error on a terminal; return what that and standard output show."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if named:
        environment["COLUMNS"] = str(columns)
    else:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    running = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    try:
        shown = b""
        while True:
            try:
                some = os.read(ours, 4096)
            except OSError:  # nobody holds the other end any more
                break
            if not some:
                break
            shown += some
        said, _ = running.communicate(timeout=SHOW_SECONDS_MAX)
    finally:
        running.kill()
        running.wait()
        os.close(ours)
    return shown.decode(), said.decode()


def test_a_terminal_shows_a_bar_in_place_and_nothing_of_it_at_the_end() -> None:
    shown, said = on_terminal("-c", STEPS, columns=100)
    topic = "read the topic orders.priced.by.customer"
    assert shown.split(ERASE) == [
        "",
        f"  0% [{24 * '.'}] {topic}",
        f" 25% [{6 * '#'}{18 * '.'}] {topic}",
        f" 50% [{12 * '#'}{12 * '.'}] {topic}",
        f" 75% [{18 * '#'}{6 * '.'}] {topic}",
        f"100% [{24 * '#'}] {topic}",
        "and more",
        "",
    ]
    assert said == "all is read\n"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("columns", "bar"), [(40, " 50% [#####.....] "), (24, " 50% read")])
def test_a_narrow_terminal_is_never_written_over_its_edge(
    columns: int, bar: str, *, named: bool
) -> None:
    shown, _ = on_terminal("-c", STEPS, columns=columns, named=named)
    drawn = shown.split(ERASE)
    assert max(map(len, drawn)) == columns - 1
    assert any(one.startswith(bar) for one in drawn)
    assert drawn[-1] == ""
    assert "\n" not in shown


def test_a_verb_that_breaks_leaves_no_bar_behind() -> None:
    shown, said = on_terminal("-c", STEPS, "fail", columns=100)
    assert f"and more{ERASE}Traceback" in shown
    assert said == ""


def test_a_verb_shows_how_far_it_is(tmp_path: Path) -> None:
    with housed(tmp_path / "shop.db", chained) as house:
        url = house.store.url
    shown, said = on_terminal("-m", "delivery.cli", "catalog", "verify", url, columns=100)
    assert re.match(r"\r\x1b\[K  0% \[\.{24}\] verify shop/\w+/0\r\x1b\[K", shown)
    assert shown.endswith(ERASE)
    assert said.endswith("nothing is wrong\n")


@click.command()
@verb
def walk(out: Output) -> None:
    for done in range(4):
        out.step("read", done, 4)
    out.result("all is read", {"read": 4})


def test_what_is_no_terminal_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CliRunner().invoke(walk, [])
    assert (found.stdout, found.stderr) == ("all is read\n", ""), "it was quick"
    monkeypatch.setattr("delivery.cli.output._LINE_SECONDS", 0)
    found = CliRunner().invoke(walk, [])
    assert found.stderr == "read (0%)\nread (25%)\nread (50%)\nread (75%)\n"


def test_with_json_nobody_is_told_of_steps() -> None:
    found = CliRunner().invoke(walk, ["--json"])
    assert (found.stdout, found.stderr) == ('{\n  "read": 4\n}\n', "")


# Who knows how much there is ----------------------------------------------------------------------


class Told:
    """Takes down how far work said it was."""

    def __init__(self) -> None:
        self.shares: list[tuple[str, int, int | None]] = []

    def __call__(self, line: str, /, done: int = 0, total: int | None = None) -> None:
        self.shares.append((line, done, total))

    def of(self, word: str) -> Sequence[tuple[int, int | None]]:
        """Return the shares of lines that begin with a word."""
        return [(done, total) for line, done, total in self.shares if line.startswith(word)]


@pytest.fixture
def shop() -> House:
    house = House(MemoryStore())
    chained(house)
    return house


def test_an_audit_knows_how_many_offsets_and_lanes_there_are(shop: House) -> None:
    told, catalog = Told(), Catalog(shop.store)
    audit(
        catalog,
        Cluster(MemoryClient(shop.broker), told),
        chosen(catalog),
        Terms(ways={"": "header:id"}),
        told,
    )
    for topic in ("in", "out", "end"):
        offsets = len(shop.broker.partitions[shop.source(topic)])
        steps = [*range(7, offsets, 7), offsets]
        assert told.of(f"{topic}: ") == [(done, offsets) for done in steps]
    assert told.of("prove") == [(0, 2), (1, 2)]


def test_reading_from_the_middle_begins_at_nothing(shop: House) -> None:
    told = Told()
    cluster = Cluster(MemoryClient(shop.broker), told)
    found = audit(
        Catalog(shop.store), cluster, [LANE], Terms(ways={"": "header:id"}), proved=None
    ).next
    told.shares.clear()
    shop.write("new")
    audit(Catalog(shop.store), cluster, [LANE], Terms(), proved=found)
    assert told.of("in: ") == [(1, 1)]


def test_a_verification_knows_how_many_lanes_there_are(shop: House) -> None:
    told = Told()
    verify(shop.store, iter([LANE, SECOND]), told)
    assert told.of("verify") == [(0, 2), (1, 2)]


def test_a_replay_knows_how_many_records_there_are(shop: House) -> None:
    class Client(MemoryClient):
        def producer(self) -> Any:
            return self

        def emit(self, *_: Any) -> None:
            pass

    told, catalog, client = Told(), Catalog(shop.store), Client(shop.broker)
    found = surveyed(catalog, Cluster(client), [LANE, SECOND], Window(), told)
    assert told.of("look") == [(0, 2), (1, 2)]
    replay(catalog, client, found, None, told)
    total = sum(one.records for one in found)
    shares = told.of("shop/")
    assert [total for _, total in shares] == len(shares) * [total]
    assert [done for done, _ in shares] == sorted(done for done, _ in shares)
    assert shares[-1] == (total, total)


def test_a_compaction_knows_how_many_lanes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.cli.output._LINE_SECONDS", 0)
    with housed(tmp_path / "shop.db", chained) as house:
        said = called("catalog", "compact", house.store.url, "--keep-entries", "0").stderr
    shares = re.findall(r"^shop/(\w+)/0: .* \((\d+)%\)$", said, re.MULTILINE)
    assert set(shares) == {("price", "0"), ("ship", "50")}
    assert len(shares) == said.count("\n")


def test_a_migration_knows_how_many_lanes_there_are(shop: House) -> None:
    told, source, target = Told(), Catalog(shop.store), Catalog(MemoryStore())
    survey(source, None, "there", told)
    assert told.of("look") == [(0, 2), (1, 2)]
    migrate(source, target, told)
    assert told.of("copy") + told.of("check") == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_backups_and_restores_know_how_much_there_is(shop: House, tmp_path: Path) -> None:
    told, file = Told(), tmp_path / "monday.backup"
    made = back_up(Catalog(shop.store), file, told)
    frames = [share for line, *share in told.shares if re.match(r"\d+ frames", line)]
    assert len(frames) == made.frames
    assert [share for at, share in enumerate(frames) if share not in frames[:at]] == [
        [0, 2],
        [1, 2],
    ]
    for again in (told, Told()):
        if again is not told:
            restore(file, f"sqlite:{tmp_path / 'new.db'}", again, perform=True)
        checked = again.of("check")
        assert checked[-1] == (made.size, made.size)
        every = [(at, made.frames) for at in range(made.frames)]
        assert again.of("try") == every, "in memory, before anything is made"
        assert again.of("write") == (every if again is not told else [])
        assert len(checked) == made.frames * (1 if again is told else 2)
