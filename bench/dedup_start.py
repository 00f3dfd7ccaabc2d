"""`python -m bench.dedup_start DIRECTORY BATCHES [forked]`: one verdict, and how long it took.

What it is: the process that `dedup-start` measures, and with "endless" batches behind the verdict the
one that it kills. With "forked" it is one that another has forked, with everything loaded, as
`delivery.daemon` forks Spark's workers.
What it must not know: how the directory was filled, what other benchmarks are made of: everything
that is imported here is in the figures.

Invariants:
    The memory it tells is the kernel's count of its anonymous pages, before the index was opened and
    at most until the end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from bench.generated import BATCH_IDS, BUCKET_SEALS, NAME, GeneratedLane
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.local import Home, LaneIndex

#: It says that it works after so many batches.
WORKED = 2
ENDLESS, FORKED = "endless", "forked"


def main(directory: Path, batches: float, began: float | None = None) -> None:
    """Say how long the first verdict took; go on for some batches, and look at memory meanwhile.

    Args:
        directory: what others left.
        batches: how many.
        began: when this process was forked; None: it began with Python's own start.
    """
    loaded, clock = time.perf_counter(), time.time()
    before = _anonymous()
    lane = GeneratedLane(f"sqlite:{directory / 'catalog.db'}", BATCH_IDS, BUCKET_SEALS)
    index = LaneIndex(
        lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT, home=Home(directory / "home")
    )
    index.catch_up(lane.head)
    known = index.decided(lane.store.ids(1))
    ended, now = time.perf_counter(), time.time()
    assert known.all(), "no id is ever lost"
    assert index.decided(lane.store.ids(lane.head.ref.seq)).all(), "nor one of the last seal"
    assert index.stats.counters.rebuilds == 0, "a warm start reads no segment but the last"
    done, most = 0, _anonymous()
    while done < batches:
        done += 1
        ids = lane.store.ids(lane.head.ref.seq + 1)
        assert index.decided(ids).mean() < 0.01, "fresh ids are fresh"
        assert index.took(*lane.append()), "nobody else writes this lane"
        most = max(most, _anonymous())
        if done == WORKED:
            print("working", file=sys.stderr, flush=True)
    stats = index.stats
    index.close()
    lane.close()
    import psutil  # noqa: PLC0415 - it would be in the figures

    began = began or psutil.Process().create_time()
    facts = {
        "import ms": (clock - began) * 1000,
        "index ms": (ended - loaded) * 1000,
        "process ms": (now - began) * 1000,
        "M ids": stats.ids / 1e6,
        "memory bytes/id": (most - before + stats.filter_bytes) / stats.ids,
        "anonymous growth MB": (most - before) / 1e6,
    }
    print(json.dumps(facts))


def _anonymous() -> int:
    """Return the bytes of this process that no file stands behind."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def fork(directory: Path, batches: float) -> int:
    """Do the same in a process of its own that has nothing to load; return how it ended."""
    gc.freeze()  # as the daemon does: no fork has to copy what is loaded
    began = time.time()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    main(directory, batches, began)
    return 0


if __name__ == "__main__":
    place, many = Path(sys.argv[1]), float("inf" if sys.argv[2] == ENDLESS else sys.argv[2])
    if sys.argv[3:] == [FORKED]:
        sys.exit(fork(place, many))
    main(place, many)
