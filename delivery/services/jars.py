"""The jars that servers and Spark need: pinned, fetched once, checked, shared by all checkouts.

What it is: `jars(tree)`, which returns the local paths of every jar that `jars.lock` names for a
tree and fetches those that are missing with PySpark's own Ivy, so that nothing but Python and Java
is needed. Which registry that is, Ivy knows by itself; `$DEFAULT_ARTIFACT_REPOSITORY` names a
mirror, as it does for Spark's own `--packages`.
What it must not know: what the jars are for, how a server is started, Spark's session.

Invariants:
    A path is returned only if the file has the size and checksum of the lock file.
    A file appears under its final name whole and checked, by one rename; a download that is killed
    leaves at most files under `ivy/`, which the next one checks and uses.
    One process downloads at a time; its JVM holds the lock as well, so a killed parent frees
    nothing while files are still being written.
    Nothing outside of the cache directory is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dedup.errors import Corrupt, Unavailable
from delivery.services import ivy
from delivery.services.cache import cache_directory

__all__ = ["Pin", "Report", "Tree", "jars", "missing", "pins", "to_stderr"]

#: Told what is going on, one line at a time.
Report = Callable[[str], None]

LOCK_FILE = Path(__file__).with_name("jars.lock")
#: Somebody waits for the jars: say something this often.
REPORT_SECONDS = 2.0
#: How often a process that waits for another's download looks again.
POLL_SECONDS = 0.25
#: How long it waits: all trees are 140 MB, which take 20 minutes at 1 Mbit/s.
WAIT_SECONDS_MAX = 3600.0

_LOCK_LINE = re.compile(
    r"(?P<tree>[\w-]+) (?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)"
    r"(?::(?P<classifier>[\w-]+))? (?P<sha256>[0-9a-f]{64}) (?P<size>\d+)"
)


class Tree(StrEnum):
    """A set of jars that goes on one classpath."""

    KAFKA = "kafka"
    CASSANDRA = "cassandra"
    SPARK_KAFKA = "spark-kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One line of the lock file: which jar, and which bytes."""

    tree: Tree
    group: str
    artifact: str
    version: str
    classifier: str | None
    sha256: str
    size: int

    @property
    def coordinate(self) -> str:
        """Return group:artifact:version, and :classifier if there is one."""
        parts = (self.group, self.artifact, self.version, self.classifier)
        return ":".join(part for part in parts if part)

    @property
    def relative(self) -> Path:
        """Where the jar lies below a directory laid out as `LAYOUT`."""
        tail = f"-{self.classifier}" if self.classifier else ""
        name = f"{self.artifact}-{self.version}{tail}.jar"
        return Path(self.group, self.artifact, self.version, name)

    @property
    def stamp(self) -> int:
        """The modification time a checked file is given.

        Whoever writes to the file moves it, so that a look at size and time tells whether the
        checksum must be computed again: 150 jars in milliseconds, and no list beside the files
        that could disagree with them.
        """
        return int(self.sha256[:7], 16)


def to_stderr(line: str) -> None:
    """Report to the person in front of the terminal."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress is for a person, not for a log


def jars(tree: Tree, *, report: Report = to_stderr, verify: bool = False) -> list[Path]:
    """Return the local path of every jar of `tree`, in lock file order, fetching what is missing.

    May be called from any number of processes at once: one fetches, the others wait. A call that
    is killed loses only the file it was reading.

    Args:
        tree: which jars.
        report: told when a download starts, at least every 2 s while it runs, and when it ends.
        verify: compute every checksum again instead of trusting size and modification time.

    Raises:
        Unavailable: no network, or the registry does not answer. Jars fetched so far are kept.
        Corrupt: a download is not what the lock file says. It was not kept.
        InvalidUsage: no Java, or no PySpark.
    """
    wanted = missing(tree, verify=verify)
    if wanted:
        with _only_one(tree, report) as lock:
            _fetch(tree, report, verify=verify, lock=lock)
    return [_kept(pin) for pin in pins(tree)]


def missing(tree: Tree, *, verify: bool = False) -> list[Pin]:
    """Name the jars of `tree` that are absent or not what the lock file says. Fetches nothing."""
    return [pin for pin in pins(tree) if not _is_sound(_kept(pin), pin, verify=verify)]


@functools.cache
def pins(tree: Tree) -> tuple[Pin, ...]:
    """Return what the lock file names for `tree`."""
    return tuple(pin for pin in parse(LOCK_FILE.read_text()) if pin.tree is tree)


def parse(text: str) -> list[Pin]:
    """Read a lock file: `tree group:artifact:version[:classifier] sha256 size`, # for comments.

    Raises:
        Corrupt: a line is something else.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LOCK_LINE.fullmatch(line)
        if match is None or match["tree"] not in set(Tree):
            hint = f"line {number} is not `tree coordinate sha256 size`. Restore the file from git, or write it again with `python -m delivery.services.relock`."
            raise Corrupt("read the jar list", str(LOCK_FILE), hint)
        found.append(
            Pin(
                tree=Tree(match["tree"]),
                group=match["group"],
                artifact=match["artifact"],
                version=match["version"],
                classifier=match["classifier"],
                sha256=match["sha256"],
                size=int(match["size"]),
            )
        )
    return found


