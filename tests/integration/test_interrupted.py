"""Ctrl-C of a job on real servers: what the user reads in the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.resident_kit import Pipeline, until

SECONDS_MAX = 120.0
JOB = """
from delivery import Delivery
from delivery.spark import spark_session

d = Delivery(catalog="sqlite:shop.db", kafka={kafka!r}, pipeline="shop")

@d.stage(reads={reads!r}, writes={writes!r}, id_from="header:id")
def price(record):
    return record

d.start(spark_session("shop"), **{options!r}).awaitTermination()
"""


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a job as a shell does: in a process group of its own, which Ctrl-C reaches as a whole."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    line, where = [sys.executable, str(program)], program.parent
    with subprocess.Popen(
        line, cwd=where, stderr=subprocess.PIPE, text=True, env=kept, start_new_session=True
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("engine", ["resident", "micro-batch"])
def test_ctrl_c_of_a_job_is_one_line_of_ours_and_nothing_of_javas(kafka, unique, tmp_path, engine):
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    pipeline.send(range(100))
    options = {"engine": engine}
    if engine == "micro-batch":
        options["checkpoint"] = str(tmp_path / "checkpoint")
    program = tmp_path / "shop.py"
    places = {"kafka": kafka.bootstrap, "reads": pipeline.raw, "writes": pipeline.priced}
    program.write_text(JOB.format(**places, options=options))
    with running(program) as job:
        until(lambda: pipeline.ends(pipeline.priced) >= 100 or job.poll() is not None)
        os.killpg(job.pid, signal.SIGINT)
        _, told = job.communicate(timeout=SECONDS_MAX)
    pipeline.close()
    assert job.returncode == -signal.SIGINT, told
    lines = [line for line in told.splitlines() if line.startswith("delivery: ")]
    assert lines == [
        "delivery: interrupted; shop is stopped, nothing is lost: start it again, it goes on"
    ]
    assert "Traceback" not in told
    assert "ERROR" not in told, told
