"""What a user installs: the wheel, built by the pinned backend, and what it wants, without a registry.

What it is: `build`, `wanted`, `link`.
What it must not know: what is done with it.

Invariants:
    Whatever a wheel wants is linked from the environment that runs the tests, which the lock made, so
    pip finds it there and asks nobody.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path) -> str:
    """Run a command that must go well; return what it prints."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(where: Path) -> Path:
    """Build the wheel into a directory."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", where)
    (built,) = where.glob("*.whl")
    return built


def wanted(project: str) -> dict[str, Distribution]:
    """Give what our project requires, with the extras that are named, and what that requires in turn."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(project)]
    ours = canonicalize_name(waiting[0].name)
    seen: set[str] = set()
    while waiting:
        asking = waiting.pop()
        for text in distribution(asking.name).requires or ():
            requirement = Requirement(text)
            asked = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *asking.extras)
            )
            if asked and str(requirement) not in seen:
                seen.add(str(requirement))
                waiting.append(requirement)
                if (name := canonicalize_name(requirement.name)) != ours:
                    found[name] = distribution(name)
    return found


def link(distributions: Iterable[Distribution], site: Path) -> None:
    """Put distributions where another interpreter finds them."""
    for one in distributions:
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(one.locate_file(top)))
