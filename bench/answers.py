"""Benchmarks of an operator's questions to a catalog of a million records.

What it is: one stage run to its end on a real broker and SQLite, then asked: how it stands, where a
name was decided, what became of a record.
What it must not know: how any answer is found.

Invariants:
    Every question is asked as a command asks it: catalog and client are opened for it.
    Records are asked about all over the topic, the first and the last as well; every answer is held
    to what is known of the record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.audit import PARTITIONS, SOURCE, furnish
from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import ID
from dedup.ids import named
from delivery.kafka.opening import open_client
from delivery.operate.explaining import Story, explain
from delivery.operate.finding import places_of_id
from delivery.operate.lanes import inspect
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id, look_up_offset
from delivery.operate.opening import chosen, opened
from delivery.services.ephemeral import ephemeral

#: Records published; nearly as many come out, so that a story may lie among twice as many.
RECORDS, RECORDS_QUICK = 1_000_000, 20_000
#: Questions of a kind in a turn.
ASKED = 5
INSPECT, LOOKUP, OFFSET, EXPLAIN, BY_NAME = (
    "inspect",
    "lookup of a name",
    "lookup of an offset",
    "explain an offset",
    "explain a name",
)
SECONDS_MAX = 1.0

_Place = tuple[str, int, int]


@contextmanager
def _asked(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with (
        lab.directory() as directory,
        ephemeral(kafka=1, report=lab.report) as services,
        open_client(services.kafka.bootstrap, {}, "confluent") as client,
    ):
        url, bootstrap = f"sqlite:{directory}/whole.db", services.kafka.bootstrap
        records = RECORDS_QUICK if lab.quick else RECORDS
        furnish(client, bootstrap, url, "", records)
        cluster = Cluster(client)
        topic = cluster.topic(SOURCE)
        ends = [end for _, end in cluster.bounds(topic).high]
        chance = random.Random(1)
        places = [(SOURCE, 0, 0), (SOURCE, PARTITIONS - 1, ends[-1] - 1)]
        while len(places) < ASKED:
            partition = chance.randrange(PARTITIONS)
            places.append((SOURCE, partition, chance.randrange(ends[partition])))
        names = [_name(cluster, place) for place in places]
        ask = partial(_turn, url, bootstrap)
        yield [
            Contestant(name=INSPECT, turn=partial(ask, [_inspect] * ASKED)),
            Contestant(name=LOOKUP, turn=partial(ask, [partial(_lookup, name) for name in names])),
            Contestant(name=OFFSET, turn=partial(ask, [partial(_offset, at) for at in places])),
            Contestant(name=EXPLAIN, turn=partial(ask, [partial(_explain, at) for at in places])),
            Contestant(name=BY_NAME, turn=partial(ask, [partial(_named, name) for name in names])),
        ]


def _name(cluster: Cluster, place: _Place) -> bytes:
    topic = cluster.topic(place[0])
    record = cluster.record(topic, topic.sources[place[1]], place[2])
    assert record is not None, "nobody deletes it"
    return record.header(ID) or b""


def _turn(url: str, bootstrap: str, questions: Sequence[Callable[[str, str], None]]) -> Turn:
    seconds = []
    for question in questions:
        began = time.perf_counter()
        question(url, bootstrap)
        seconds.append(time.perf_counter() - began)
    return Turn(seconds=tuple(seconds), facts={"slowest, s": max(seconds)})


def _inspect(url: str, _: str) -> None:
    with opened(url) as catalog:
        lanes = list(inspect(catalog, chosen(catalog), time.time_ns() // 1_000_000))
    assert len(lanes) == PARTITIONS, lanes


def _lookup(name: bytes, url: str, _: str) -> None:
    with opened(url) as catalog:
        decisions, _makers = look_up_id(catalog, named(name), chosen(catalog))
    assert len(decisions) == 1, decisions


def _offset(place: _Place, url: str, _: str) -> None:
    with opened(url) as catalog:
        (read,) = look_up_offset(catalog, *place, chosen(catalog))
    assert read.fate in {"fresh", "duplicate"}, read


def _explain(place: _Place, url: str, bootstrap: str) -> None:
    with opened(url) as catalog, open_client(bootstrap, {}, "confluent") as client:
        _held(explain(catalog, Cluster(client), *place))


def _named(name: bytes, url: str, bootstrap: str) -> None:
    with opened(url) as catalog, open_client(bootstrap, {}, "confluent") as client:
        cluster = Cluster(client)
        (place,) = places_of_id(catalog, cluster, named(name))
        _held(explain(catalog, cluster, *place))


def _held(story: Story) -> None:
    (reading,) = story.readings
    if reading.fate == "fresh":
        (output,) = reading.outputs
        assert len(output.copies) == 1, story
    else:
        assert reading.original is not None, story


BENCHMARKS = (
    Benchmark(
        name="answers",
        says=f"questions to a catalog of {RECORDS} records of 150 bytes, 5% repeats, four partitions, "
        "SQLite, beside one stage's topics on a broker; the first record, the last, and some between",
        unit="answer",
        staged=_asked,
        baseline=INSPECT,
        rounds=(3, 1),
        goals=tuple(
            Goal(
                says=f"the slowest {question} of a million records",
                contestant=question,
                measure="slowest, s",
                unit="s",
                at_most=SECONDS_MAX,
            )
            for question in (INSPECT, LOOKUP, EXPLAIN, BY_NAME)
        ),
    ),
)
