"""A collector that dies again and again, beside whoever works: a program.

What it is: it collects and compacts the lanes of a pipeline in child processes; the n-th of them
dies by SIGKILL behind its n-th step, or behind one of a kind behind which nobody died. It says each
time of which kind the step was, and ends once one has found nothing to do, and a file says that no
more records come in.
What it must not know: what the steps are, who writes the lanes.

Invariants:
    A child opens the catalog itself: nothing is inherited but the number of its last step.
    It says of what kind that step is after it has done it, and in front of its death.
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
from dedup.steps import KINDS
from tests.acceptance.lifeline import hold
from tests.acceptance.pricing import POLL_SECONDS, Pipeline

#: Segments of two seals are worth a merge here, and so are two merged ones; few are merged at once, so
#: that there are merged ones enough, however late this comes.
PLAIN_MIN, PLAIN_MAX, FAN = 2, 4, 2
#: So many entries stay: what an attempt left that lost against one of them is seen to be dead.
SEALS_KEPT = 6
#: How a child ends that has found nothing to do.
IDLE = 3


def steps(catalog: Catalog, pipeline: str) -> Iterator[str]:
    """Collect and compact the lanes of a pipeline; yield behind each step of what kind it was."""
    prefix = f"{pipeline}/"
    for lane in sorted(name for name in catalog.store.lanes() if name.startswith(prefix)):
        row = catalog.load(lane)
        keep = Keep(entries_after=row.head.ref.seq - SEALS_KEPT if row else None)
        for plan in (
            collect.survey(catalog, lane, keep),
            compact.survey(catalog, lane, keep.window_ms, plain_min=PLAIN_MIN),
        ):
            for step in plan:
                if not step.perform(catalog):
                    break  # somebody moved what it compared: the plan is void
                yield step.kind


def die_behind(last: int, met: set[str], pipeline: Pipeline, telling: int) -> int:
    """Perform so many steps, or one of a kind that is not met; tell of what kind it was, and die.

    Come back if there is neither, and say how many there were.
    """
    store, number = open_store(pipeline.catalog), 0
    for number, kind in enumerate(steps(Catalog(store), pipeline.name), start=1):
        if number == last or kind not in met:
            os.write(telling, kind.encode())
            os.kill(os.getpid(), signal.SIGKILL)
    store.close()
    return number


def main(pipeline: Pipeline, complete: Path) -> None:
    """Let children die until there is no more to collect; say behind which kind of step each did."""
    died: set[str] = set()
    last = 1
    while True:
        no_more = complete.exists()
        told, telling = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if die_behind(last, died, pipeline, telling) else IDLE
            finally:
                os._exit(status)
        _, how = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(how)
        assert code in (0, IDLE, -signal.SIGKILL), f"a collector ended with {code}"
        os.close(telling)
        with os.fdopen(told) as pipe:
            kind = pipe.read()
        assert (kind in KINDS) == (code < 0), f"ended with {code} behind {kind!r}"
        if kind:
            died.add(kind)
            sys.stdout.write(f"{kind}\n")
            sys.stdout.flush()
        if code == IDLE and no_more:
            return
        last = last + 1 if kind else 1
        time.sleep(0.0 if kind else POLL_SECONDS)


if __name__ == "__main__":
    hold()
    vars(compact).update(PLAIN_MAX=PLAIN_MAX, FAN=FAN)
    main(Pipeline(**json.loads(sys.argv[1])), Path(sys.argv[2]))
