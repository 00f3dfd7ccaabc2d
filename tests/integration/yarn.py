"""YARN for tests: a ResourceManager and a NodeManager, the real ones, on this machine.

What it is: `yarn`, a context that starts both and gives what `HADOOP_CONF_DIR` must name.
What it must not know: Spark, and what is submitted.

Invariants:
    Both are of the Hadoop that PySpark carries: its client's version is theirs.
    They die with the process that started them, and leave nothing outside of their directory but
    the jars, which are kept for the next time.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyspark

from delivery.services import ivy
from delivery.services.cache import cache_directory
from delivery.services.java import find_java
from delivery.services.process import Lifeline, spawn, until

JARS = Path(pyspark.__file__).parent / "jars"
#: What Hadoop's servers need and PySpark does not carry: RSA certificates of the proxy.
BOUNCY_CASTLE = ("bcprov-jdk18on", "bcpkix-jdk18on", "bcutil-jdk18on")
BOUNCY_CASTLE_VERSION = "1.82"
#: Of PySpark's jars these alone: the others have classes of the same names.
CARRIED = (
    "hadoop-client-api-*",
    "hadoop-client-runtime-*",
    "slf4j-api-*",
    "jcl-over-slf4j-*",
    "log4j-*",
)
SERVERS = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 30.0
HOST = "127.0.0.1"


@contextmanager
def yarn(directory: Path) -> Iterator[Path]:
    """Start both in a directory of their own, and stop them; yield where their settings are."""
    settings = directory / "conf"
    settings.mkdir(parents=True)
    web = _free()
    (settings / "core-site.xml").write_text(
        _xml({"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(directory / "tmp")})
    )
    (settings / "yarn-site.xml").write_text(_xml(_settings(directory, web)))
    classpath = ":".join(map(str, [settings, *_jars()]))
    with ExitStack() as stack:
        lifeline = stack.enter_context(closing(Lifeline(directory)))
        for name in SERVERS:
            place = directory / name
            place.mkdir()
            main = f"org.apache.hadoop.yarn.server.{name}"
            java = str(find_java().executable)
            server = spawn([java, "-Xmx384m", "-cp", classpath, main], place, lifeline)
            stack.callback(server.stop, STOP_SECONDS_MAX)
        if not until(lambda: _nodes(web) == 1, START_SECONDS_MAX):
            said = [place.read_text(errors="replace") for place in directory.glob("*/server.log")]
            raise AssertionError("\n".join(said)[-4000:])
        yield settings


def _settings(directory: Path, web: int) -> dict[str, str]:
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    calls = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    fifo = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    return {
        **{f"{manager}.{call}": f"{HOST}:{_free()}" for call in calls},
        f"{manager}.webapp.address": f"{HOST}:{web}",
        f"{manager}.scheduler.class": fifo,
        **{f"{node}.{name}": f"{HOST}:0" for name in ("address", "localizer.address")},
        f"{node}.webapp.address": f"{HOST}:0",
        f"{node}.local-dirs": str(directory / "local"),
        f"{node}.log-dirs": str(directory / "logs"),
        f"{node}.resource.memory-mb": "6144",
        f"{node}.resource.cpu-vcores": "8",
        "yarn.scheduler.minimum-allocation-mb": "256",
        # The machine's disk may be full to nine tenths, and a JVM asks for more than it touches.
        f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        f"{node}.vmem-check-enabled": "false",
    }


def _xml(settings: dict[str, str]) -> str:
    rows = (f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    return f"<configuration>{''.join(rows)}</configuration>"


def _jars() -> list[Path]:
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    wanted = [("org.apache.hadoop", "hadoop-client-minicluster", version)]
    wanted += [("org.bouncycastle", name, BOUNCY_CASTLE_VERSION) for name in BOUNCY_CASTLE]
    words = [ivy.dependency(*one, [None], transitive=False) for one in wanted]
    files = ivy.fetch(cache_directory() / "yarn", words)
    fetched = [next(files.rglob(f"{name}-{version}.jar")) for _, name, version in wanted]
    return [*fetched, *(jar for pattern in CARRIED for jar in JARS.glob(f"{pattern}.jar"))]


def _nodes(web: int) -> int:
    """Return how many nodes the manager has; none while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{web}/ws/v1/cluster/metrics") as answer:
            return int(json.load(answer)["clusterMetrics"]["activeNodes"])
    except OSError:
        return 0


def _free() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])
