"""The parts of the resident engine that need no Spark: shares, lines, errors that travel, text."""

from __future__ import annotations

import queue
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dedup.errors import Corrupt, Fenced, Indeterminate, InvalidUsage, Unavailable
from delivery.host.counters import Counters
from delivery.host.progress import LaneProgress, Progress
from delivery.host.spec import StageSpec
from delivery.records import Record
from delivery.resident import cluster
from delivery.resident.caught_up import downstream
from delivery.resident.channel import Link, Lost
from delivery.resident.control import Control
from delivery.resident.failures import TaskFailedError, document_of, error_of
from delivery.resident.lanes import count, share
from delivery.resident.options import refuse_unknown
from delivery.stage import Function, Policy, StoppedByRecordError, run_record

SECONDS_MAX = 30.0


def spec(name: str, reads: str, *writes: str) -> StageSpec:
    return StageSpec(pipeline="shop", name=name, reads=reads, writes=writes, call=len)


# Shares ---------------------------------------------------------------------------------------

STAGES = [spec("a", "raw", "priced"), spec("b", "priced", "out")]


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8])
def test_every_lane_has_exactly_one_task(tasks):
    partitions = {"a": 5, "b": 3}
    found = [
        (stage.name, partition)
        for number in range(tasks)
        for stage, mine in share(STAGES, partitions, tasks, number)
        for partition in mine
    ]
    assert len(found) == count(partitions)
    assert set(found) == {(name, p) for name, many in partitions.items() for p in range(many)}


def test_a_partition_that_appears_moves_no_other():
    before = {"a": 3, "b": 3}
    after = {"a": 7, "b": 3}
    for number in range(3):
        had = {s.name: set(mine) for s, mine in share(STAGES, before, 3, number)}
        has = {s.name: set(mine) for s, mine in share(STAGES, after, 3, number)}
        assert all(had[name] <= has[name] for name in had)


def test_single_partitions_do_not_all_meet_in_one_task():
    one = {"a": 1, "b": 1}
    shares = [sum(len(m) for _, m in share(STAGES, one, 2, number)) for number in range(2)]
    assert shares == [1, 1]


def test_stages_are_waited_for_behind_those_that_feed_them():
    a, b, c = spec("a", "raw", "x"), spec("b", "x", "y"), spec("c", "y", "z")
    assert [s.name for s in downstream([c, a, b])] == ["a", "b", "c"]
    circle = [spec("a", "x", "y"), spec("b", "y", "x")]
    assert [s.name for s in downstream(circle)] == ["a", "b"]


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Corrupt, Fenced, Indeterminate, InvalidUsage, Unavailable])
def test_a_kind_of_error_arrives_as_what_it_was(kind):
    error = error_of(document_of(kind("read", "it", "do that"), "shop/a/raw-0 behind seq 3"))
    assert type(error) is kind
    assert (error.op, error.subject, error.hint) == ("read", "it", "do that")
    assert error.__notes__ == ["in shop/a/raw-0 behind seq 3"]


def test_a_record_that_stopped_its_stage_is_named_with_its_lane():
    error = error_of(document_of(StoppedByRecordError("offset 3"), "shop/a/raw-0 behind seq 3"))
    assert type(error) is StoppedByRecordError
    assert str(error) == "shop/a/raw-0 behind seq 3: offset 3"
    assert not hasattr(error, "__notes__")


def test_the_traceback_of_user_code_arrives_without_frames_of_ours():
    def price(_record: Record) -> None:
        raise KeyError("price")

    with pytest.raises(StoppedByRecordError) as raised:
        run_record(Function(price), Record(), Policy(reads="orders"))
    error = error_of(document_of(raised.value, "shop/a/orders-0 behind seq 3"))
    line = price.__code__.co_firstlineno + 1
    assert f"(KeyError: 'price', {__file__}:{line} in price)" in str(error)
    assert "of orders" in str(error)
    assert "--offset orders/0/0" in str(error)
    assert "dead_letters=" in str(error)
    (note,) = error.__notes__
    assert note.startswith("In user code:\nTraceback (most recent call last):\n")
    assert f'File "{__file__}", line {line}, in price' in note
    assert "stage.py" not in note
    assert str(error).count("shop/a/orders-0") == 1
    assert "shop/a/orders-0" not in note


