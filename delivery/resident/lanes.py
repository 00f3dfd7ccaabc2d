"""Which task runs which lane.

What it is: a function of stage, partition and the number of tasks, and nothing else.
What it must not know: who runs what just now.

Invariants:
    For one number of tasks every lane has exactly one, whoever asks and whenever.
    Correctness does not depend on it: two tasks on one lane are fenced by the append.
    A partition that appears changes nothing for those that were there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from delivery.host.spec import StageSpec

__all__ = ["count", "share"]

#: Partitions of the topic a stage reads, by the stage's name.
Partitions = Mapping[str, int]


def share(
    stages: Sequence[StageSpec], partitions: Partitions, tasks: int, number: int
) -> Iterator[tuple[StageSpec, list[int]]]:
    """Yield what one task of `tasks` runs: its partitions of each stage, in order."""
    assert 0 <= number < tasks, "tasks are counted from 0"
    for place, spec in enumerate(stages):
        # Each stage begins at the next task, or single partitions would all meet in the first.
        mine = [p for p in range(partitions[spec.name]) if (place + p) % tasks == number]
        yield spec, mine


def count(partitions: Partitions) -> int:
    """Return how many lanes there are."""
    return sum(partitions.values())
