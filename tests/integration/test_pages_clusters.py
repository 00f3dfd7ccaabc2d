"""docs/how-to/deploy.md on YARN and Kubernetes, as it stands there.

YARN's servers are the real ones. Of Kubernetes there is none: the image's commands are run where a
Spark is unpacked, what the submission asks the cluster for is kept, and the driver that it asks for
is run as the image's entrypoint does it, with executors on this machine.
"""

from __future__ import annotations

import http.server
import json
import re
import shutil
import sys
import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from delivery.kafka.opening import open_client
from delivery.services.cassandra import Cassandra
from delivery.services.java import find_java
from delivery.services.kafka import Kafka
from tests.integration.lost_kit import Shop, traffic
from tests.integration.test_pages_typed import typed
from tests.integration.yarn import yarn
from tests.pages import HOW_TO, ROOT, blocks

pytestmark = pytest.mark.slow

PAGE = f"{HOW_TO}/deploy.md"
#: In cluster mode the driver is in a container as well: no line of it runs where it was submitted.
JOB = """
from delivery import Delivery
from delivery.spark import spark_session

d = Delivery(catalog={catalog!r}, kafka={kafka!r}, pipeline={name!r})


@d.stage(reads={orders!r}, writes={priced!r}, id_from="header:id", name="price")
def price(record):
    return record


query = d.start(spark_session({name!r}), tasks=2)
query.processAllAvailable()
query.stop()
"""
#: Spark's own defaults ask for more memory than a small machine has.
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "2",
}


@pytest.fixture
def shop(
    kafka: Kafka, cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[Shop]:
    """Orders that nothing was made of yet, and beside them `job.py`, which does."""
    hosts = ",".join(f"{host}:{cassandra.port}" for host in cassandra.contact_points)
    with open_client(kafka.bootstrap) as client:
        made = Shop(client, kafka.bootstrap, tmp_path, unique("shop"))
        made.url = f"cassandra://{hosts}/{unique('clusters')}"
        made.create()
        traffic(made, 1, 200)
        names = {name: getattr(made, name) for name in ("kafka", "name", "orders", "priced")}
        (tmp_path / "job.py").write_text(JOB.format(catalog=made.url, **names))
        yield made


def of_this_clone(text: str) -> str:
    """Let something be installed from here, where a page has it from a registry."""
    assert '"exactly-once-delivery[' in text
    return text.replace('"exactly-once-delivery[', f'"{ROOT}[')


def defaults(directory: Path, **settings: str) -> dict[str, str]:
    """Write what a site sets for all jobs; return what a shell needs to find it, and Java."""
    lines = (f"{key} {value}\n" for key, value in settings.items())
    (directory / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(directory), "JAVA_HOME": str(find_java().home)}


def all_was_done(shop: Shop) -> bool:
    return (shop.doubled(shop.priced), shop.effects(shop.priced).keys()) == ({}, shop.sent)


def test_a_job_is_submitted_to_yarn(shop: Shop) -> None:
    _, text, _ = blocks(PAGE, "sh")
    text = of_this_clone(text).replace("python -m", f"{sys.executable} -m")
    shell = defaults(shop.directory, **SMALL)
    with yarn(shop.directory / "yarn") as settings:
        typed(shop.directory, text, HADOOP_CONF_DIR=str(settings), **shell)
    assert all_was_done(shop)


class Image:
    """What a Dockerfile makes, below a directory that stands for the root."""

    def __init__(self, root: Path, context: Path) -> None:
        self.root = root
        self.context = context
        # What Spark's image has: itself, unpacked, and a Python, which is none of ours.
        self.spark = root / "opt/spark"
        (self.spark / "jars").mkdir(parents=True)
        package = Path(pyspark.__file__).parent
        for jar in (package / "jars").iterdir():
            (self.spark / "jars" / jar.name).symlink_to(jar)
        for name in ("bin", "python"):
            (self.spark / name).symlink_to(package / name)
        venv.create(root / "usr", with_pip=True)
        self.variables = {"SPARK_HOME": str(self.spark), "JAVA_HOME": str(find_java().home)}

    def inside(self, text: str) -> str:
        """Let something that speaks of the root speak of the directory."""
        return text.replace("/opt/", f"{self.root}/opt/")

    def shell(self, text: str) -> str:
        """Type something in it."""
        path = f"PATH={self.root}/usr/bin:{self.spark}/bin:/usr/bin:/bin"
        return typed(self.root, path, self.inside(text), **self.variables)

    def build(self, text: str) -> None:
        """Do what each line says."""
        for word, rest in (line.split(" ", 1) for line in text.splitlines()):
            if word == "RUN":
                self.shell(of_this_clone(rest) if "exactly-once" in rest else rest)
            elif word == "ENV":
                pairs = (pair.split("=") for pair in self.inside(rest).split())
                self.variables |= dict(pairs)
            elif word == "COPY":
                source, target = rest.split()
                place = Path(self.inside(target))
                place.parent.mkdir(parents=True)
                shutil.copy(self.context / source, place)
            else:
                image = f"apache/spark:{pyspark.__version__}-python3"
                assert (word, rest) in {("FROM", image), ("USER", "root"), ("USER", "spark")}


@contextmanager
def asked(kept: list[dict[str, Any]]) -> Iterator[str]:
    """Serve as a cluster's API that grants whatever is asked for, and keeps it; yield its URL."""

    class Grants(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            thing = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.append(thing)
            thing["metadata"] |= {"uid": str(len(kept)), "namespace": "default"}
            body = json.dumps(thing).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PATCH = do_POST  # noqa: N815 - as its base names it

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Grants) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_job_is_submitted_to_kubernetes_and_runs_in_its_image(shop: Shop) -> None:
    (dockerfile,) = blocks(PAGE, "dockerfile")
    _, _, submission = blocks(PAGE, "sh")
    image = Image(shop.directory / "image", shop.directory)
    image.build(dockerfile)
    kept: list[dict[str, Any]] = []
    # Nothing runs there, so there is no end that the submission could wait for.
    shell = defaults(shop.directory, **{"spark.kubernetes.submission.waitAppCompletion": "false"})
    with asked(kept) as url:
        assert "https://cluster:6443" in submission
        typed(shop.directory, submission.replace("https://cluster:6443", url), **shell)
    found = {thing["kind"]: thing for thing in kept}
    (driver,) = found["Pod"]["spec"]["containers"]
    assert driver["image"] == "registry.example/shop:1"
    told = found["ConfigMap"]["data"]["spark.properties"]
    assert "spark.executor.instances=4\n" in told
    # Nothing that lies on the machine that submits.
    assert "spark.jars" not in told
    # The executors of a headless service find the driver by its name.
    name = found["Service"]["metadata"]["name"]
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert f"spark.driver.host={name}.default.svc\n" in told

    # As the image's entrypoint begins a driver, but that its executors are here.
    here = {"spark.master": "local[2,4]", "spark.driver.host": "127.0.0.1"}
    for key, value in here.items():
        told, count = re.subn(f"^{key}=.*$", f"{key}={value}", told, flags=re.MULTILINE)
        assert count == 1
    properties = image.root / "spark.properties"
    properties.write_text(told.replace("spark.submit.deployMode=cluster\n", ""))
    role, *args = driver["args"]
    assert role == "driver"
    mounted = "/opt/spark/conf/spark.properties"
    assert mounted in args
    command = " ".join(args).replace(mounted, properties.name)
    image.shell(
        f"spark-submit --conf spark.driver.bindAddress=127.0.0.1 --deploy-mode client {command}"
    )
    assert all_was_done(shop)
