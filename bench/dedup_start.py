"""`python -m bench.dedup_start DIRECTORY`: one verdict, and how long it took from the beginning.

What it is: the process that `dedup-start` measures.
What it must not know: how the directory was filled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from bench.dedup import BATCH_IDS, BUCKET_SEALS
from bench.generated import NAME, GeneratedLane
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.local import Home, LaneIndex


def main(directory: Path) -> None:
    """Say how long the first verdict took."""
    loaded = time.perf_counter()
    lane = GeneratedLane(f"sqlite:{directory / 'catalog.db'}", BATCH_IDS, BUCKET_SEALS)
    index = LaneIndex(
        lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT, home=Home(directory / "home")
    )
    index.catch_up(lane.head)
    known = index.decided(lane.store.ids(1))
    ended, now = time.perf_counter(), time.time()
    assert known.all(), "no id is ever lost"
    assert index.stats.counters.rebuilds == 0, "a warm start reads no segment"
    index.close()
    lane.close()
    began = psutil.Process().create_time()
    print(json.dumps({"index ms": (ended - loaded) * 1000, "process ms": (now - began) * 1000}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
