"""What people read in a terminal: whole sentences, of any width, about what they asked."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dedup.errors import InvalidUsage
from delivery.cli import Verbs, delivery
from delivery.cli import output as output_module
from delivery.cli.output import Output
from delivery.cli.tables import folded, paragraph
from delivery.records import Output as Made
from delivery.services import doctor, guard
from delivery.services.instance import Instance, Request
from delivery.testing.plan import plan_of
from tests.unit.house import House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import shop

GROUPS = ((), ("stage",), ("catalog",))


def helped(words: tuple[str, ...], columns: int) -> str:
    result = CliRunner().invoke(delivery, [*words, "--help"], terminal_width=columns)
    assert result.exit_code == 0
    return result.stdout


def verbs(words: tuple[str, ...]) -> Verbs:
    command: click.Command | None = delivery
    for word in words:
        assert isinstance(command, Verbs)
        command = command.get_command(click.Context(command), word)
    assert isinstance(command, Verbs)
    return command


@pytest.mark.parametrize("words", GROUPS)
@pytest.mark.parametrize("columns", [60, 80])
def test_no_description_of_a_verb_is_cut(words: tuple[str, ...], columns: int) -> None:
    listed = helped(words, columns).partition("Commands:")[2].partition("Example:")[0]
    assert "..." not in listed
    told = " ".join(listed.split())
    found = verbs(words)
    assert set(found.verbs) == set(found.words)
    for name, text in found.words.items():
        assert f"{name} {text}" in told
    assert max(map(len, listed.splitlines())) <= columns
    if columns == 80:
        assert len(listed.strip().splitlines()) == len(found.verbs), "a line each"


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["stauts"], "status"), (["stage", "lst"], "list"), (["catalog", "verfy"], "verify")],
)
def test_a_verb_that_is_none_is_answered_with_the_one_that_is_meant(words, meant) -> None:
    result = CliRunner().invoke(delivery, words)
    assert result.exit_code == 2
    assert meant in result.stderr


def test_what_is_done_at_once_says_no_step(monkeypatch, capsys) -> None:
    out = Output(as_json=False)
    out.step("orders: 200 records read")
    assert capsys.readouterr().err == ""
    later = time.monotonic() + 60
    monkeypatch.setattr(output_module.time, "monotonic", lambda: later)
    out.step("orders: 400 records read")
    assert capsys.readouterr().err == "orders: 400 records read\n"


def test_a_sentence_is_whole_in_any_width() -> None:
    text = "shop/price holds things up, by 7 min: 4,400 records wait, and nobody reads them"
    assert paragraph(text, None, "  ") == [f"  {text}"]
    lines = paragraph(text, 30, "  ")
    assert len(lines) > 2
    assert all(len(line) <= 30 for line in lines)
    assert lines[0].startswith("  shop")
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text


def test_a_line_is_broken_between_words_only_and_as_often_as_it_must() -> None:
    path = "/" + 60 * "x"
    text = f"short\n  output of {path} lies where it was sent to, and nobody read it\n\nend"
    assert folded(text, None) == text
    lines = folded(text, 30).splitlines()
    assert [lines[0], *lines[-2:]] == ["short", "", "end"]
    assert {line.strip() for line in lines if len(line) > 30} == {path}
    assert all(line.startswith("  ") for line in lines[1:-2])
    assert " ".join(folded(text, 30).split()) == " ".join(text.split())


# Servers --------------------------------------------------------------------------------------


def test_a_directory_that_takes_no_files_is_refused_by_name() -> None:
    """Nobody may create a file in /proc, not even root."""
    with pytest.raises(InvalidUsage, match="/proc: it cannot be written to") as raised:
        Instance(Path("/proc")).up(Request(kafka=1, cassandra=0), print)
    assert "--dir" in str(raised.value)


def test_doctor_finds_a_directory_that_takes_no_files() -> None:
    here, _ = doctor._disk(Path("/proc"))
    assert here.verdict is doctor.Verdict.BROKEN
    assert "takes no files" in here.advice


def test_doctor_says_which_spark_the_jars_are_made_for() -> None:
    made = doctor._fitting("driver pyspark", "4.2.0", "pyspark")
    assert made.verdict is doctor.Verdict.OK
    mended = doctor._fitting("driver pyspark", "4.2.1", "pyspark")
    assert (mended.verdict, mended.advice) == (doctor.Verdict.OK, made.advice)
    assert "jars of 4.2.0" in mended.found
    newer = doctor._fitting("driver pyspark", "4.3.0", "pyspark")
    assert newer.verdict is doctor.Verdict.NOTE
    assert "pyspark==4.2.0" in newer.advice
    assert doctor._fitting("driver click", "8.0", "click").verdict is doctor.Verdict.OK


@pytest.mark.parametrize("code", [-signal.SIGTERM, 143])
def test_a_server_that_was_told_to_stop_did_not_crash(code: int) -> None:
    assert guard._end(code) == "was told to stop, and did"


def test_a_server_that_ended_by_itself_says_how() -> None:
    assert guard._end(-9) == "ended with signal 9"
    assert guard._end(1) == "ended with exit code 1"


def test_a_misspelt_everywhere_is_answered() -> None:
    with pytest.raises(InvalidUsage, match='crash="everywhere"'):
        plan_of("everwhere")


# Stages ---------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as house:
        yield house


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("verb", ["lag", "guarantee"])
def test_sentences_are_wrapped_where_the_terminal_is_narrow(house, monkeypatch, verb) -> None:
    house.write("more", timestamp_ms=house.now)
    monkeypatch.setattr(f"delivery.cli.{verb}.wide", lambda: 40)
    lines = called(verb, house.store.url, code=3 if verb == "guarantee" else 0).stdout.splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 40


def explained(house: House, *asked: str, code: int = 0) -> str:
    result = called("explain", house.store.url, "--kafka", "here:1", *asked, code=code)
    return result.stdout + result.stderr


def test_an_offset_behind_the_end_is_told_from_one_that_was_deleted(house: House) -> None:
    said = explained(house, "--offset", "in/0/999999")
    assert "holds no record there yet: partition 0 ends before 3" in said
    refused = explained(house, "--offset", "in/9/1", code=2)
    assert "in/9/1: in has 1 partitions, counted from 0" in refused


def test_a_name_that_nobody_knows_is_said_as_it_was_given(house: House) -> None:
    refused = explained(house, "--name", "order-99999", code=2)
    assert "explain a record: order-99999: " in refused


def test_a_story_says_where_it_goes_on(house: House) -> None:
    said = explained(house, "--offset", "in/0/0")
    assert "was sealed, and counts" in said
    (line,) = [line for line in said.splitlines() if "what was made of it: --offset" in line]
    further = explained(house, "--offset", line.split()[-1])
    assert "made by" in further


@pytest.mark.parametrize(
    "verb", ["advice", "catalog verify", "catalog compact", "doctor", "explain"]
)
def test_what_any_verb_says_fits_a_narrow_terminal(house, monkeypatch, verb) -> None:
    asked = () if verb == "doctor" else (house.store.url,)
    more = ("--kafka", "here:1", "--offset", "in/0/0") if verb == "explain" else ()
    monkeypatch.setattr("delivery.cli.output.wide", lambda: 50)
    lines = CliRunner().invoke(delivery, [*verb.split(), *asked, *more]).stdout.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if len(line) > 50 and len(line.split()) > 1] == []


def test_a_story_is_one_screen_however_often_a_record_came(house: House) -> None:
    """It made thirty outputs, and was sent thirty times more."""
    house.write("often")
    often = len(house.sent("in")) - 1
    made = [Made(value=b"%d" % number) for number in range(30)]
    house.done(house.runner(call=lambda _: made))
    house.write(*(30 * ["often"]))
    house.done(house.runner())
    said = explained(house, "--offset", f"in/0/{often}")
    assert len(said.splitlines()) < 40
    assert "and 25 more outputs: --json names all" in said
    assert "and 25 more repeats: --json names all" in said
    told = document("explain", house.store.url, "--kafka", "here:1", "--offset", f"in/0/{often}")
    (reading,) = told["readings"]
    assert (len(reading["outputs"]), len(reading["repeats"])) == (30, 30)
