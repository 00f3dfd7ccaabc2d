"""The command line: every verb explains itself, says things twice over, and loads nothing early."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import delivery.cli
from dedup.catalog import open as opening
from dedup.errors import Corrupt, DeliveryError, Fenced, Indeterminate, InvalidUsage, Unavailable
from delivery.cli import CATALOGS, FAULT, VERBS
from delivery.cli import delivery as group
from delivery.cli.output import Output, verb
from delivery.services import ports

HEAVY = {
    "cassandra",
    "confluent_kafka",
    "kafka",
    "numpy",
    "pandas",
    "psutil",
    "pyarrow",
    "pyspark",
    "xxhash",
}

NOT_VERBS = {
    "__init__",
    "__main__",
    "durations",
    "kafka",
    "output",
    "tables",
    "watching",
    "changes",
}


def leaves(parent: click.Group, *words: str) -> dict[tuple[str, ...], click.Command]:
    """Every verb that does something, by the words that call it."""
    context = click.Context(parent)
    found: dict[tuple[str, ...], click.Command] = {}
    for name in parent.list_commands(context):
        command = parent.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= leaves(command, *words, name)
        else:
            found[*words, name] = command
    return found


LEAVES = leaves(group)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A runner in an empty directory with a port registry of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return CliRunner()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_verb_is_a_module() -> None:
    home = Path(delivery.cli.__file__).parent
    modules = {path.relative_to(home).with_suffix("") for path in home.rglob("*.py")}
    groups = {path.parent for path in modules if path.name == "__init__"} - {Path()}
    verbs = {Path(*(word.replace("-", "_") for word in words)) for words in LEAVES}
    inside = {path for path in modules if path.name not in NOT_VERBS}
    assert inside == verbs
    assert {str(path) for path in groups} <= set(VERBS)


@pytest.mark.parametrize("words", LEAVES)
def test_every_verb_has_help_an_example_and_json(words: tuple[str, ...]) -> None:
    command = LEAVES[words]
    assert command.help
    assert "Example: " in (command.epilog or "")
    assert f"delivery {' '.join(words)}" in (command.epilog or "")
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    undescribed = [
        parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert undescribed == []


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["catalog", "--help"], *([*words, "--help"] for words in LEAVES)],
    ids=" ".join,
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from delivery.cli import main\n"
        f"sys.argv = ['delivery', *{arguments!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: delivery")
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert loaded & HEAVY == set()
    assert "click" in loaded


def test_python_without_assertions_is_refused() -> None:
    done = python("-O", "-m", "delivery.cli", "status")
    assert done.returncode == 2
    assert "python -O" in done.stderr
    assert done.stdout == ""


def test_an_unknown_verb_is_wrong_usage() -> None:
    done = python("-m", "delivery.cli", "fly")
    assert done.returncode == 2
    assert "No such command 'fly'" in done.stderr


def test_an_unknown_option_is_wrong_usage() -> None:
    done = python("-m", "delivery.cli", "up", "--brokers", "3")
    assert done.returncode == 2
    assert "--brokers" in done.stderr


@pytest.mark.parametrize(
    ("line", "verb", "said"),
    [
        (("lag", "--json"), "delivery lag", "Missing argument 'URL'"),
        (("catalog", "verify", "x", "--json", "--deep"), "delivery catalog verify", "--deep"),
        (("fly", "--json"), "delivery", "No such command 'fly'"),
    ],
)
def test_a_line_that_makes_no_sense_is_said_in_a_document_too(
    line: tuple[str, ...], verb: str, said: str
) -> None:
    done = python("-m", "delivery.cli", *line)
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["subject"]) == ("InvalidUsage", " ".join(line))
    assert said in error["hint"]
    assert f"`{verb} --help`" in error["hint"]


def test_what_a_job_is_told_is_not_told_to_us() -> None:
    done = python("-m", "delivery.cli", "chaos", "sqlite:shop.db", "--", "true", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Missing option '--kafka'" in done.stderr


def test_what_nobody_foresaw_is_no_verdict() -> None:
    """Exit code 1 is what verbs say of wrong data."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "delivery.cli", "status", "--dir", "/nonexistent"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == FAULT
    assert "Traceback" in done.stderr
    assert "no word about the data: OSError: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", [InvalidUsage, Unavailable, Indeterminate, Fenced, Corrupt])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_said_and_its_kind_is_the_exit_code(
    kind: type[DeliveryError],
    as_json: bool,  # noqa: FBT001  a table
) -> None:
    @click.command()
    @verb
    def fail(_out: Output) -> None:
        raise kind("append a seal", "lane 7", "try again")

    result = CliRunner().invoke(fail, ["--json"] if as_json else [])
    assert result.exit_code == kind.exit_code
    if as_json:
        assert json.loads(result.stdout) == {
            "error": {
                "kind": kind.__name__,
                "op": "append a seal",
                "subject": "lane 7",
                "hint": "try again",
            }
        }
    else:
        assert result.stdout == ""
        assert result.stderr == "delivery: append a seal: lane 7: try again\n"


