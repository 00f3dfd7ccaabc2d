"""The rules about filters are needed on a host too: each sabotage of `dedup.local` is seen.

The explorer runs the reference index. The index that hosts use is held to it by a model in
`tests/property/test_local_model.py`; these are the two rules that matter most, broken there.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from dedup.local import Home, LaneIndex
from tests.crash.sabotage import Edit, Mutant, planted
from tests.unit.local_lanes import NAME, TINY, WINDOW_MS, Lane

_INDEX = "dedup.local.index:LaneIndex."

MUTANTS = (
    Mutant(
        "tag moved without the winner's segment",
        "winner",
        (
            Edit(
                _INDEX + "_follow",
                "self._add(self._intake.parts(seal), seal)",
                "self._add((), seal)",
            ),
        ),
    ),
    Mutant(
        "filter of another history trusted",
        "restored",
        (
            Edit(
                _INDEX + "_follow",
                "not self._intake.on_history(tag, head)",
                "tag.seq > head.ref.seq",
            ),
        ),
    ),
    Mutant(
        "file of another history trusted",
        "restarted",
        (
            Edit(
                _INDEX + "_follow",
                "not self._intake.on_history(tag, head)",
                "tag.seq > head.ref.seq",
            ),
            Edit(
                _INDEX + "_fits",
                "self._intake.on_history(tag, head) or self._intake.beyond(tag, head)",
                "tag.seq <= head.ref.seq",
            ),
        ),
    ),
)


def story(name: str, root: Path) -> None:
    """Seal, win beside another process, restore: after each the index knows what is decided."""
    lane = Lane(inline_bytes_max=0)
    with ExitStack() as stack:

        def begin() -> LaneIndex:
            home = Home(root)
            made = LaneIndex(lane.catalog, NAME, window_ms=WINDOW_MS, home=home, limits=TINY)
            return stack.enter_context(made)

        index = begin()
        _seal(lane, 3)
        _check(index, lane)
        backup = lane.backup()
        _seal(lane, 2)
        _check(index, lane)
        if name == "winner":
            return
        # What was sealed since is given up; as much is sealed in its place, and more.
        lane.restore(backup)
        _seal(lane, 4)
        if name == "restarted":
            index.close()
            index = begin()
        _check(index, lane)


def _seal(lane: Lane, seals: int) -> None:
    for _ in range(seals):
        lane.append([lane.fresh() for _ in range(4)])


def _check(index: LaneIndex, lane: Lane) -> None:
    index.catch_up(lane.head)
    asked, buckets = lane.asked(lane.ever)
    known = index.decided(asked, buckets).tolist()
    for one, is_known in zip(lane.ever, known, strict=True):
        assert is_known == (one in lane.sealed), "decided, and on this history, or fresh"


@pytest.mark.parametrize("name", sorted({mutant.world for mutant in MUTANTS}))
def test_the_story_holds(name: str, tmp_path: Path) -> None:
    story(name, tmp_path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_story_kills_the_mutant(mutant: Mutant, tmp_path: Path) -> None:
    with planted(mutant), pytest.raises(AssertionError, match="decided, and on this history"):
        story(mutant.world, tmp_path)
