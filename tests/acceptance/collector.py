"""A collector that dies again and again, beside whoever works: a program.

What it is: it collects and compacts the lanes of a pipeline in child processes; the n-th of them
dies by SIGKILL behind its n-th step. It ends once one has found fewer steps than that, and a file
says that no more records come in; its last word is how many died.
What it must not know: what the steps are, who writes the lanes.

Invariants:
    A child opens the catalog itself: nothing is inherited but the number of its last step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dedup import collect, compact
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.collect import Keep
from tests.acceptance.lifeline import hold
from tests.acceptance.pricing import POLL_SECONDS, Pipeline

#: Segments of two seals are worth a merge here.
PLAIN_MIN = 2


def steps(catalog: Catalog, pipeline: str) -> Iterator[None]:
    """Collect and compact the lanes of a pipeline, pausing behind each step."""
    keep = Keep()
    prefix = f"{pipeline}/"
    for lane in sorted(name for name in catalog.store.lanes() if name.startswith(prefix)):
        for plan in (
            collect.survey(catalog, lane, keep),
            compact.survey(catalog, lane, keep.window_ms, plain_min=PLAIN_MIN),
        ):
            for step in plan:
                if not step.perform(catalog):
                    break  # somebody moved what it compared: the plan is void
                yield


def die_behind(last: int, pipeline: Pipeline) -> None:
    """Perform so many steps and die; come back if there are not so many."""
    store = open_store(pipeline.catalog)
    for number, _ in enumerate(steps(Catalog(store), pipeline.name), start=1):
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def main(pipeline: Pipeline, complete: Path) -> int:
    """Let children die until there is no more to collect; return how many did."""
    died, last = 0, 1
    while True:
        no_more = complete.exists()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                die_behind(last, pipeline)
                status = 0
            finally:
                os._exit(status)
        _, how = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(how)
        assert code in (0, -signal.SIGKILL), f"a collector ended with {code}"
        died += code != 0
        if code == 0 and no_more:
            return died
        last = last + 1 if code else 1
        time.sleep(0.0 if code else POLL_SECONDS)


if __name__ == "__main__":
    hold()
    sys.stdout.write(f"{main(Pipeline(**json.loads(sys.argv[1])), Path(sys.argv[2]))}\n")
