"""`delivery chaos` kills a real job on a real broker, and the audit afterwards finds nothing."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.operate.chaos import KINDS
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.unit.documented import undocumented
from tests.unit.operate_kit import called

JOB = Path(__file__).parent / "chaos_job.py"
SPARK_JOB = JOB.with_name("chaos_spark_job.py")
ROOT = JOB.parents[2]
PARTITIONS = 2
#: Records published at once, and how often while the job is killed.
PUBLISHED, ROUNDS = 40, 60
PAUSE_SECONDS = 0.15
#: As many as fill the time in which a job on Spark is killed.
SPARK_ROUNDS = 400


@contextmanager
def published(kafka: Kafka, source: str, target: str, rounds: int) -> Iterator[None]:
    """Send orders all the time; each round repeats the first record of the round before it."""
    over = threading.Event()
    with open_client(kafka.bootstrap) as client:
        topic = client.create(source, TopicSettings(partitions=PARTITIONS))
        client.create(target, TopicSettings(partitions=PARTITIONS))

        def publish() -> None:
            with closing(client.producer()) as producer:
                for number in range(rounds):
                    names = [max(0, number * PUBLISHED - at) for at in range(PUBLISHED)]
                    rows = [
                        Sent(
                            name % PARTITIONS,
                            None,
                            json.dumps({"order": name}).encode(),
                            (("id", b"order-%d" % name),),
                        )
                        for name in names
                    ]
                    producer.emit([topic], emissions(rows))
                    if over.wait(PAUSE_SECONDS):
                        return

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            yield
        finally:
            over.set()
            publishing.join()


def nobody_left(word: str) -> bool:
    """Tell whether all processes that carry a word are gone."""
    every = psutil.process_iter(["cmdline"])
    return not [one for one in every if word in (one.info["cmdline"] or [])]


def test_a_job_that_is_killed_again_and_again_stays_exact(
    kafka: Kafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = unique("orders"), unique("priced")
    url, log = f"sqlite:{tmp_path / 'shop.db'}", tmp_path / "job.log"
    with published(kafka, source, target, ROUNDS):
        result = called(
            *("chaos", url, "--json", "--kafka", kafka.bootstrap),
            *("--kills", "5", "--seconds", "6s"),
            *("--kind", "point", "--kind", "job", "--seed", "7", "--log", str(log)),
            *("--", "env", f"PYTHONPATH={ROOT}"),
            *(sys.executable, str(JOB), kafka.bootstrap, url, source, target),
        )
    found = json.loads(result.stdout)
    assert found["verdict"] == "exact", log.read_text()
    assert undocumented("chaos", found, "audit") == set()
    assert sum(one["killed"] for one in found["kills"]) == 5
    assert len({one["at_ms"] for one in found["died"]}) == 5
    assert found["starts"] > 1
    assert found["settled"]
    assert found["offered"] == found["dropped"] > 0
    assert (found["lost"], found["doubled"], found["conflicting"], found["other"]) == (0, 0, 0, 0)
    said, page = tmp_path / "chaos.json", tmp_path / "report.html"
    said.write_text(result.stdout)
    called("report", url, "--kafka", kafka.bootstrap, "-o", str(page), "--chaos", str(said))
    assert page.read_text().count('class="mark"') >= 5
    assert nobody_left(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "master"), [("worker", "local[2]"), ("executor", "local-cluster[2,1,1024]")]
)
def test_processes_of_sparks_are_killed_and_the_job_stays_exact(
    kafka: Kafka, unique: Callable[[str], str], tmp_path: Path, kind: str, master: str
) -> None:
    source, target = unique("orders"), unique("priced")
    url, log = f"sqlite:{tmp_path / 'shop.db'}", tmp_path / "job.log"
    with published(kafka, source, target, SPARK_ROUNDS):
        result = called(
            *("chaos", url, "--json", "--kafka", kafka.bootstrap, "--seed", "7"),
            *("--kills", "3", "--seconds", "60s", "--kind", kind, "--log", str(log)),
            *("--", "env", f"PYTHONPATH={ROOT}", sys.executable, str(SPARK_JOB), master),
            *(kafka.bootstrap, url, source, target),
        )
    found = json.loads(result.stdout)
    said = log.read_text()
    assert found["kills"] == [{"kind": KINDS[kind], "killed": 3}], said[-5_000:]
    assert found["missed"] == 0
    assert found["starts"] == 1, "Spark itself puts back what was killed; the driver lives"
    # What Spark says when it loses one, so that it was one of its own that died.
    lost = "Python worker exited unexpectedly|EOFException" if kind == "worker" else "Lost executor"
    assert len(set(re.findall(rf".*(?:{lost}).*", said))) >= 1, said[-5_000:]
    assert found["verdict"] == "exact", said[-5_000:]
    assert found["settled"]
    assert found["offered"] == found["dropped"] > 0
    assert (found["lost"], found["doubled"], found["conflicting"], found["other"]) == (0, 0, 0, 0)
    assert nobody_left(source)


def test_who_is_not_there_cannot_die_and_that_is_said(
    kafka: Kafka, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.operate.chaos.VICTIM_SECONDS_MAX", 0.5)
    source, target = unique("orders"), unique("priced")
    url = f"sqlite:{tmp_path / 'shop.db'}"
    with published(kafka, source, target, 3):
        result = called(
            *("chaos", url, "--kafka", kafka.bootstrap, "--kind", "executor", "--kills", "1"),
            *("--seconds", "1s", "--log", str(tmp_path / "job.log")),
            *("--", "env", f"PYTHONPATH={ROOT}"),
            *(sys.executable, str(JOB), kafka.bootstrap, url, source, target),
        )
    assert "nobody: there was none of what may die" in result.stderr
    assert re.search(r"not killed: nobody was there to die +1\n", result.stdout)


def test_a_job_that_fails_by_itself_is_not_audited(kafka: Kafka, tmp_path: Path) -> None:
    result = called(
        *("chaos", f"sqlite:{tmp_path / 'none.db'}", "--kafka", kafka.bootstrap),
        *("--kills", "2", "--seconds", "30s", "--log", str(tmp_path / "job.log")),
        *("--", sys.executable, "-c", "raise SystemExit('no such order')"),
        code=3,
    )
    assert "no such order" in result.stderr
    called(
        *("chaos", "sqlite:none.db", "--kafka", kafka.bootstrap, "--point", "nowhere"),
        *("--", "true"),
        code=2,
    )
