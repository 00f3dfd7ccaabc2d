"""What may be wrong with this machine, and what to do about it.

What it is: one function per check, each returning findings; `examine` runs them all.
What it must not know: how findings are printed. It changes nothing and downloads nothing.

Invariants:
    Every finding that is not `ok` says what to do.
    A check that cannot look (nothing runs, an extra is not installed) says so, and is no failure.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dedup.compiled import kernels
from dedup.compiled.making import LIBRARY
from dedup.errors import DeliveryError
from delivery.services import cassandra, ports
from delivery.services.cache import cache_directory
from delivery.services.instance import Instance
from delivery.services.jars import Tree, missing, pins
from delivery.services.java import WHEEL, find_java
from delivery.services.node import Health

__all__ = ["Finding", "Verdict", "examine"]

DISTRIBUTION = "exactly-once-delivery"

#: Our import packages; every one may be shadowed by a folder of the user's.
PACKAGES = ("delivery", "dedup", "sinks", "connectors")

#: Below this nothing can be relied on; below the second it is time to look.
DISK_BYTES_MIN = 1 << 30
DISK_BYTES_GOOD = 5 << 30

#: SQLite before this may corrupt a WAL file when two processes write and checkpoint at once.
SQLITE_GOOD = (3, 51, 3)

#: What acknowledges a write only after it is on disk.
SYNCED = ("batch", "group")

#: The jar of which Spark asks that it is of its own version.
_CONNECTOR = "spark-sql-kafka-0-10_2.13"

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<versions>[^;]*)(;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra == ['\"](?P<extra>[\w-]+)['\"]")
_BOUND = re.compile(r"(?P<operator>>=|==|<)(?P<version>[\d.]+)")


class Verdict(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at.

    Attributes:
        check: what was looked at.
        verdict: how it is.
        found: what was found.
        advice: what to do; empty if nothing is to be done.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine(directory: Path, contact: tuple[str, int] | None = None) -> Iterator[Finding]:
    """Run every check for the servers of a directory, and for another Cassandra if one is named."""
    yield from _java()
    yield from _jars()
    yield from _packages(directory)
    yield from _drivers()
    yield from _compiled()
    yield from _sqlite()
    yield from _disk(directory)
    yield from _loopback()
    yield from _servers(Instance(directory))
    if contact is not None:
        yield from _cassandra(*contact)


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except DeliveryError as error:
        yield Finding(check="java", verdict=Verdict.BROKEN, found=error.subject, advice=error.hint)
        return
    found = f"{java.version} at {java.executable} ({java.source})"
    if java.source.startswith(WHEEL.split()[0]):
        advice = "good for trying out, and old; install Java 17 from your system's packages"
        yield Finding(check="java", verdict=Verdict.NOTE, found=found, advice=advice)
    else:
        yield Finding(check="java", verdict=Verdict.OK, found=found)


def _jars() -> Iterator[Finding]:
    for tree in Tree:
        lacking = missing(tree, verify=True)
        check = f"jars {tree}"
        wrong = [pin for pin in lacking if (cache_directory() / "jars" / pin.relative).exists()]
        if wrong:
            names = ", ".join(pin.coordinate for pin in wrong)
            advice = (
                "these files are not what was published; what is needed is fetched again by "
                "the next `delivery up` or Spark session; if it comes back, suspect the disk"
            )
            yield Finding(check=check, verdict=Verdict.BROKEN, found=names, advice=advice)
        elif lacking:
            found = f"{len(lacking)} of {len(pins(tree))} are not here yet"
            advice = "nothing; they are fetched when they are first needed"
            yield Finding(check=check, verdict=Verdict.NOTE, found=found, advice=advice)
        else:
            found = f"{len(pins(tree))}, every checksum right"
            yield Finding(check=check, verdict=Verdict.OK, found=found)


def _packages(directory: Path) -> Iterator[Finding]:
    """Resolve our names as a script in the user's directory would."""
    ours = Path(__file__).resolve().parent.parent.parent
    path = [str(directory.absolute()), *sys.path]
    for name in PACKAGES:
        if not (ours / name / "__init__.py").exists():
            continue  # this version does not ship it, so nothing can hide it
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        origin = spec.origin if spec else None
        check = f"package {name}"
        if origin is not None and Path(origin).resolve() == ours / name / "__init__.py":
            yield Finding(check=check, verdict=Verdict.OK, found=origin)
            continue
        if origin is None:
            advice = f"{ours} is not on Python's path; install {DISTRIBUTION} again"
        else:
            advice = (
                f"this is not ours ({ours / name}); a script started here imports it instead; "
                "rename it, or start your job from another directory"
            )
        found = origin or "not found"
        yield Finding(check=check, verdict=Verdict.BROKEN, found=found, advice=advice)


