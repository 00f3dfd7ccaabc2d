"""What the suites over the micro-batch engine share: jobs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from delivery.host.killing import VARIABLE
from tests.acceptance.kit import ROOT, Trial, Worker

#: A session takes a quarter of a minute to start on a busy machine, and queries start in it.
JOB_SECONDS_MAX = 300.0
#: What the line of a job begins with that says how it went.
PROGRESS = "progress: "


def job(trial: Trial, kill_at: str = "", **options: Any) -> Worker:
    """Start a process with a Spark session that runs the trial's pipeline."""
    words = [json.dumps(asdict(trial.pipeline)), str(trial.complete), json.dumps(options)]
    command = [sys.executable, "-m", "tests.integration.microbatch_job", *words]
    environment = os.environ | ({VARIABLE: kill_at} if kill_at else {})
    said = trial.directory / f"job.{time.monotonic_ns()}.log"
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    return Worker(process, said)


def ended(worker: Worker) -> None:
    """Wait for the end of a job that has to end well."""
    worker.ended(seconds_max=JOB_SECONDS_MAX)


def progress(worker: Worker) -> dict[str, Any]:
    """Return the last progress of a job that ended well."""
    # Spark's workers write into the same log, until long after.
    [line] = [x for x in worker.said.read_text().splitlines() if x.startswith(PROGRESS)]
    found: dict[str, Any] = json.loads(line.removeprefix(PROGRESS))
    return found
