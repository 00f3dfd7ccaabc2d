"""A worker process that tests kill: every lane of a pipeline, until nothing is left to do.

What it is: a program. Its arguments are a pipeline as JSON, a file that appears when no more records
come in, and by how many milliseconds this host's clock is ahead of the others'.
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

import delivery.host.worker
from dedup.errors import Fenced, Indeterminate, Unavailable
from delivery.host.clock import SystemClock
from delivery.host.worker import Worker
from delivery.points import At, nowhere
from tests.acceptance.lifeline import hold
from tests.acceptance.pricing import Pipeline

#: How it ends if a server did not answer.
AWAY = 75


class Ahead(SystemClock):
    """The clock of a host that nobody has set right."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """Return the wrong time."""
        return super().now_ms() + self.ahead_ms


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
        Ahead.ahead_ms = int(sys.argv[3])
        vars(delivery.host.worker)["SystemClock"] = Ahead
        main(Pipeline(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    except (Unavailable, Indeterminate, Fenced) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(AWAY)