def _kept(pin: Pin) -> Path:
    return cache_directory() / "jars" / pin.relative


def _is_sound(path: Path, pin: Pin, *, verify: bool) -> bool:
    """Whether `path` holds the bytes of `pin`; the checksum is computed only where it must be."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.st_size != pin.size:
        return False
    if stat.st_mtime == pin.stamp and not verify:
        return True
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != pin.sha256:
            return False
    # A complete cache may belong to somebody else and be read-only: checking again is only slow.
    with contextlib.suppress(PermissionError):
        os.utime(path, (pin.stamp, pin.stamp))
    return True


@contextlib.contextmanager
def _only_one(tree: Tree, report: Report) -> Iterator[int]:
    """Hold the right to download; wait for whoever has it, and say so. Yields the lock's file."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    spoken_at = -REPORT_SECONDS
    with (directory / "ivy.flock").open("w") as lock:
        while not _locked(lock.fileno()):
            now = time.monotonic()
            if now > deadline:
                hint = f"another process has been downloading for {WAIT_SECONDS_MAX:.0f} s. End the java process that writes to {directory / 'ivy'} and run this again; what it fetched is kept."
                raise Unavailable("fetch jars", str(directory), hint)
            if now >= spoken_at + REPORT_SECONDS:
                report(f"{tree} jars: waiting for another process that is downloading")
                spoken_at = now
            time.sleep(POLL_SECONDS)
        yield lock.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fetch(tree: Tree, report: Report, *, verify: bool, lock: int) -> None:
    """Fetch what `tree` lacks. Whoever calls holds the lock."""
    work = cache_directory() / "ivy"
    _collect(tree, work, verify=verify)  # what a killed download left, or another one brought
    wanted = missing(tree, verify=verify)
    if not wanted:
        return
    megabytes = sum(pin.size for pin in wanted) / 1e6
    report(f"{tree} jars: fetching {len(wanted)} of {len(pins(tree))}, {megabytes:.0f} MB")
    began_at = time.monotonic()
    # Ivy takes a file that is there for the right one, so it starts from nothing.
    shutil.rmtree(work, ignore_errors=True)
    try:
        ivy.fetch(work, _dependencies(wanted), tick=_progress(tree, wanted, report), hold=(lock,))
    except Unavailable:
        _collect(tree, work, verify=verify)  # the next run asks only for the rest
        raise
    strange = _collect(tree, work, verify=verify)
    shutil.rmtree(work, ignore_errors=True)
    if strange:
        raise _not_what_was_pinned(strange)
    report(f"{tree} jars: complete after {time.monotonic() - began_at:.0f} s")


def _collect(tree: Tree, work: Path, *, verify: bool) -> list[Pin]:
    """Move what was fetched and is right to its place; return what was fetched and is wrong."""
    strange = []
    for pin in missing(tree, verify=verify):
        fetched = work / "files" / pin.relative
        if _is_sound(fetched, pin, verify=True):
            kept = _kept(pin)
            kept.parent.mkdir(parents=True, exist_ok=True)
            fetched.replace(kept)
        elif fetched.exists():
            strange.append(pin)
    return strange


def _dependencies(wanted: Sequence[Pin]) -> list[str]:
    """Say to Ivy what is wanted: each module once, with all its classifiers."""
    modules: dict[tuple[str, str, str], list[str | None]] = {}
    for pin in wanted:
        modules.setdefault((pin.group, pin.artifact, pin.version), []).append(pin.classifier)
    return [
        ivy.dependency(*module, classifiers, transitive=False)
        for module, classifiers in modules.items()
    ]


def _progress(tree: Tree, wanted: Sequence[Pin], report: Report) -> ivy.Tick:
    """Return a tick that reports at most every `REPORT_SECONDS`."""
    megabytes = sum(pin.size for pin in wanted) / 1e6
    spoken_at = time.monotonic()

    def tick(files: int, bytes_read: int) -> None:
        nonlocal spoken_at
        if time.monotonic() >= spoken_at + REPORT_SECONDS:
            spoken_at = time.monotonic()
            report(
                f"{tree} jars: {files} of {len(wanted)}, {bytes_read / 1e6:.0f} of {megabytes:.0f} MB"
            )

    return tick


def _not_what_was_pinned(strange: Sequence[Pin]) -> Corrupt:
    names = ", ".join(pin.coordinate for pin in strange)
    hint = "what was downloaded has another checksum than jars.lock says. None of it was kept or used. Run this again; if it stays, whatever stands between here and the registry (DEFAULT_ARTIFACT_REPOSITORY, a proxy) changes files: ask who runs it, or go around it."
    return Corrupt("fetch jars", names, hint)
