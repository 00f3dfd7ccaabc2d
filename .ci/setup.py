"""Brings `.venv` to what `requirements.lock` and `pyproject.toml` say; does nothing when it is there.

What it is: the whole of `make setup`, with nothing but the standard library.
What it must not know: what the project does.

Invariants:
    Java is looked for first: without it, nothing else happens.
    A stamp is written after the work it vouches for, so that a set-up killed anywhere is redone.
    Two set-ups of one checkout wait for each other; two checkouts share nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
#: What an editable install is made from, and the compiled library.
BUILT_FROM = (
    "pyproject.toml",
    "hatch_build.py",
    "dedup/compiled/making.py",
    "dedup/compiled/kernels.c",
)
#: Builds what is published as source only (pyspark, pybloom-live), in the version of the lock rather
#: than in whatever is newest today; hence installed first.
BUILDER = "setuptools"


def main() -> int:
    """Set up whatever is missing."""
    if subprocess.run([sys.executable, ROOT / "delivery/services/java.py"], check=False).returncode:
        return 1
    # An unknown interpreter behind .venv, or a checkout that was moved, means another environment.
    wanted = digest(LOCK.read_bytes(), ".".join(map(str, sys.version_info[:3])), str(ROOT))
    # Another compiler may do what the last one could not.
    compiler = str(shutil.which((os.environ.get("CC") or "cc").split()[0]))
    installed = digest(wanted, compiler, *((ROOT / name).read_bytes() for name in BUILT_FROM))
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache" / "setup.lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        if read(VENV / "stamp-lock") != wanted:
            create()
            (VENV / "stamp-lock").write_text(wanted)
        if read(VENV / "stamp-project") != digest(installed, *libraries()):
            pip("--no-deps", "--no-build-isolation", "--editable", ROOT)
            (VENV / "stamp-project").write_text(digest(installed, *libraries()))
    return 0


def libraries() -> list[str]:
    """Name what was made beside the sources: none without a compiler, and that is no reason to try again."""
    return sorted(path.name for path in ROOT.glob("dedup/compiled/libkernels.*"))


def create() -> None:
    """Make the environment anew and install the lock into it, every file checked against its hash."""
    began = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"Setting up .venv with Python {version} and the packages of {LOCK.name}: about a minute.",
        flush=True,
    )
    shutil.rmtree(VENV, ignore_errors=True)
    # The interpreter behind a venv, because that venv may be the one just removed.
    base = getattr(sys, "_base_executable", None) or sys.executable
    subprocess.run([base, "-m", "venv", VENV], check=True)
    blocks = re.split(r"\n(?=\S)", LOCK.read_text())
    first = [block for block in blocks if block.startswith(f"{BUILDER}==")]
    for part, name in ((first, "builder"), (blocks, "all")):
        requirements = VENV / f"requirements-{name}.txt"
        requirements.write_text("\n".join(part))
        pip("--no-deps", "--no-build-isolation", "--require-hashes", "--requirement", requirements)
    print(f"Set up in {time.monotonic() - began:.0f} s.", flush=True)


def pip(*arguments: str | Path) -> None:
    """Install into the environment; pip's own configuration says from where."""
    subprocess.run(
        [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments],
        check=True,
        env={**os.environ, "PIP_NO_INPUT": "1", "PIP_REQUIRE_VIRTUALENV": "1"},
    )


def digest(*parts: str | bytes) -> str:
    """Name a state of the inputs."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\0")
    return whole.hexdigest()


def read(path: Path) -> str:
    """Read a stamp; an absent one says nothing."""
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failure:
        sys.exit(
            f"Set-up stopped: `{' '.join(map(str, failure.cmd))}` failed; its message stands above. Run it again: it starts where it has to."
        )
