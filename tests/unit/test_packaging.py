"""What `pip install .` gives: four typed packages and a command that needs no extra.

The wheel is built by the pinned backend and installed into an environment of its own that sees
the base dependencies and nothing else, without asking a registry.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.wheel import ROOT, build, link, run, wanted

PACKAGES = ("delivery", "dedup", "sinks", "connectors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel and the base dependencies."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    link(wanted("exactly-once-delivery").values(), site)
    python = home / "bin" / "python"
    # Not --no-deps: pip must find every base requirement already there.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel)
    return home


def test_the_wheel_holds_four_typed_packages_and_nothing_else(names):
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert [package for package in PACKAGES if f"{package}/py.typed" not in names] == []


def test_the_wheel_holds_every_file_of_the_packages(names):
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - set(names) == set()
    assert "delivery/services/jars.lock" in names


def test_the_metadata_names_the_extras_the_python_and_the_command(wheel, names):
    with zipfile.ZipFile(wheel) as archive:
        texts = {n.split("/")[1]: archive.read(n).decode() for n in names if ".dist-info/" in n}
    extras = set(re.findall(r"^Provides-Extra: (\S+)", texts["METADATA"], re.MULTILINE))
    assert extras == {"all", "cassandra", "cluster", "confluent", "jre", "pybloom", "spark"}
    assert "Requires-Python: >=3.11" in texts["METADATA"]
    assert "delivery = delivery.cli:main" in texts["entry_points.txt"]


def test_the_bare_environment_has_no_driver(bare):
    drivers = "pyspark", "confluent_kafka", "cassandra", "pybloom_live", "pandas"
    code = f"from importlib.util import find_spec; print([d for d in {drivers} if find_spec(d)])"
    assert run(bare / "bin" / "python", "-c", code).strip() == "[]"


def test_without_extras_the_command_gives_its_help(bare):
    assert "Usage: delivery" in run(bare / "bin" / "delivery", "--help")


def test_without_extras_everything_users_import_is_there(bare):
    code = "import delivery; print(*(name for name in delivery.__all__ if not hasattr(delivery, name)))"
    assert run(bare / "bin" / "python", "-c", code).strip() == ""


def test_with_a_compiler_the_wheel_is_of_this_platform_and_has_the_library(wheel, bare):
    compiler = shutil.which(shlex.split(os.environ.get("CC") or "cc")[0])
    assert wheel.stem.endswith("-py3-none-any") == (compiler is None)
    code = "from dedup.compiled.kernels import why_not; print(why_not())"
    told = run(bare / "bin" / "python", "-c", code).strip()
    assert (told == "None") == (compiler is not None), told


def test_without_a_compiler_the_wheel_is_of_every_platform(tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    names = run("git", "ls-files", "dedup", "delivery", "sinks", "connectors").split()
    for name in (*names, "pyproject.toml", "hatch_build.py", "README.md"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    monkeypatch.setenv("CC", "/nowhere/cc")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    assert "arrays do the work of dedup/compiled" in done.stdout + done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    assert built.stem.endswith("-py3-none-any")