def test_a_result_is_text_or_one_document() -> None:
    @click.command()
    @verb
    def succeed(out: Output) -> None:
        out.progress("working")
        out.result("two lines", {"lines": 2})

    text = CliRunner().invoke(succeed, [])
    assert (text.stdout, text.stderr) == ("two lines\n", "working\n")
    document = CliRunner().invoke(succeed, ["--json"])
    assert json.loads(document.stdout) == {"lines": 2}


def test_an_empty_directory_has_no_servers_and_is_not_well(run: CliRunner) -> None:
    result = run.invoke(group, ["status"])
    assert result.exit_code == 3
    assert "`delivery up` starts some" in result.stdout
    assert json.loads(run.invoke(group, ["status", "--json"]).stdout)["nodes"] == []


def test_down_where_nothing_is_does_nothing(run: CliRunner) -> None:
    result = run.invoke(group, ["down", "--delete"])
    assert result.exit_code == 0
    assert result.stdout == "nothing ran here\n"
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kafka", "2"], "each is 0, 1 or 3"),
        (["--no-kafka", "--no-cassandra"], "not both are 0"),
        (["--kafka", "3", "--no-kafka"], "contradict"),
    ],
)
def test_up_refuses_what_makes_no_sense(run: CliRunner, arguments: list[str], said: str) -> None:
    result = run.invoke(group, ["up", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(Path().iterdir()) == []


def test_logs_names_the_nodes_there_are(run: CliRunner) -> None:
    result = run.invoke(group, ["logs", "kafka-9"])
    assert result.exit_code == 2
    assert "`delivery up` makes some" in result.stderr


def test_doctor_finds_a_folder_that_hides_a_package_of_ours(run: CliRunner) -> None:
    before = json.loads(run.invoke(group, ["doctor", "--json"]).stdout)
    by_check = {finding["check"]: finding for finding in before["findings"]}
    assert by_check["package dedup"]["verdict"] == "ok"

    Path("dedup").mkdir()
    Path("dedup/__init__.py").touch()
    result = run.invoke(group, ["doctor", "--json"])
    assert result.exit_code == 1
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert findings["package dedup"]["verdict"] == "broken"
    assert findings["package dedup"]["found"] == str(Path("dedup/__init__.py").absolute())
    assert "rename it" in findings["package dedup"]["advice"]


def test_doctor_says_what_to_do_about_whatever_is_not_well(run: CliRunner) -> None:
    result = run.invoke(group, ["doctor", "--json", "--cassandra", "127.0.0.1:1"])
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert all(finding["advice"] for finding in findings if finding["verdict"] != "ok")
    checks = {finding["check"].partition(" ")[0] for finding in findings}
    expected = {"java", "jars", "package", "driver", "compiled", "sqlite", "disk", "loopback"}
    assert checks == expected | {"servers", "cassandra"}
    assert findings[-1]["check"] == "cassandra 127.0.0.1:1"


def test_nothing_is_reserved_by_looking(run: CliRunner, tmp_path: Path) -> None:
    for name in ("status", "doctor", "logs"):
        run.invoke(group, [name])
    assert list(Path().iterdir()) == []
    assert not any(path.name.isdigit() for path in tmp_path.glob("delivery-ports-*/*"))
    assert ports.PORT_MIN > 1024


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("delivery", "exp"), {"explain"}),
        (("delivery", "catalog", "ins"), {"inspect"}),
        (("delivery", "status", "--js"), {"--json"}),
    ],
)
def test_a_shell_completes_verbs_and_options(words: tuple[str, ...], offered: set[str]):
    # As the help says it, in a shell that knows nothing else.
    script = (
        'eval "$(_DELIVERY_COMPLETE=bash_source delivery)"; '
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        '_delivery_completion delivery; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    here = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=here, check=True, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == offered


def test_the_command_knows_how_urls_of_catalogs_begin():
    """It says so itself: what opens catalogs is too much to load for a help text."""
    assert sorted(CATALOGS) == sorted(f"{scheme}:" for scheme in opening._SCHEMES)
