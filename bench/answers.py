"""Benchmarks of an operator's questions to a catalog of a million records.

What it is: one stage run to its end on a real broker and SQLite, then asked: how it stands, where a
name was decided, what became of a record, by a call of what a verb is made of and by the command as a
whole, the start of Python included.
What it must not know: how any answer is found.

Invariants:
    Every question is asked as a command asks it: catalog and client are opened for it.
    Records are asked about all over the topic, the first and the last as well; every answer is held
    to what is known of the record.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.audit import PARTITIONS, SOURCE, furnish
from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import ID
from dedup.ids import named
from dedup.model import RecordId
from delivery.kafka.opening import open_client
from delivery.operate.explaining import explain
from delivery.operate.finding import places_of_id
from delivery.operate.lanes import inspect
from delivery.operate.logs import Cluster
from delivery.operate.lookup import id_of_hex, look_up_id, look_up_offset
from delivery.operate.opening import chosen, opened
from delivery.operate.story import Story
from delivery.services.ephemeral import ephemeral

#: Records published; nearly as many come out, so that a story may lie among twice as many.
RECORDS, RECORDS_QUICK = 1_000_000, 20_000
#: Questions of a kind in a turn.
ASKED = 5
INSPECT, LOOKUP, OFFSET, EXPLAIN, BY_NAME, OUTPUT, BY_ID = (
    "inspect",
    "lookup of a name",
    "lookup of an offset",
    "explain an offset",
    "explain a name",
    "explain an output's offset",
    "explain an output's id",
)
#: The same as whole commands; a publisher's name is what `--key` takes.
COMMANDS = (INSPECT, LOOKUP, EXPLAIN, BY_NAME, OUTPUT, BY_ID)
SECONDS_MAX = 1.0

_Place = tuple[str, int, int]
#: Holds a story to the question.
_Check = Callable[[Story], None]


def _command(question: str) -> str:
    return f"`delivery`: {question}"


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
        outputs = _outputs(url, cluster, places)
        stories = {
            EXPLAIN: [partial(_explain, _held, at) for at in places],
            BY_NAME: [partial(_found, _held, named(name)) for name in names],
            OUTPUT: [partial(_explain, _made, at) for _, at in outputs],
            BY_ID: [partial(_found, _made, one) for one, _ in outputs],
        }
        ask = partial(_turn, url, bootstrap)
        yield [
            Contestant(name=INSPECT, turn=partial(ask, [_inspect] * ASKED)),
            Contestant(name=LOOKUP, turn=partial(ask, [partial(_lookup, name) for name in names])),
            Contestant(name=OFFSET, turn=partial(ask, [partial(_offset, at) for at in places])),
            *(Contestant(name=told, turn=partial(ask, asked)) for told, asked in stories.items()),
            *_commands(ask, places, names, outputs),
        ]


def _commands(
    ask: Callable[[Sequence[Callable[[str, str], None]]], Turn],
    places: Sequence[_Place],
    names: Sequence[bytes],
    outputs: Sequence[tuple[RecordId, _Place]],
) -> Iterator[Contestant]:
    """Yield the questions as somebody types them."""
    lines: dict[str, list[list[str]]] = {
        INSPECT: [["catalog", "inspect"]] * ASKED,
        LOOKUP: [["catalog", "lookup", "--name", name.decode()] for name in names],
        EXPLAIN: [["explain", "--offset", _words(at)] for at in places],
        BY_NAME: [["explain", "--key", name.decode()] for name in names],
        OUTPUT: [["explain", "--offset", _words(at)] for _, at in outputs],
        BY_ID: [["explain", "--id", one.hex()] for one, _ in outputs],
    }
    for question in COMMANDS:
        asked = [partial(_typed, line) for line in lines[question]]
        yield Contestant(name=_command(question), turn=partial(ask, asked))


def _words(place: _Place) -> str:
    return "/".join(map(str, place))


def _typed(line: Sequence[str], url: str, bootstrap: str) -> None:
    """Run a command in a process of its own, and hold what it prints to the question."""
    kafka = ["--kafka", bootstrap] if line[0] == "explain" else []
    command = [sys.executable, "-m", "delivery.cli", *line, url, *kafka, "--json"]
    # As it is installed: what was compiled once is not compiled again.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = f"{url.removeprefix('sqlite:')}.pycache"
    said = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    found: dict[str, Any] = json.loads(said)
    key = {"inspect": "lanes", "lookup": "decisions"}.get(line[1], "topic")
    assert found[key], found


def _outputs(url: str, cluster: Cluster, places: Sequence[_Place]) -> list[tuple[RecordId, _Place]]:
    """Return ids and places of what was made of some records, or of others near those."""
    found: list[tuple[RecordId, _Place]] = []
    with opened(url) as catalog:
        for topic, partition, offset in places:
            for near in range(offset, -1, -1):
                (reading,) = explain(catalog, cluster, topic, partition, near).readings
                if reading.outputs:
                    (output,) = reading.outputs
                    at = (output.topic, output.partition, output.copies[0].offset)
                    found.append((id_of_hex(output.id), at))
                    break
    return found


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
    facts = {"slowest, s": max(seconds), "median, s": statistics.median(seconds)}
    return Turn(seconds=tuple(seconds), facts=facts)


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


def _explain(held: _Check, place: _Place, url: str, bootstrap: str) -> None:
    with opened(url) as catalog, open_client(bootstrap, {}, "confluent") as client:
        held(explain(catalog, Cluster(client), *place))


def _found(held: _Check, record_id: RecordId, url: str, bootstrap: str) -> None:
    with opened(url) as catalog, open_client(bootstrap, {}, "confluent") as client:
        cluster = Cluster(client)
        (place,) = places_of_id(catalog, cluster, record_id)
        held(explain(catalog, cluster, *place))


def _made(story: Story) -> None:
    assert story.origin is not None, story
    assert story.origin.standing == "sealed", story


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
        goals=(
            *(
                Goal(
                    says=f"the slowest {question} of a million records",
                    contestant=question,
                    measure="slowest, s",
                    unit="s",
                    at_most=SECONDS_MAX,
                )
                for question in (INSPECT, LOOKUP, EXPLAIN, BY_NAME, OUTPUT, BY_ID)
            ),
            *(
                Goal(
                    says=f"the whole command, {question}, of a million records",
                    contestant=_command(question),
                    measure="median, s",
                    unit="s",
                    at_most=SECONDS_MAX,
                )
                for question in COMMANDS
            ),
        ),
    ),
)
