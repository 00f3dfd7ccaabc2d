"""Which partitions a process of a group takes over, and what its name tells of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from delivery.receiver.share import PATIENCE_SECONDS, Seen, choose, is_gone, member


def seen(*owners: str | None, **more: object) -> list[Seen]:
    return [Seen(partition=at, owner=owner, **more) for at, owner in enumerate(owners)]


@pytest.mark.parametrize(
    ("lanes", "taken"),
    [
        (seen(None, None), [{0}, {1}]),
        (seen("me", "me"), []),
        (seen("a", "me"), []),
        # One at a time from whoever has most, until the share is fair.
        (seen("a", "a", "a", "me"), [{0, 1, 2}]),
        (seen("a", "a", "b"), [{0, 1}]),
        (seen("a", "b"), []),
        (seen("a"), []),
        # What nobody works on, whoever has how much.
        (seen("a", "me", gone=True), [{0}]),
        (seen("a", "me", lag=1, still_seconds=PATIENCE_SECONDS), [{0}]),
        (seen("a", "me", lag=1, still_seconds=PATIENCE_SECONDS - 1), []),
        (seen("a", "me", lag=0, still_seconds=99 * PATIENCE_SECONDS), []),
        # An entry that was collected says nothing of its owner, who may live.
        (seen("", "me", lag=0), []),
    ],
)
def test_a_process_takes_what_is_free_or_its_fair_share(lanes, taken):
    found = choose("me", lanes, PATIENCE_SECONDS, random.Random(1))
    assert len(found) == len(taken)
    assert all(one in among for one, among in zip(found, taken, strict=True))


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_shares_become_fair_and_stay_so(processes, partitions):
    """However processes come, in some rounds each has its share, and then nothing moves."""
    dice = random.Random(processes * 100 + partitions)
    owners: list[str | None] = [None] * partitions
    names = [f"p{number}" for number in range(processes)]
    for round_ in range(4 * partitions + processes):
        for name in names[: 1 + round_]:
            for taken in choose(name, seen(*owners), PATIENCE_SECONDS, dice):
                owners[taken] = name
    counts = sorted(owners.count(name) for name in names)
    assert counts[0] >= partitions // processes
    assert counts[-1] <= -(-partitions // processes) + 1
    settled = list(owners)
    for name in names:
        assert choose(name, seen(*owners), PATIENCE_SECONDS, dice) == []
    assert owners == settled


def test_a_name_tells_whether_its_process_is_dead():
    assert not is_gone(member())
    assert member() != member()
    program = "from delivery.receiver.share import member; print(member(), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = child.stdout.readline().strip()
    assert not is_gone(name)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert is_gone(name)


def test_of_other_hosts_and_of_stages_nothing_is_known():
    host, pid, started, dice = member().rsplit(" ", 3)
    assert not is_gone(f"elsewhere {pid} 1 {dice}")
    assert is_gone(f"{host} {pid} {int(started) - 5000} {dice}"), "the number was used again"
    assert not is_gone("")
    assert not is_gone("rekey-1")
