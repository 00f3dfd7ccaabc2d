"""The `sh` blocks of the pages, typed into bash as they stand, on real servers.

Only addresses are others. What they do to data is looked at; what they say, where the page tells it.
Those of the tutorial run in test_tutorial.py, those that move a catalog in test_pages.py.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.java import find_java
from delivery.services.kafka import Kafka
from tests.integration.lost_kit import PARTITIONS, Shop, traffic
from tests.integration.test_spark_session import environment
from tests.pages import HOW_TO, ROOT, blocks, pages
from tests.unit.operate_kit import document

SECONDS_MAX = 300.0
#: What a page calls a command that stands in a line of it.
_INLINE = re.compile(r"`((?:delivery|python) [^`\n]+)`")


def bash(directory: Path, lines: Iterable[str], env: Mapping[str, str], seconds_max: float) -> str:
    """Type lines into a shell, which ends at the first that fails; return what was printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def typed(directory: Path, *texts: str, **changes: str) -> str:
    """Type something into a user's shell; return what was printed."""
    return bash(directory, texts, environment(**changes), SECONDS_MAX)


def inline(page: str, has: str) -> str:
    """Return the one command in the lines of a page that has these words."""
    (found,) = {one for one in _INLINE.findall(pages()[page]) if has in one}
    return found


@pytest.fixture
def shop(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Shop]:
    """Two stages that have done what there was, in the catalog of the pages: sqlite:shop.db."""
    with open_client(kafka.bootstrap) as client:
        made = Shop(client, kafka.bootstrap, tmp_path, unique("shop"))
        made.create()
        traffic(made, 1, 200)
        made.run()
        yield made


def url(shop: Shop) -> str:
    return f"sqlite:{shop.file(0)}"


def test_servers_of_a_directory_come_and_go(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (text,) = blocks("README.md", "sh")
    try:
        said = typed(tmp_path, text)
    finally:
        # Whatever it was stopped by, its servers go.
        typed(tmp_path, "delivery down --delete --yes")
    up, rest = said.split("{", 1)
    status, end = json.JSONDecoder().raw_decode("{" + rest)
    assert re.search(r"^Kafka: \S+$", up, re.MULTILINE)
    assert re.search(r"^Cassandra: \S+$", up, re.MULTILINE)
    assert status["healthy"]
    assert {node["name"] for node in status["nodes"]} == {"kafka-1", "cassandra-1"}
    logs = ("{" + rest)[end:]
    assert "kafka-1      | " in logs
    assert "cassandra-1  | " in logs
    assert "stopped " in logs.splitlines()[-1]


def made_anew(shop: Shop, topic: str) -> None:
    """Delete a topic and create it again."""
    admin = KafkaAdminClient(bootstrap_servers=shop.kafka)
    admin.delete_topics([topic])
    admin.close()
    while shop.client.describe([topic]).get(topic) is not None:
        pass
    shop.client.create(topic, TopicSettings(partitions=PARTITIONS))


def test_every_verb_of_a_stage_says_what_it_would_do(shop: Shop) -> None:
    (text,) = blocks("docs/life.md", "sh")
    text = text.replace("sqlite:shop.db orders ", f"sqlite:shop.db {shop.orders} ")
    lines = text.replace("localhost:9092", shop.kafka).splitlines()
    accept = next(line for line in lines if f" {shop.orders} " in line)
    before = document("catalog", "inspect", url(shop))["lanes"]
    said = typed(shop.directory, *(line for line in lines if line != accept))
    made_anew(shop, shop.orders)
    said += typed(shop.directory, accept)
    assert said.count("nothing was done; --yes does it") == len(lines) == 6
    after = document("catalog", "inspect", url(shop))["lanes"]
    assert [lane | {"age_ms": 0} for lane in after] == [lane | {"age_ms": 0} for lane in before]


def test_data_is_deleted(shop: Shop) -> None:
    # What is chance cannot be compressed, so it stands in the file as it is.
    secret = secrets.token_bytes(2000)

    def held() -> bool:
        files = shop.directory.glob("shop.db*")
        return any(secret[1000:1100] in one.read_bytes() for one in files)

    page = f"{HOW_TO}/delete-data.md"
    shop.publish(200, key=secret)
    shop.run()
    assert held()
    (routine,) = blocks(page, "sh")
    would, did = typed(shop.directory, routine).split("would be", 1)
    assert "would go: " in would
    assert "  gone: " in did
    assert {one["pending"] for one in document("stage", "list", url(shop))["stages"]} == {0}
    typed(shop.directory, inline(page, "--keep-entries 0 --yes"), inline(page, "VACUUM"))
    assert not held()
    # And the pipeline goes on, and still knows what it has seen.
    shop.publish(*range(1, 200, 5))
    traffic(shop, 201, 250)
    shop.run()
    assert (shop.doubled(shop.shipped), shop.missing(shop.shipped)) == ({}, set())


#: The file that the page calls shop.py: the stages of the shop, whose functions a repair never calls.
DECLARED = """
from delivery import Delivery

d = Delivery(catalog="sqlite:shop.db", kafka={kafka!r}, pipeline={name!r})


@d.stage(reads={orders!r}, writes={priced!r}, id_from="header:id", name="price")
def price(record):
    return record


@d.stage(reads={priced!r}, writes={shipped!r}, name="ship")
def ship(record):
    return record


if __name__ == "__main__":
    raise SystemExit("it is read, not started")
"""


def test_a_lost_catalog_is_had_back(shop: Shop) -> None:
    page = f"{HOW_TO}/recover-a-lost-catalog.md"
    priced = shop.effects(shop.priced)
    shop.lose(0)
    names = {name: getattr(shop, name) for name in ("kafka", "name", "orders", "priced", "shipped")}
    (shop.directory / "shop.py").write_text(DECLARED.format(**names))
    look, write = blocks(page, "sh")
    said = typed(shop.directory, look)
    assert f"{shop.name}/price" in said
    assert not shop.file(0).exists()
    typed(shop.directory, write)
    found = document("stage", "list", url(shop))["stages"]
    assert {one["stage"]: one["lanes"] for one in found} == {
        "price": PARTITIONS,
        "ship": PARTITIONS,
    }
    # Publishers repeat what they sent before the loss, and go on.
    shop.publish(*range(1, 200, 3))
    traffic(shop, 200, 250)
    shop.run()
    assert (shop.doubled(shop.shipped), shop.missing(shop.shipped)) == ({}, set())
    assert priced.items() <= shop.effects(shop.priced).items()
    audit = inline(page, "delivery audit").replace("localhost:9092", shop.kafka)
    assert "exact: " in typed(shop.directory, audit)


JOB = """
from delivery.spark import spark_session

spark = spark_session("shop")
print("executors count", spark.range(4).mapInArrow(lambda batches: batches, "id long").count())
"""


def test_a_job_is_submitted(tmp_path: Path) -> None:
    text, _, _ = blocks(f"{HOW_TO}/deploy.md", "sh")
    (tmp_path / "job.py").write_text(JOB)
    # A master and a worker of Spark's own, below the driver.
    for theirs, ours in {
        "spark://master:7077": "local-cluster[1,1,1024]",
        "/opt/venv/bin/python": sys.executable,
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    assert "executors count 4" in typed(tmp_path, text, JAVA_HOME=str(find_java().home))


def test_a_plan_is_replayed() -> None:
    (text,) = blocks("docs/protocol.md", "sh")
    assert typed(ROOT, text.replace(".venv/bin/python", sys.executable)) == "everything held\n"
