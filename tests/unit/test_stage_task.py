"""What a task of a micro-batch does in its process besides running lanes."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa

from dedup.model import TopicId
from delivery.microbatch.task import Job, Order, run_lanes
from tests.unit.test_wrap_pieces import kafka_rows

#: A process of its own: this one has long imported whatever the tests need.
TASK = """
import gc, sys
import pyarrow as pa
from dedup.model import Source, TopicId
from delivery.microbatch.columns import batch_of, split
from delivery.microbatch.task import Job, run_lanes

topic = TopicId(b"t" * 16)
for table in pa.ipc.open_stream(sys.stdin.buffer.read()):
    for piece, source in split(table, lambda name, partition: Source(topic, partition)):
        batch_of(piece, source)
job = Job(plan=b"no plan", stage="price", run="1")
(table,) = run_lanes(job, ())
assert "UnpicklingError" in table.column("report")[0].as_py()
print("pandas" in sys.modules, gc.get_freeze_count() > 10_000)
"""


def test_a_task_leaves_pandas_out_and_what_it_loaded_to_no_collector() -> None:
    """PySpark looks for cycles behind each task: in what pandas brings along, for 20 ms each time."""
    rows = kafka_rows()
    sent = pa.BufferOutputStream()
    with pa.ipc.new_stream(sent, rows.schema) as stream:
        stream.write_batch(rows)
    said = subprocess.run(
        [sys.executable, "-c", TASK], input=sent.getvalue(), capture_output=True, check=True
    )
    assert said.stdout.split() == [b"False", b"True"]


def test_an_order_comes_back_as_it_was_told() -> None:
    order = Order(topic=TopicId(bytes(range(16))), ranges={0: (0, 7), 12: (5, 5)})
    assert Order.decode(order.encode()) == order


def test_a_task_that_was_told_nothing_runs_no_lane_and_says_so(monkeypatch) -> None:
    monkeypatch.setattr("delivery.microbatch.task._ports", lambda _: None)
    (table,) = run_lanes(Job(plan=b"", stage="price", run="untold"), ())
    assert "the driver tells every task what is planned" in table.column("report")[0].as_py()
