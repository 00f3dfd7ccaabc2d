"""A job on real servers is told to end, by Ctrl-C or SIGTERM: what the user reads in the terminal."""

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
from delivery import Delivery, stop_on_signal
from delivery.spark import spark_session

d = Delivery(catalog="sqlite:shop.db", kafka={kafka!r}, pipeline="shop")

@d.stage(reads={reads!r}, writes={writes!r}, id_from="header:id")
def price(record):
    return record

query = d.start(spark_session("shop"), **{options!r})
if {handled!r}:
    stop_on_signal(query)
query.awaitTermination()
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


@pytest.mark.parametrize(
    ("engine", "handled"), [("resident", False), ("micro-batch", False), ("resident", True)]
)
def test_the_end_of_a_job_is_said_at_once_and_when_it_has_come(
    kafka, unique, tmp_path, engine, handled
):
    """By Ctrl-C, and by SIGTERM where `stop_on_signal` was called; nothing of it is Java's."""
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    pipeline.send(range(100))
    options = {"engine": engine}
    if engine == "micro-batch":
        options["checkpoint"] = str(tmp_path / "checkpoint")
    program = tmp_path / "shop.py"
    places = {"kafka": kafka.bootstrap, "reads": pipeline.raw, "writes": pipeline.priced}
    program.write_text(JOB.format(**places, options=options, handled=handled))
    with running(program) as job:
        until(lambda: pipeline.ends(pipeline.priced) >= 100 or job.poll() is not None)
        if handled:
            job.terminate()
        else:
            os.killpg(job.pid, signal.SIGINT)
        _, told = job.communicate(timeout=SECONDS_MAX)
    pipeline.close()
    assert job.returncode == (0 if handled else -signal.SIGINT), told
    lines = [line for line in told.splitlines() if line.startswith(("delivery: ", "shop: ended"))]
    assert lines.pop(1).startswith(
        "shop: ended: 115 records read, 100 took effect, 15 were repeats"
    )
    assert lines == (
        ["delivery: stopping shop ...; another signal ends it at once"]
        if handled
        else [
            "delivery: stopping shop ...; Ctrl-C again ends it at once",
            "delivery: interrupted; shop is stopped, nothing is lost: start it again, it goes on",
        ]
    )
    assert "Traceback" not in told
    assert "ERROR" not in told, told
