"""What forks Spark's Python workers on this machine, with everything a task needs loaded already.

What it is: PySpark's own daemon behind imports. A worker that is killed is replaced by a fork, which
then has not to load for a second, on a busy machine for several, what a task is made of. And a
worker whom Spark no longer listens to, as at the end of a job, ends without a word.
What it must not know: what tasks do.

Invariants:
    Of what a worker runs into, only that nobody listens is kept back: that is no failure of his.
    Nothing that is loaded here starts a thread of ours or opens anything: a fork keeps neither.
    Of the libraries' threads OpenBLAS has none here, and jemalloc's comes back after a fork.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from importlib import import_module
from typing import ParamSpec

from delivery.host import adapters

__all__ = ["main"]

_P = ParamSpec("_P")

#: Numpy makes threads when it is loaded, unless it is told. Tasks have one core each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


#: What a task needs, ours and others'.
LOADED = ("pyspark.worker", "delivery.microbatch.task", "delivery.resident.task")


def main() -> None:
    """Load, and be PySpark's daemon."""
    from pyspark import daemon  # noqa: PLC0415 - nobody else needs Spark to import this

    for name in LOADED:
        import_module(name)
    adapters.load()
    # What is here stays: no collection of cycles has to touch it, and so no fork to copy it.
    gc.freeze()
    daemon.worker = _unheard(daemon.worker)
    daemon.manager()


def _unheard(worker: Callable[_P, int]) -> Callable[_P, int]:
    """Return a worker that fails where Spark has hung up, and leaves no traceback in its log."""

    def work(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return worker(*args, **kwargs)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return work


if __name__ == "__main__":
    main()
