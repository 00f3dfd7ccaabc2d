"""`delivery chaos` kills a real job on a real broker, and the audit afterwards finds nothing."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.unit.documented import undocumented
from tests.unit.operate_kit import called

JOB = Path(__file__).parent / "chaos_job.py"
ROOT = JOB.parents[2]
PARTITIONS = 2
#: Records published at once, and how often while the job is killed.
PUBLISHED, ROUNDS = 40, 60
PAUSE_SECONDS = 0.15


def test_a_job_that_is_killed_again_and_again_stays_exact(
    kafka: Kafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = unique("orders"), unique("priced")
    url, log = f"sqlite:{tmp_path / 'shop.db'}", tmp_path / "job.log"
    over = threading.Event()
    with open_client(kafka.bootstrap) as client:
        topic = client.create(source, TopicSettings(partitions=PARTITIONS))
        client.create(target, TopicSettings(partitions=PARTITIONS))

        def publish() -> None:
            with closing(client.producer()) as producer:
                for number in range(ROUNDS):
                    # Each round repeats the first record of the round before it.
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
            result = called(
                *("chaos", url, "--json", "--kafka", kafka.bootstrap),
                *("--kills", "5", "--seconds", "6s"),
                *("--kind", "point", "--kind", "job", "--seed", "7", "--log", str(log)),
                *("--", "env", f"PYTHONPATH={ROOT}"),
                *(sys.executable, str(JOB), kafka.bootstrap, url, source, target),
            )
        finally:
            over.set()
            publishing.join()
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
    left = [
        one for one in psutil.process_iter(["cmdline"]) if source in (one.info["cmdline"] or [])
    ]
    assert left == []


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