def _drivers() -> Iterator[Finding]:
    """Compare what is installed with what our own metadata asks for."""
    told = set()
    for line in importlib.metadata.requires(DISTRIBUTION) or []:
        match = _REQUIREMENT.match(line)
        assert match is not None, "every requirement has a name"
        name, versions = match["name"], match["versions"].strip()
        extra = _EXTRA.search(match["marker"] or "")
        if name == DISTRIBUTION or (extra and extra["extra"] in ("all", "jre")):
            continue  # `all` repeats the others; Java has a check of its own
        if (name, versions) in told:
            continue  # several extras need it
        told.add((name, versions))
        check = f"driver {name}"
        wanted = f"{DISTRIBUTION}[{extra['extra']}]" if extra else DISTRIBUTION
        install = f'pip install "{wanted}"'
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            verdict = Verdict.NOTE if extra else Verdict.BROKEN
            advice = f"if you need it: {install}" if extra else install
            yield Finding(check=check, verdict=verdict, found="not installed", advice=advice)
            continue
        if fits(version, versions):
            yield _fitting(check, version, name)
        else:
            found = f"{version}, and {versions} is supported"
            yield Finding(check=check, verdict=Verdict.BROKEN, found=found, advice=install)


def _fitting(check: str, version: str, name: str) -> Finding:
    """Say of a version that is supported whether it also is the one that our jars are made for."""
    made = next(pin.version for pin in pins(Tree.SPARK_KAFKA) if pin.artifact == _CONNECTOR)
    if name != "pyspark" or version == made:
        return Finding(check=check, verdict=Verdict.OK, found=version)
    if version.split(".")[:2] == made.split(".")[:2]:
        # Releases that differ in the last number only go together.
        found = f"{version}, with Kafka connector jars of {made}"
        return Finding(check=check, verdict=Verdict.OK, found=found)
    return Finding(
        check=check,
        verdict=Verdict.NOTE,
        found=f"{version}, with Kafka connector jars of {made}",
        advice=f"it should do; tested together are the jars and this: pip install pyspark=={made}",
    )


