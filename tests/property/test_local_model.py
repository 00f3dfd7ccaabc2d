"""The index on the host beside the exact one: whatever happens to lanes, files and processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from dedup.filters import ENGINES, Filters
from dedup.formats.segment import BUCKET_MS
from dedup.index import ExactIndex, Memo
from dedup.local import Home, LaneIndex
from tests.unit.local_lanes import NAME, TINY, WINDOW_MS, Lane

PROCESSES = 3
#: Ids that a check adds to those ever sealed.
STRANGERS = 5

counts = st.integers(0, 9)
processes = st.integers(0, PROCESSES - 1)
filters = st.builds(
    Filters,
    engine=st.sampled_from(sorted(ENGINES)),
    rate=st.sampled_from([0.001, 0.1]),
    key=st.sampled_from([None, b"k" * 16]),
)


class Hosts(stateful.RuleBasedStateMachine):
    """One lane, several processes on one home, and the exact index as the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="delivery-home-"))
        self.memo = Memo()
        self.backups = []

    @stateful.initialize(
        inline_bytes_max=st.sampled_from([0, 4096]),
        inline_ids=st.sampled_from([1 << 20, 12]),
        aside_ids=st.sampled_from([1 << 20, 3]),
        filters=filters,
    )
    def begin(self, inline_bytes_max, inline_ids, aside_ids, filters):
        self.lane = Lane(inline_bytes_max=inline_bytes_max)
        self.limits = replace(TINY, inline_ids=inline_ids, aside_ids=aside_ids)
        self.filters = filters
        self.indexes = [self.index() for _ in range(PROCESSES)]

    def index(self) -> LaneIndex:
        return LaneIndex(
            self.lane.catalog,
            NAME,
            window_ms=WINDOW_MS,
            home=Home(self.root),
            filters=self.filters,
            limits=self.limits,
        )

    # What lanes do ----------------------------------------------------------------------------

    @stateful.rule(
        external=counts,
        internal=st.dictionaries(st.integers(0, 2), counts, max_size=2),
        buckets=st.sampled_from([0, 0, 0, 1, 3]),
        read=st.sampled_from([None, None, 0, 2]),
        writer=st.none() | processes,
    )
    def append(self, external, internal, buckets, read, writer):
        """Seal ids; some process that is up to date may have done it itself."""
        lane = self.lane
        index = None if writer is None else self.indexes[writer]
        if index is not None:
            index.catch_up(lane.head)
        now = lane.head.lane_time_ms // BUCKET_MS
        seal, parts = lane.append(
            [lane.fresh() for _ in range(external)],
            {now + at: [lane.fresh() for _ in range(count)] for at, count in internal.items()},
            step_ms=buckets * BUCKET_MS,
            read=None if read is None else max(0, lane.head.ref.seq - read),
        )
        if index is not None:
            assert index.took(seal, parts) or index.tag != lane.heads[-2].ref

    @stateful.rule(keep=st.none() | st.integers(0, 6))
    def collect(self, keep):
        last = self.lane.head.ref.seq
        self.lane.collect(None if keep is None else max(0, last - keep))

    @stateful.rule()
    def back_up(self):
        self.backups.append(self.lane.backup())

    @stateful.precondition(lambda self: self.backups)
    @stateful.rule(number=st.integers(0, 5))
    def restore(self, number):
        self.lane.restore(self.backups[number % len(self.backups)])
        self.backups.clear()

    @stateful.rule(which=processes, back=st.integers(1, 6))
    def look_back(self, which, back):
        """A process that is behind: whatever it is told, its append cannot win."""
        lane = self.lane
        head = lane.heads[max(0, len(lane.heads) - 1 - back)]
        if head.ref.incarnation == lane.head.ref.incarnation:
            self.indexes[which].catch_up(head)
            asked, buckets = lane.asked(lane.ever)
            known = self.indexes[which].decided(asked, buckets).tolist()
            assert {one for one, is_known in zip(lane.ever, known, strict=True) if is_known} <= set(
                lane.sealed
            )

    # What happens to processes and files ------------------------------------------------------

    @stateful.rule(which=processes)
    def restart(self, which):
        self.indexes[which].close()
        self.indexes[which] = self.index()

    @stateful.rule(chosen=filters)
    def choose(self, chosen):
        """Whoever starts from now on makes filters otherwise, beside those that run."""
        self.filters = chosen

    @stateful.rule(which=processes)
    def kill(self, which):
        """Leave everything as it lies; the system frees the locks of the dead."""
        workshop = self.indexes[which]._keeper._workshop
        if workshop is not None and workshop._lock is not None:
            os.close(workshop._lock)
            workshop._lock = None
        self.indexes[which]._keeper._background.close()
        self.indexes[which]._keeper._writer.close()
        self.indexes[which] = self.index()

    @stateful.rule(number=st.integers(0, 30), torn=st.booleans())
    def damage(self, number, torn):
        """Delete a file, or put one in its place that is too short."""
        self._rest()
        files = [path for path in self.root.rglob("*") if path.is_file()]
        if not files:
            return
        # Their names are random: of a kind, the oldest first.
        files.sort(key=lambda path: (path.name.partition("-")[0], path.stat().st_mtime_ns))
        path = files[number % len(files)]
        if torn:
            short = path.with_name("short")
            short.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            short.replace(path)
        else:
            path.unlink()

    @stateful.rule()
    def wipe(self):
        self._rest()
        shutil.rmtree(self.root, ignore_errors=True)

    def _rest(self) -> None:
        """Wait for work in threads, so that the same steps find the same files."""
        for index in self.indexes:
            for work in (index._keeper._background, index._keeper._writer._background):
                if work._future is not None:
                    work._future.exception()

    # What must hold ---------------------------------------------------------------------------

    @stateful.rule(which=processes)
    def check(self, which):
        self._check(self.indexes[which])

    def _check(self, index: LaneIndex) -> None:
        lane = self.lane
        index.catch_up(lane.head)
        oracle = ExactIndex(lane.catalog, NAME, WINDOW_MS, self.memo)
        oracle.catch_up(lane.head)
        strangers = [lane.fresh() for _ in range(STRANGERS)]
        ids = [*lane.ever, *strangers]
        asked, buckets = lane.asked(ids)
        known = index.decided(asked, buckets)
        assert np.array_equal(known, index.decided(asked, buckets))
        seen = index.first_seen(asked)
        read = max((read.seq for read in lane.head.read_seqs), default=-1)
        for one, is_known, origin in zip(ids, known.tolist(), seen, strict=True):
            # An internal id whose sender has been read past it is a remnant, and never asked for:
            # it may be held all the same, with whatever opened its bucket again.
            remnant = lane.ever.get(one, -1) >= 0 and lane.sealed.get(one, 0) <= read
            if oracle.holds(one) and not remnant:
                assert is_known, "a decided id is never fresh"
            if is_known:
                assert one in lane.sealed, "what is known was sealed on this very history"
                assert origin is not None
                assert lane.head.incarnation_of(origin[1]) == origin[0]
        assert [index.holds(one) for one in ids[-STRANGERS - 2 :]] == [
            origin is not None for origin in seen[-STRANGERS - 2 :]
        ]
        digested, digests = index.digests_of(asked)
        for one, has, digest in zip(ids, digested.tolist(), digests.tolist(), strict=True):
            assert not has or digest == int.from_bytes(one[:2], "little")

    def teardown(self):
        for index in getattr(self, "indexes", []):
            self._check(index)
            index.close()
        shutil.rmtree(self.root, ignore_errors=True)


Hosts.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHosts = Hosts.TestCase
