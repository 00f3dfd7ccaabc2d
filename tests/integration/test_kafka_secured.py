"""TLS and logins: records go through with each client, and who is kept out is told by which option."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dedup.errors import InvalidUsage
from delivery import Delivery, Output, Record
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.kafka.entering import refusal
from delivery.kafka.opening import open_client
from delivery.kafka.options import Options
from delivery.kafka.port import TopicSettings
from delivery.operate.opening import opened
from delivery.services.java import find_java
from tests.integration.kafka_kit import LEAVES_SOCKETS, Sent, drain, emissions
from tests.integration.resident_kit import until
from tests.secured import PASSWORD, Doors, certificate, secured
from tests.unit.operate_kit import called

LIBRARIES = ("confluent", "kafka-python")
WRONG = "not-the-password"
PARTITIONS = 2
ROWS = [Sent(number % PARTITIONS, b"k", b"%d" % number) for number in range(100)]
JOB = Path(__file__).with_name("secured_job.py")
#: A session takes 6 s on two idle cores, and twenty on busy ones.
JOB_SECONDS_MAX = 240.0


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with secured() as doors:
        yield doors


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of an authority that did not sign the broker's."""
    return certificate(tmp_path_factory.mktemp("stranger") / "other.p12", find_java().executable)


def ways_in(doors: Doors) -> dict[str, tuple[str, dict[str, str]]]:
    """Return where one may come in, and with which options."""
    return {
        "tls": (doors.tls, doors.through_tls()),
        "mutual": (doors.mutual, doors.with_certificate()),
        "login": (doors.login, doors.with_login()),
        "SCRAM-SHA-256": (doors.login, doors.with_login("SCRAM-SHA-256")),
        "PLAIN": (doors.login, doors.with_login("PLAIN")),
    }


@pytest.mark.parametrize("library", [*LIBRARIES, None])
@pytest.mark.parametrize("way", ["tls", "mutual", "SCRAM-SHA-256", "PLAIN"])
def test_records_go_through_and_no_log_line_has_the_password(
    doors: Doors,
    library: str | None,
    way: str,
    unique: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    door, options = ways_in(doors)[way]
    with open_client(door, options, library, print) as client:
        # What a client of ours would not understand is left to the library as a whole.
        assert client.library == (library or "confluent")
        topic = client.create(unique("secured"), TopicSettings(partitions=PARTITIONS))
        with closing(client.producer()) as producer:
            frontier = producer.emit([topic], emissions(ROWS))
        with closing(client.consumer()) as consumer:
            consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
            drained = drain(consumer, dict(frontier))
    assert sum(map(len, drained.rows.values())) == len(ROWS)
    assert PASSWORD not in caplog.text
    assert library != "kafka-python" or "kafka." in caplog.text, "else nothing was looked at"


@dataclass(frozen=True)
class Mistake:
    """What somebody says, and what they are told."""

    door: str
    said: str
    login: str = ""
    password: str = PASSWORD
    more: dict[str, str] = field(default_factory=dict)


MISTAKES = [
    Mistake(
        "login", "login is refused: mend sasl.username or sasl.password", "SCRAM-SHA-256", WRONG
    ),
    Mistake("login", "login is refused: mend sasl.username or sasl.password", "PLAIN", WRONG),
    Mistake(
        "login", "not take sasl.mechanism=SCRAM-SHA-512, but PLAIN, SCRAM-SHA-256", "SCRAM-SHA-512"
    ),
    Mistake("login", "it asks for a login: say security.protocol=SASL_SSL"),
    Mistake("tls", "it asks for no login", "PLAIN"),
    Mistake("mutual", "does it ask for a certificate of yours, ssl.certificate.location?"),
    Mistake("plain", "nobody there speaks TLS"),
    Mistake("tls", "ends whatever is not TLS", more={"security.protocol": "PLAINTEXT"}),
    Mistake("tls", "certificate is not trusted (self-signed", more={"ssl.ca.location": "stranger"}),
    Mistake("tls", "cannot be read (No such file", more={"ssl.ca.location": "nowhere.pem"}),
]


def wrong(doors: Doors, mistake: Mistake, stranger: Path) -> Options:
    given = doors.through_tls()
    if mistake.login:
        given = doors.with_login(mistake.login, mistake.password)
    given |= mistake.more
    if given["ssl.ca.location"] == "stranger":
        given["ssl.ca.location"] = str(stranger)
    return Options.of(getattr(doors, mistake.door), given)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.said[:30])
def test_who_is_kept_out_is_told_by_which_option(
    doors: Doors, mistake: Mistake, stranger: Path
) -> None:
    why = refusal(wrong(doors, mistake, stranger))
    assert "lets nobody in: " in why
    assert mistake.said in why
    assert WRONG not in why
    assert PASSWORD not in why