def fits(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds as our own metadata states them (>=, <, ==)."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]

    for bound in _BOUND.finditer(bounds):
        has, limit = numbers(version), numbers(bound["version"])
        if bound["operator"] == ">=" and has < limit:
            return False
        if bound["operator"] == "<" and has >= limit:
            return False
        if bound["operator"] == "==" and has != limit:
            return False
    return True


def _compiled() -> Iterator[Finding]:
    check, why_not = "compiled library", kernels.why_not()
    if why_not is None:
        yield Finding(check=check, verdict=Verdict.OK, found=LIBRARY.name)
        return
    advice = (
        "everything works, and deduplication takes more CPU: install a C compiler (Debian: gcc) and "
        "then this package anew from its source (`pip install --no-cache-dir`)"
    )
    yield Finding(check=check, verdict=Verdict.NOTE, found=why_not, advice=advice)


def _sqlite() -> Iterator[Finding]:
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SQLITE_GOOD:
        yield Finding(check="sqlite", verdict=Verdict.OK, found=found)
        return
    wanted = ".".join(map(str, SQLITE_GOOD))
    advice = (
        f"before {wanted} two processes that write and checkpoint at once may damage a file in "
        "WAL mode; our catalog takes a file lock around both, so it is safe; let no other "
        "program write to the catalog's file, and keep it on a local disk"
    )
    yield Finding(check="sqlite", verdict=Verdict.NOTE, found=found, advice=advice)


def _disk(directory: Path) -> Iterator[Finding]:
    for check, path in (("disk", directory.absolute()), ("disk of jars", cache_directory())):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        found = f"{free / (1 << 30):.1f} GiB free at {existing}"
        refusal = _refuses_files(existing)
        if refusal:
            verdict = Verdict.BROKEN
            advice = f"it takes no files ({refusal}): take another directory, or let this user write there"
        elif free < DISK_BYTES_MIN:
            verdict, advice = Verdict.BROKEN, "make room before you start anything"
        elif free < DISK_BYTES_GOOD:
            verdict, advice = Verdict.NOTE, "make room soon; servers stop when the disk is full"
        else:
            verdict, advice = Verdict.OK, ""
        yield Finding(check=check, verdict=verdict, found=found, advice=advice)


def _refuses_files(directory: Path) -> str:
    """Return why a file cannot be made there; nothing if it can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _loopback() -> Iterator[Finding]:
    addresses = [f"127.0.0.{index}" for index in (1, 2, 3)]
    check = "loopback addresses"
    try:
        ports.busy(0, addresses)  # port 0: any
    except DeliveryError as error:
        yield Finding(check=check, verdict=Verdict.NOTE, found=error.subject, advice=error.hint)
    else:
        yield Finding(check=check, verdict=Verdict.OK, found=", ".join(addresses))


def _servers(instance: Instance) -> Iterator[Finding]:
    known = instance.state()
    if known is None:
        found = f"none in {instance.directory}"
        yield Finding(check="servers", verdict=Verdict.OK, found=found)
        return
    running = set()
    for node in instance.status():
        check = f"server {node.name}"
        found = f"{node.health} at {node.address}"
        if node.health is Health.RUNNING:
            running.add(node.name)
        if node.health in (Health.RUNNING, Health.STOPPED):
            yield Finding(check=check, verdict=Verdict.OK, found=found)
        else:
            advice = f"`delivery up` heals it, `delivery logs {node.name}` may say why"
            yield Finding(check=check, verdict=Verdict.BROKEN, found=found, advice=advice)
    for each in instance.nodes(known):
        if each.name not in running and each.process() is None:
            yield from _ports(each.name, each.cluster.ports(each.index))
    if known.cassandra is not None and "cassandra-1" in running:
        yield from _cassandra(known.cassandra.host(1), known.cassandra.port)


def _ports(name: str, used: dict[int, str]) -> Iterator[Finding]:
    for port, address in used.items():
        if ports.busy(port, [address]) is not None:
            check = f"port of {name}"
            found = f"another program listens on {address}:{port}"
            advice = f"`lsof -i :{port}` names it; end it, then run `delivery up`"
            yield Finding(check=check, verdict=Verdict.BROKEN, found=found, advice=advice)


def _cassandra(host: str, port: int) -> Iterator[Finding]:
    try:
        variants = cassandra.variants(host, port)
    except DeliveryError as error:
        check = f"cassandra {host}:{port}"
        advice = "start it, or correct the address; its settings were not seen"
        yield Finding(check=check, verdict=Verdict.BROKEN, found=error.hint, advice=advice)
        return
    sync, paxos = variants["commitlog_sync"], variants["paxos_variant"]
    if sync in SYNCED:
        yield Finding(check="commitlog_sync", verdict=Verdict.OK, found=sync)
    else:
        advice = (
            "a write is acknowledged before it is on disk: kill -9 or a power cut may lose "
            "seals that were acknowledged; set `commitlog_sync: batch` on every node"
        )
        yield Finding(check="commitlog_sync", verdict=Verdict.BROKEN, found=sync, advice=advice)
    if paxos == cassandra.PAXOS_VARIANT:
        yield Finding(check="paxos_variant", verdict=Verdict.OK, found=paxos)
    else:
        advice = (
            "conditional writes take twice the round trips and are not linearizable while the "
            "cluster changes; set `paxos_variant: v2` on every node"
        )
        yield Finding(check="paxos_variant", verdict=Verdict.NOTE, found=paxos, advice=advice)
