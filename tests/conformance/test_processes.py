"""Several processes on one catalog: races with one winner, and kill -9 of writers.

Allowed after a kill: a seal that is there although nobody was told (the outcome was unknown).
Never allowed: a seal that somebody was told of and that is gone, two winners of one position, a
gap, outputs that are not those sealed, a lock that the dead keep.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.model import Attempt, Head, Incarnation
from tests.conformance.values import first

WRITER = Path(__file__).with_name("writer.py")
WAIT_SECONDS = 60
RACERS = 8
RACE_SEQ_MAX = 60
#: So many seals that no writer comes to an end before it is killed.
ENDLESS = 1_000_000
#: What a writer says while it seals once; the last line before its death is one of so many.
LINES_MAX = 30
#: A writer that has said so much since somebody's death, what its pipe held included, and sealed
#: nothing, never will.
SILENT_LINES_MAX = 20_000
#: No group of writers takes so long; then they are killed, and whoever listens is told.
STUCK_SECONDS = 300

Spoken = list[list[str]]


class Writer:
    """A running writer.py and the lines it has said."""

    def __init__(self, url: str, lane: str, seq_max: int, bytes_max: int) -> None:
        arguments = [sys.executable, str(WRITER), url, lane, str(seq_max), str(bytes_max)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.spoken: Spoken = []

    def lines(self, count: int) -> None:
        """Hear `count` more lines."""
        for _ in range(count):
            line = self.process.stdout.readline()
            assert line, (
                f"the writer ended with {self.process.wait(WAIT_SECONDS)} "
                f"after {self.spoken[-3:]}; {-signal.SIGKILL} is also who was stuck"
            )
            self.spoken.append(line.split())

    def seal_above(self, seq: int) -> None:
        """Hear it seal something above `seq`."""
        for _ in range(SILENT_LINES_MAX):
            self.lines(1)
            word, *rest = self.spoken[-1]
            if word == "sealed" and int(rest[0]) > seq:
                return
        raise AssertionError(f"it seals nothing above {seq}: {self.spoken[-3:]}")

    def go(self) -> None:
        """Let it begin."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it as `kill -9` does, and hear what it had said until then."""
        self.process.kill()
        self.rest()

    def rest(self) -> int:
        """Hear everything until its end; return its exit code."""
        # A line torn by the kill was never said.
        self.spoken += [ln.split() for ln in self.process.stdout if ln.endswith("\n")]
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def writers(
    number: int, url: str, lane: str, seq_max: int, bytes_max: int
) -> Iterator[list[Writer]]:
    """Start writers, wait until all are ready, and let them go at once."""
    running = [Writer(url, lane, seq_max, bytes_max) for _ in range(number)]
    watchdog = threading.Timer(STUCK_SECONDS, lambda: [writer.process.kill() for writer in running])
    watchdog.start()
    try:
        for writer in running:
            writer.lines(1)
            assert writer.spoken == [["ready"]]
        for writer in running:
            writer.go()
        yield running
    finally:
        watchdog.cancel()
        watchdog.join()
        for writer in running:
            writer.process.kill()
            writer.process.wait(WAIT_SECONDS)
            writer.process.stdin.close()
            writer.process.stdout.close()


def start_lane(catalog: Catalog, lane: str) -> Head:
    """Create the lane that the writers share."""
    head, seal = first()
    assert catalog.create(lane, head, seal)
    return head


def said(running: list[Writer], word: str) -> dict[int, list[str]]:
    """Collect the attempts that were said with a word, by seq."""
    found: dict[int, list[str]] = defaultdict(list)
    for writer in running:
        for kind, *rest in writer.spoken:
            if kind == word:
                found[int(rest[0])].append(rest[1] if len(rest) > 1 else "")
    return found


def check(catalog: Catalog, lane: str, owner: Incarnation, since: int) -> dict[int, Attempt]:
    """Read back every seal above `since` with its outputs; return the winners by seq."""
    row = catalog.load(lane)
    seals = catalog.seals(lane, owner, since + 1, row.head.ref.seq)
    assert [seal.ref.seq for seal in seals] == list(range(since + 1, row.head.ref.seq + 1))
    for seal in seals:
        assert catalog.get(Blob.OUTPUTS, lane, seal) is not None, f"outputs of {seal.ref} are lost"
    return {seal.ref.seq: seal.ref.attempt for seal in seals}


def test_eight_processes_race_for_one_lane(shared_url, lane):
    """One winner an entry, and every loser learns who won."""
    catalog = open_catalog(shared_url)
    owner = start_lane(catalog, lane).ref.incarnation
    with writers(RACERS, shared_url, lane, RACE_SEQ_MAX, 6000) as running:
        codes = [writer.rest() for writer in running]
    assert codes == [0] * RACERS
    winners = check(catalog, lane, owner, 0)
    assert catalog.load(lane).head.ref.seq == RACE_SEQ_MAX
    sealed = said(running, "sealed")
    assert {seq: [attempt.hex()] for seq, attempt in winners.items()} == sealed
    lost = said(running, "lost")
    assert {seq: set(names) for seq, names in lost.items()} == {
        seq: {winners[seq].hex()} for seq in lost
    }
    tried = Counter(len(attempts) for attempts in said(running, "sealing").values())
    assert max(tried) > 1, "nobody raced"
    assert catalog.load(lane).ack.seq == max(said(running, "acknowledged"))
    catalog.store.close()


def kill_rounds(url: str, lane: str, rounds: int, seed: int) -> None:
    """Let two writers race and kill one after the other, at any moment; each time check all."""
    rng = random.Random(seed)
    catalog = open_catalog(url)
    owner = start_lane(catalog, lane).ref.incarnation
    for number in range(rounds):
        since = catalog.load(lane).head.ref.seq
        bytes_max = rng.choice((2_000, 100_000, 500_000))
        with writers(2, url, lane, ENDLESS, bytes_max) as running:
            victim, survivor = running
            victim.lines(rng.randint(1, LINES_MAX))
            victim.kill()
            at_death = catalog.load(lane).head.ref.seq
            survivor.seal_above(at_death)  # whoever dies leaves no lock behind
            survivor.lines(rng.randint(1, LINES_MAX))
            survivor.kill()
        winners = check(catalog, lane, owner, since)
        where = f"round {number} of seed {seed}"
        for seq, attempts in said(running, "sealed").items():
            assert [winners[seq].hex()] == attempts, (
                f"seal {seq} was acknowledged and lost, {where}"
            )
        for seq, names in said(running, "lost").items():
            assert {winners[seq].hex()} == set(names), f"a loser of {seq} was misled, {where}"
        attempted = {name for names in said(running, "sealing").values() for name in names}
        assert {attempt.hex() for attempt in winners.values()} <= attempted, where
        acked = max(said(running, "acknowledged"), default=0)
        assert catalog.load(lane).ack.seq >= acked, f"an acknowledgement was lost, {where}"
    catalog.store.close()


def test_kill_9_loses_nothing_that_was_acknowledged(shared_url, lane):
    kill_rounds(shared_url, lane, 20, random.randrange(1 << 32))


@pytest.mark.slow
def test_kill_9_two_hundred_times(shared_url, lane):
    kill_rounds(shared_url, lane, 200, random.randrange(1 << 32))
