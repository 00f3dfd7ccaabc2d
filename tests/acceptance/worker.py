"""A worker process that tests kill: every lane of a pipeline, until nothing is left to do.

What it is: a program. Its arguments are a pipeline as JSON, and a file that appears when no more
records come in.
What it must not know: who kills it, when.

Invariants:
    It ends with 0 only if everything in the input topics is sealed, delivered and acknowledged.
    It ends with `AWAY` if the world was away, and may be started again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dedup.errors import Fenced, Indeterminate, Unavailable
from delivery.host.worker import Worker
from delivery.points import At, nowhere
from tests.acceptance.lifeline import hold
from tests.acceptance.pricing import Pipeline

#: How it ends if a server did not answer.
AWAY = 75


def main(pipeline: Pipeline, complete: Path) -> None:
    """Run every lane to the end."""
    at: At = nowhere
    if "DELIVERY_KILL_AT" in os.environ:
        from delivery.host.killing import killer  # noqa: PLC0415 - as hosts do it

        at = killer()
    worker = Worker(pipeline.plan, at=at)
    for spec in pipeline.stages:
        worker.open(spec, range(worker.topic(spec.reads).partitions), {})
    while True:
        ended = complete.exists()
        if not worker.turn() and ended and done(worker):
            break
    sys.stdout.write(json.dumps(worker.progress().document()) + "\n")
    worker.close()


def done(worker: Worker) -> bool:
    """Tell whether nothing is left; a stage's input has ended once those before it are done."""
    return all(lane.idle for lane in worker.lanes) and all(
        lane.lag == 0 for lane in worker.progress().lanes
    )


if __name__ == "__main__":
    hold()
    try:
        main(Pipeline(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    except (Unavailable, Indeterminate, Fenced) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(AWAY)
