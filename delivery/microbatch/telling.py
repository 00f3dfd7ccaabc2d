"""What the driver tells all tasks of a job: text that travels as a local property of Spark's.

What it is: `telling`, a block whose jobs carry it, and `told`, which a task asks.
What it must not know: what is told.

Invariants:
    Tasks of every stage and every attempt of a job get it, however deep in a plan they are.
    It belongs to the thread that asks for the job, and to no job behind the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["telling", "told"]


@contextmanager
def telling(context: SparkContext, name: str, text: str) -> Iterator[None]:
    """Tell the tasks of whatever jobs this thread asks for in a block."""
    context.setLocalProperty(name, text)
    try:
        yield
    finally:
        context.setLocalProperty(name, "")


def told(name: str) -> str | None:
    """Return what this task was told; None: nothing, or it is no task."""
    from pyspark import TaskContext  # noqa: PLC0415 - a task is the only place that has one

    context = TaskContext.get()
    return (context.getLocalProperty(name) or None) if context else None
