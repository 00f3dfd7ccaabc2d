"""The list of jars and what is found on disk; fetching is tested in tests/integration."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from dedup.errors import Corrupt
from delivery.services import jars as module
from delivery.services.jars import Tree, jars, missing, parse, pins
from delivery.services.relock import ROOTS

CONTENTS = [b"one", b"two" * 1000]
COORDINATES = ["org.example:one:1.0", "org.example.deep:two_2.13:2.0-beta:linux-x86_64"]


@pytest.fixture
def lock(monkeypatch, tmp_path):
    """A lock file with two jars, both of which are in the cache."""
    monkeypatch.setenv("DELIVERY_CACHE", str(tmp_path / "cache"))
    lines = ["# a comment", ""]
    for coordinate, content in zip(COORDINATES, CONTENTS, strict=True):
        lines.append(f"kafka {coordinate} {hashlib.sha256(content).hexdigest()} {len(content)}")
    path = tmp_path / "jars.lock"
    path.write_text("\n".join(lines))
    monkeypatch.setattr(module, "LOCK_FILE", path)
    pins.cache_clear()
    for pin, content in zip(pins(Tree.KAFKA), CONTENTS, strict=True):
        kept = tmp_path / "cache" / "jars" / pin.relative
        kept.parent.mkdir(parents=True)
        kept.write_bytes(content)
    yield path
    pins.cache_clear()


def names(found) -> list[str]:
    return [pin.artifact for pin in found]


def test_a_line_names_a_jar_and_its_bytes():
    (pin,) = parse(f"cassandra org.example:two_2.13:2.0-beta:linux-x86_64 {'a' * 64} 7\n")
    assert pin.coordinate == "org.example:two_2.13:2.0-beta:linux-x86_64"
    assert pin.relative.as_posix() == (
        "org.example/two_2.13/2.0-beta/two_2.13-2.0-beta-linux-x86_64.jar"
    )
    assert (pin.tree, pin.sha256, pin.size) == (Tree.CASSANDRA, "a" * 64, 7)


@pytest.mark.parametrize(
    "line",
    [
        f"kafka org.example:one:1.0 {'a' * 63} 7",
        f"kafka org.example:one {'a' * 64} 7",
        f"kafka org.example:one:1.0 {'a' * 64}",
        f"kafka org.example:../one:1.0 {'a' * 64} 7",
        f"pulsar org.example:one:1.0 {'a' * 64} 7",
    ],
    ids=["short checksum", "no version", "no size", "a path", "no such tree"],
)
def test_any_other_line_is_refused_by_number(line):
    with pytest.raises(Corrupt, match="line 2"):
        parse(f"# first\n{line}\n")


@pytest.mark.parametrize("tree", list(Tree))
def test_the_lock_file_pins_what_is_wanted_once(tree):
    pinned = pins(tree)
    wanted = {f"{group}:{artifact}:{version}" for group, artifact, version, _ in ROOTS[tree]}
    assert wanted <= {pin.coordinate for pin in pinned}
    # One version of each module on a classpath, and one file name for each.
    versions = {(pin.group, pin.artifact): pin.version for pin in pinned}
    assert all(versions[pin.group, pin.artifact] == pin.version for pin in pinned)
    assert len({pin.relative.name for pin in pinned}) == len(pinned)


@pytest.mark.usefixtures("lock")
def test_complete_jars_are_returned_in_order_and_nothing_is_fetched(tmp_path):
    said: list[str] = []
    found = jars(Tree.KAFKA, report=said.append)
    assert [path.read_bytes() for path in found] == CONTENTS
    assert said == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["jars"]


@pytest.mark.usefixtures("lock")
def test_an_absent_and_a_truncated_jar_are_missing():
    one, two = jars(Tree.KAFKA)
    one.unlink()
    os.truncate(two, 100)
    assert names(missing(Tree.KAFKA)) == ["one", "two_2.13"]


@pytest.mark.usefixtures("lock")
def test_a_jar_that_was_written_to_is_missing():
    _, two = jars(Tree.KAFKA)
    two.write_bytes(two.read_bytes().replace(b"t", b"T"))
    assert names(missing(Tree.KAFKA)) == ["two_2.13"]


@pytest.mark.usefixtures("lock")
def test_what_a_disk_changed_behind_our_back_takes_a_full_check():
    _, two = jars(Tree.KAFKA)
    stat = two.stat()
    two.write_bytes(two.read_bytes().replace(b"t", b"T"))
    os.utime(two, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert missing(Tree.KAFKA) == []
    assert names(missing(Tree.KAFKA, verify=True)) == ["two_2.13"]


@pytest.mark.usefixtures("lock")
def test_a_copied_cache_is_checked_once():
    one, two = jars(Tree.KAFKA)
    stamps = [one.stat().st_mtime, two.stat().st_mtime]
    now = time.time()
    os.utime(one, (now, now))
    os.utime(two, (now, now))
    assert missing(Tree.KAFKA) == []
    assert [one.stat().st_mtime, two.stat().st_mtime] == stamps
