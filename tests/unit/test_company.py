"""Appends share a commit where a commit takes long, and go at once where it does not."""

from __future__ import annotations

import pytest

from delivery.host.company import Company


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


def grouped(lane_ms: float, commit_ms: float, lanes: int = 8) -> float:
    """Return how many appends share a commit once the times are known."""
    clock = Clock()
    company = Company(clock)
    commits = appends = 0

    def commit() -> None:
        with company.commit():
            clock.passes(commit_ms / 1000)

    for turn in range(100):
        counted = turn >= 50
        ready = 0
        for _ in range(lanes):
            clock.passes(lane_ms / 1000)
            company.prepared(lane_ms / 1000)
            ready += 1
            if company.enough():
                commit()
                commits += counted
                appends += counted * ready
                ready = 0
        if ready:
            commit()
            commits += counted
            appends += counted * ready
    return appends / commits


@pytest.mark.parametrize("lane_ms", [3.0, 500.0])
def test_where_the_disk_is_quick_nobody_waits_for_another_lane(lane_ms):
    assert grouped(lane_ms, commit_ms=1.0) == 1


def test_where_the_disk_is_slow_all_lanes_share_a_commit():
    assert grouped(lane_ms=1.0, commit_ms=50.0) == 8


def test_nobody_waits_for_longer_than_a_commit_takes():
    assert grouped(lane_ms=3.0, commit_ms=10.0) == pytest.approx(4, abs=1)


def test_what_is_ready_is_forgotten_when_a_commit_took_it():
    clock = Clock()
    company = Company(clock)
    for _ in range(50):
        with company.commit():
            clock.passes(1.0)
    assert not company.enough()
    clock.passes(2.0)
    assert company.enough(), "it has waited"
    with company.commit():
        clock.passes(1.0)
    assert not company.enough(), "what comes after it has not"