def test_what_user_code_returned_has_no_line_that_raised():
    with pytest.raises(StoppedByRecordError) as raised:
        run_record(Function(lambda _: {"is": object()}), Record(), Policy())
    assert ".py:" not in str(raised.value)
    assert not hasattr(error_of(document_of(raised.value)), "__notes__")


def test_a_record_of_no_topic_is_not_to_be_explained():
    with pytest.raises(StoppedByRecordError) as raised:
        run_record(Function(lambda _: 1 / 0), Record(), Policy())
    assert "explain" not in str(raised.value)


def test_what_nobody_foresaw_arrives_with_its_traceback():
    def surprise() -> None:
        raise KeyError("surprise")

    with pytest.raises(KeyError) as raised:
        surprise()
    error = error_of(document_of(raised.value))
    assert type(error) is TaskFailedError
    assert "a task: KeyError: 'surprise'" in str(error)
    assert 'raise KeyError("surprise")' in str(error)


# Lines ----------------------------------------------------------------------------------------


@pytest.fixture
def changes() -> queue.Queue[None]:
    return queue.Queue()


@pytest.fixture
def control(changes) -> Iterator[Control]:
    control = Control("127.0.0.1", bind="127.0.0.1", port=0, changed=lambda: changes.put(None))
    control.begin(1, {"a": 2})
    yield control
    control.close()


def call(control: Control, task: int, run: int = 1) -> Link:
    link = Link.open(control.address, control.key)
    link.send({"hello": {"run": run, "task": task, "host": "here", "pid": 1}})
    return link


def until(condition, changes: queue.Queue[None]) -> None:
    while not condition():
        changes.get(timeout=SECONDS_MAX)


def progress(read: int) -> dict[str, object]:
    lane = LaneProgress(lane="shop/a/raw-0", stage="a", seq=1, frontier=read, end=read)
    return Progress(lanes=(lane,), counters=Counters(read=read).document()).document()


def test_a_task_is_told_its_lanes_and_later_its_end(control):
    link = call(control, 0)
    assert link.receive() == {"lanes": {"a": 2}}
    control.grow({"a": 3})
    assert link.receive() == {"lanes": {"a": 3}}
    control.end()
    assert link.receive() == {"end": {}}
    link.cut()


def test_who_calls_when_all_is_to_end_is_told_so(control):
    control.end()
    assert call(control, 0).receive() == {"end": {}}
    control.begin(2, {"a": 2})
    stranger = call(control, 0, run=1)
    assert stranger.receive() == {"end": {}}
    with pytest.raises(Lost):
        stranger.receive()
    assert control.running == 0


def test_a_task_that_comes_back_replaces_the_one_that_was_there(control, changes):
    before = call(control, 0)
    assert "lanes" in before.receive()
    before.send({"progress": progress(10)})
    until(lambda: control.progress().counters["read"] == 10, changes)
    after = call(control, 0)
    assert "lanes" in after.receive()
    # Told to end it would end well, and Spark would take the newcomer, its copy, for superfluous.
    with pytest.raises(Lost):
        before.receive()
    after.send({"progress": progress(5)})
    until(lambda: control.progress().counters["read"] == 15, changes)
    before.cut()
    after.send({"ended": progress(7)})
    until(lambda: control.progress().counters["read"] == 17, changes)
    after.cut()
    until(lambda: control.running == 0, changes)
    assert control.progress().counters["read"] == 17


def test_lanes_stay_as_they_stood_where_a_task_said_its_last_word(control, changes):
    """So that how far a query has come is known when nobody runs it any more."""
    ending, lost = call(control, 0), call(control, 1)
    until(lambda: control.running == 2, changes)
    lost.send({"progress": progress(5)})
    until(lambda: control.progress().counters["read"] == 5, changes)
    lost.cut()
    until(lambda: control.running == 1, changes)
    assert control.progress().lanes == ()
    ending.send({"ended": progress(7)})
    ending.cut()
    until(lambda: control.running == 0, changes)
    assert [lane.lag for lane in control.progress().lanes] == [0]
    control.begin(2, {"a": 2})
    assert control.progress().lanes == ()


