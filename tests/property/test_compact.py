"""Compaction against a dictionary, in any order with seals, collectors, stale plans and restores."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dedup import backup
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.collect import Keep, Step
from dedup.collect import survey as survey_collection
from dedup.compact import span_max, survey
from dedup.formats.merged import merged_at
from dedup.formats.segment import BUCKET_MS
from dedup.index import ExactIndex
from tests.unit.segments_kit import LANE, Shelf, part, record_id

WINDOW_MS = 16 * BUCKET_MS


class Merging(RuleBasedStateMachine):
    """One lane, and what it must still hold."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf(MemoryStore())
        self.bucket = 0
        #: Of each id the seal that decided it, and the bucket it is in.
        self.model: dict[str, tuple[int, int]] = {}
        self.plans: list[list[Step]] = []

    @rule(count=st.integers(0, 3), moves=st.sampled_from([0, 0, 0, 1, 1, 5]))
    def seal(self, count: int, moves: int) -> None:
        """Seal new ids, perhaps in a later bucket."""
        self.bucket += moves
        seq = self.shelf.row.head.ref.seq + 1
        names = [f"{seq} {one} {len(self.model)}" for one in range(count)]
        parts = [part(self.bucket, names)] if names else []
        self.shelf.seal(*parts, lane_time_ms=self.bucket * BUCKET_MS)
        self.model |= dict.fromkeys(names, (seq, self.bucket))

    @rule()
    def plan_to_collect(self) -> None:
        self.plans.append(survey_collection(self.shelf.catalog, LANE, Keep(window_ms=WINDOW_MS)))

    @rule(plain_min=st.integers(1, 3))
    def plan_to_merge(self, plain_min: int) -> None:
        self.plans.append(survey(self.shelf.catalog, LANE, WINDOW_MS, plain_min=plain_min))

    @rule(data=st.data(), steps=st.integers(1, 9))
    def go_on_with_a_plan(self, data: st.DataObject, steps: int) -> None:
        """Perform some steps of any plan, however old; what is left of it may come later or never."""
        plans = [plan for plan in self.plans if plan]
        if not plans:
            return
        plan = data.draw(st.sampled_from(plans))
        now, plan[:] = plan[:steps], plan[steps:]
        if not all(step.perform(self.shelf.catalog) for step in now):
            plan.clear()

    @rule(back=st.integers(0, 4))
    def restore(self, back: int) -> None:
        """Put the lane back to a head of before, as a backup that was begun then has it."""
        catalog, row = self.shelf.catalog, self.shelf.row
        seq = max(row.head.ref.seq - back, row.head.past[-1].seq if row.head.past else 0)
        entries = {seal.ref.seq: seal for seal in catalog.history(LANE, row.head)}
        head = row.head
        if seq < head.ref.seq:
            if seq not in entries:
                return
            seal = entries[seq]
            # A head as it was: everything but lane time and reference stood still in these lanes.
            head = type(head)(
                ref=seal.ref,
                frontier=head.frontier,
                lane_time_ms=seal.lane_time_ms,
                minted_at_ms=seal.minted_at_ms,
                past=head.past,
            )
        store = MemoryStore()
        backup.restore(Catalog(store), backup.frames(catalog, [(LANE, head)]), self.shelf.fresh)
        self.shelf = Shelf(store, self.shelf.minted)
        self.plans = []
        self.bucket = head.lane_time_ms // BUCKET_MS
        self.model = {name: at for name, at in self.model.items() if at[0] <= seq}

    @invariant()
    def every_id_that_is_not_past_its_window_is_held_once(self) -> None:
        row = self.shelf.row
        index = ExactIndex(self.shelf.catalog, LANE, WINDOW_MS)
        index.catch_up(row.head)
        listed = self.shelf.held()
        assert len(listed) == len(set(listed))
        assert set(listed) <= {record_id(name) for name in self.model}
        for name, (_, bucket) in self.model.items():
            # A tier is held a little longer than its buckets, never shorter.
            if row.head.lane_time_ms < (bucket + 1) * BUCKET_MS + WINDOW_MS:
                assert index.holds(record_id(name)), name

    @invariant()
    def no_tier_spans_more_than_a_quarter_of_the_window(self) -> None:
        for slot in self.shelf.slots():
            found = merged_at(slot)
            assert found is None or found[0].bucket.span <= span_max(WINDOW_MS)

    def teardown(self) -> None:
        """Whatever was left half done: a last collection and nothing is left over."""
        for _ in range(2):
            self.shelf.collect(WINDOW_MS)
        assert self.shelf.stored() == set(self.shelf.slots())
        self.every_id_that_is_not_past_its_window_is_held_once()


TestMerging = Merging.TestCase
TestMerging.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
