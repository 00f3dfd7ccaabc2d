"""kill -9 at every step of a merge of runs, of a compaction and of a bucket drop: no id is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Points that `make test` kills at, of the thousands of lines of each job.
POINTS = 40
#: And `make crash`.
POINTS_DEEP = 2_000


def kill(job: str, directory: Path, points: int) -> int:
    """Run a job in a process of its own; return how many lines there were to be killed at."""
    command = [sys.executable, "-m", "tests.unit.killing", job, str(directory), str(points)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("job", ["runs", "catalog"])
def test_killed_at_many_lines(job, tmp_path):
    assert kill(job, tmp_path, POINTS) > POINTS


@pytest.mark.slow
@pytest.mark.parametrize("job", ["runs", "catalog"])
def test_killed_at_thousands_of_lines(job, tmp_path):
    assert kill(job, tmp_path, POINTS_DEEP) > POINTS