def test_troubles_and_failures_are_heard(control, changes):
    link = call(control, 0)
    trouble = document_of(Unavailable("read", "it", "wait"), "shop/a/raw-0 behind seq 3")
    link.send({"trouble": trouble | {"pause": 0.2}})
    until(lambda: control.troubles, changes)
    assert control.troubles == ["shop/a/raw-0 behind seq 3: Unavailable: read: it: wait"]
    link.send({"progress": progress(1)})
    until(lambda: not control.troubles, changes)
    link.send({"failed": document_of(StoppedByRecordError("offset 3"))})
    until(lambda: control.failure is not None, changes)
    assert isinstance(control.failure, StoppedByRecordError)
    link.cut()


def test_a_task_that_said_why_it_ends_is_not_gone_without_a_word(control, changes, caplog):
    telling, silent = call(control, 0), call(control, 1)
    until(lambda: control.running == 2, changes)
    telling.send({"failed": document_of(StoppedByRecordError("offset 3"))})
    until(lambda: control.failure is not None, changes)
    for link in (telling, silent):
        link.cut()
    until(lambda: control.running == 0, changes)
    gone = [said for said in caplog.messages if "without a word" in said]
    assert gone == ["task 1 on here pid 1 is gone without a word"]


def test_a_task_that_has_fallen_silent_is_named(control, monkeypatch):
    """Its process may stand still: its line is up, Spark sees nothing, and its lanes wait."""
    link = call(control, 0)
    assert "lanes" in link.receive()
    assert not control.troubles
    monkeypatch.setattr("delivery.resident.control.SILENT_SECONDS", 0.0)
    (said,) = control.troubles
    assert "task 0 on here pid 1 has said nothing for 0 s" in said
    assert "kill that process" in said
    link.cut()


def test_nobody_is_heard_who_does_not_know_the_key(control):
    with pytest.raises(Lost):
        Link.open(control.address, b"another")
    with socket.create_connection(control.address) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(OSError):  # hung up on, maybe before it is done
            garbage.shutdown(socket.SHUT_WR)
            while garbage.recv(1000):
                pass
    assert control.running == 0


def test_a_line_that_is_cut_is_noticed_at_both_ends(control, changes):
    link = call(control, 0)
    assert "lanes" in link.receive()
    until(lambda: control.running == 1, changes)
    heard: queue.Queue[Exception] = queue.Queue()

    def listen() -> None:
        try:
            link.receive()
        except Lost as error:
            heard.put(error)

    thread = threading.Thread(target=listen)
    thread.start()
    control.close()
    assert isinstance(heard.get(timeout=SECONDS_MAX), Lost)
    thread.join()
    link.close()
    with pytest.raises(Lost):
        link.send({"progress": {}})
    with pytest.raises(Lost):
        Link.open(control.address, control.key)


def test_an_option_that_an_engine_has_not_is_named_with_one_that_it_has():
    with pytest.raises(InvalidUsage, match=r"create_topic: .*did you mean create_topics\?"):
        refuse_unknown("resident", ["create_topic"], ["tasks", "create_topics"])
    with pytest.raises(InvalidUsage, match="nothing was started: It takes tasks"):
        refuse_unknown("resident", ["zzz"], ["tasks"])
    refuse_unknown("resident", ["tasks"], ["tasks"])


@pytest.mark.parametrize(
    ("master", "several"),
    [
        ("local[3,4]", False),
        ("local-cluster[2,1,1024]", False),
        ("spark://127.0.0.1:7077", False),
        ("spark://localhost:7077", False),
        ("spark://[::1]:7077", False),
        ("spark://127.0.0.1:7077,127.0.0.2:7077", False),
        ("spark://127.0.0.1:7077,10.0.0.1:7077", True),
        ("spark://somewhere:7077", True),
        ("yarn", True),
        ("k8s://https://127.0.0.1:6443", True),
    ],
)
def test_which_masters_may_have_executors_on_other_machines(master, several):
    assert cluster.spans_machines(master) is several


def test_the_archive_for_executors_has_every_module_and_no_cache(tmp_path):
    packed = cluster.packed(tmp_path / "ours.zip")
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == set(cluster.PACKAGES)
    assert {"dedup/errors.py", "delivery/resident/task.py", "sinks/kafka.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
