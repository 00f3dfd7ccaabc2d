"""User code in one pass over a batch: what it becomes is what it becomes record by record."""

from __future__ import annotations

from collections import Counter
from itertools import repeat

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delivery.batch import Rows, batches_of
from delivery.records import Output, Record
from delivery.stage import Function, Policy, StoppedByRecordError, run_fresh, run_records

#: How a call ends, once it ends well.
_ENDS = {
    "none": lambda _: None,
    "one": lambda record: record.replace(value=b"one"),
    "list": lambda record: [record.replace(value=b"list")],
    "two": lambda record: [record.replace(value=b"two"), Output(value=b"2", key=b"k", edge=1)],
    "empty": lambda _: [],
    "dict": lambda _: {"a": 1},
    "text": lambda _: "text",
    "itself": lambda record: record,
}


class Code:
    """User code that fails as often as it is told, at once or while its outputs are taken."""

    def __init__(self, plan: list[tuple[str, int, bool]]) -> None:
        self.plan = plan
        self.tries: Counter[int] = Counter()

    def __call__(self, record: Record) -> object:
        end, failures, lazy = self.plan[record.offset]
        return self.lazily(record) if lazy else self.ended(record, end, failures)

    def lazily(self, record: Record) -> object:
        end, failures, _ = self.plan[record.offset]
        yield record.replace(value=b"first")
        made = self.ended(record, end, failures)
        if isinstance(made, Output):
            yield made

    def ended(self, record: Record, end: str, failures: int) -> object:
        self.tries[record.offset] += 1
        if self.tries[record.offset] <= failures:
            # One of them is what an empty iterator says, and no sign that the records are at an end.
            kind = StopIteration if record.offset % 2 else ValueError
            raise kind(f"try {self.tries[record.offset]}")
        return _ENDS[end](record)


_PLANS = st.lists(
    st.tuples(st.sampled_from(sorted(_ENDS)), st.sampled_from([0, 0, 0, 0, 1, 2, 3]), st.booleans())
) | st.lists(
    st.tuples(st.sampled_from(["one", "list"]), st.sampled_from([0, 0, 3]), st.just(False))
)


@given(_PLANS, st.sampled_from([None, 2]), st.booleans())
def test_a_pass_over_a_batch_makes_what_records_one_by_one_make(plan, dead_letters, every_other):
    step = 2 if every_other else 1
    records = [
        Record(value=b"v%d" % at, key=b"k" if at % 3 else None, offset=at)
        for at in range(len(plan))
    ]
    policy = Policy(dead_letter_edge=dead_letters)
    outcomes = []
    for whole in (True, False):
        code, rows = Code(plan), Rows()
        try:
            if whole and records:
                (batch,) = batches_of(records)
                chosen = np.arange(0, len(records), step)
                dead = run_fresh(Function(code), batch, chosen, policy, rows, kept=repeat(None))
            else:
                dead = run_records(Function(code), records[::step], policy, rows, kept=repeat(None))
        except StoppedByRecordError as error:
            outcomes.append((str(error), code.tries))
        else:
            rows.partitions = [0] * len(rows)
            outcomes.append((dead, list(rows), code.tries))
    if len(outcomes[0]) == 2 and any(lazy for _, _, lazy in plan):
        # A generator does its work when its outputs are taken, so that a call behind it may have
        # failed first; nothing of the bundle counts either way.
        assert len(outcomes[1]) == 2
        return
    if len(outcomes[0]) == 2:
        outcomes = [outcome[:1] for outcome in outcomes]
    assert outcomes[0] == outcomes[1]