def test_of_who_is_let_in_nothing_is_said(doors: Doors) -> None:
    assert refusal(Options.of(doors.plain)) == ""
    assert refusal(Options.of(doors.tls, doors.through_tls())) == ""
    assert refusal(Options.of(doors.mutual, doors.with_certificate())) == ""
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        assert refusal(Options.of(doors.login, doors.with_login(mechanism))) == ""
    # An address that its certificate is not made for, and the option that takes it all the same.
    named = Options.of(doors.tls.replace("127.0.0.1", "localhost"), doors.through_tls())
    assert "the address be one that it is made for" in refusal(named)
    unnamed = {**named.given, "ssl.endpoint.identification.algorithm": ""}
    assert refusal(replace(named, given=unnamed)) == ""
    assert refusal(Options.of("127.0.0.1:1")) == "", "nobody is there"


@pytest.mark.filterwarnings(LEAVES_SOCKETS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_that_is_kept_out_says_so(
    doors: Doors, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library tells; each waits for its whole patience, which is 20 s outside of tests."""
    monkeypatch.setattr("delivery.kafka.confluent.client.ANSWER_SECONDS_MAX", 1.5)
    monkeypatch.setattr("delivery.kafka.kafka_python.client._ANSWER_MS_MAX", 1500)
    said: list[str] = []
    with pytest.raises(InvalidUsage, match=r"mend sasl\.username or sasl\.password; nothing"):
        open_client(doors.login, doors.with_login(password=WRONG), library, said.append)
    assert "the login is refused" in said[0], "while it is waited for"


def test_a_stage_and_a_receiver_work_behind_a_login(
    doors: Doors, unique: Callable[[str], str], tmp_path: Path
) -> None:
    raw, out = unique("orders"), unique("priced")
    url = f"sqlite:{tmp_path / 'shop.db'}"
    d = Delivery(catalog=url, kafka=doors.login, options=doors.with_login(), pipeline="shop")

    @d.stage(reads=raw, writes=out, id_from="value")
    def price(record: Record) -> Output:
        return record.replace(value={"order": record.json(), "nonce": uuid.uuid4().hex})

    with open_client(doors.login, doors.with_login()) as client:
        topic = client.create(raw, TopicSettings(partitions=PARTITIONS))
        with closing(client.producer()) as producer:
            producer.emit([topic], emissions([*ROWS, *ROWS]))  # each of them twice
        topics = prepare(d.plan, create_topics=True)
        worker = Worker(d.plan, threading.Event())
        worker.open(d.stages[0], range(topics[raw].partitions), {})

        def delivered() -> bool:
            worker.turn()
            found = client.describe([out])[out]
            rows = [row for lane in catalog.lanes() if (row := catalog.load(lane)) is not None]
            done = all(row.ack.seq == row.head.ref.seq for row in rows)
            ends = client.bounds(out, found.sources).high
            return done and sum(at for _, at in ends) == len(ROWS)

        with opened(url) as catalog:
            until(delivered)
        worker.close()
    bills = sqlite3.connect(tmp_path / "bills.db")
    bills.execute("CREATE TABLE bill (number INTEGER)")
    for bundle in d.receiver(topic=out, group="billing", bounded=True):
        with bundle.once(bills) as tx:
            rows = [(record.json()["order"],) for record in bundle.records()]
            tx.executemany("INSERT INTO bill VALUES (?)", rows)
    assert sorted(bills.execute("SELECT number FROM bill")) == [(at,) for at in range(len(ROWS))]
    bills.close()
    config = tmp_path / "kafka.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in doors.with_login().items()))
    verb = ("audit", url, "--kafka", doors.login, "--kafka-config", str(config), "--finished")
    assert "exact" in called(*verb).stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", ["login", "mutual"])
@pytest.mark.parametrize("engine", ["resident", "micro-batch"])
def test_a_pipeline_of_sparks_works_behind_a_login_and_where_certificates_are_asked_for(
    doors: Doors, engine: str, way: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """In the micro-batch engine Spark's own source reads, which takes the options by Java's names."""
    raw, out = unique("orders"), unique("priced")
    door, options = ways_in(doors)[way]
    given = {
        "catalog": f"sqlite:{tmp_path / 'shop.db'}",
        "kafka": door,
        "options": options,
        "reads": raw,
        "writes": out,
        "engine": engine,
    }
    with open_client(door, options) as client:
        topic = client.create(raw, TopicSettings(partitions=PARTITIONS))
        with closing(client.producer()) as producer:
            producer.emit([topic], emissions([*ROWS, *ROWS]))
        done = subprocess.run(
            [sys.executable, str(JOB), json.dumps(given)],
            env=dict(os.environ) | {"PYTHONPATH": str(JOB.parents[2])},
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-10_000:]
        found = client.describe([out])[out]
        assert sum(at for _, at in client.bounds(out, found.sources).high) == len(ROWS)
    assert PASSWORD not in done.stdout + done.stderr
