"""Writes `jars.lock` anew: `python -m delivery.services.relock`, after changing `ROOTS` below.

What it is: the one place that says which jars are wanted by name; Ivy adds what these need, and the
result is pinned. It takes some minutes, because here Ivy reads every POM file.
What it must not know: how the jars are used.

Invariants:
    Nobody calls this at run time: what runs is what the lock file in git says.
    The same roots give the same lock file for as long as the registry's files stay what they are.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from delivery.services import ivy
from delivery.services.jars import LOCK_FILE, Tree, to_stderr

__all__ = ["ROOTS", "main"]

#: (group, artifact, version) and whether what it needs at run time comes with it.
ROOTS: dict[Tree, tuple[tuple[str, str, str, bool], ...]] = {
    Tree.KAFKA: (
        ("org.apache.kafka", "kafka_2.13", "4.3.1", True),
        # Kafka logs through slf4j 1.7 and brings no binding of its own.
        ("org.slf4j", "slf4j-simple", "1.7.36", False),
    ),
    Tree.CASSANDRA: (("org.apache.cassandra", "cassandra-all", "5.0.8", True),),
    # Named one by one: everything else that the connector needs is inside PySpark, and a second
    # copy on the classpath would win over it or lose by chance.
    Tree.SPARK_KAFKA: (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", False),
        # Not every registry has 4.2.0 of this one; the preview works with 4.2.0.
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", False),
        ("org.apache.kafka", "kafka-clients", "3.9.2", False),
        ("org.apache.commons", "commons-pool2", "2.13.1", False),
    ),
}

HEADER = """\
# Every jar that servers and Spark need: tree, coordinate, sha256, size in bytes.
# Written by `python -m delivery.services.relock`; do not edit by hand.
"""


def main() -> int:
    """Resolve every tree and write the lock file."""
    lines = [line for tree in Tree for line in _resolve(tree)]
    LOCK_FILE.write_text(HEADER + "\n".join(lines) + "\n")
    to_stderr(f"wrote {LOCK_FILE}: {len(lines)} jars")
    return 0


def _resolve(tree: Tree) -> list[str]:
    to_stderr(f"resolving {tree}")
    wanted = [
        ivy.dependency(group, artifact, version, (None,), transitive=transitive)
        for group, artifact, version, transitive in ROOTS[tree]
    ]
    with tempfile.TemporaryDirectory(prefix="relock-") as work:
        files = ivy.fetch(Path(work), wanted, poms=True)
        return sorted(
            _line(tree, jar.relative_to(files), jar.read_bytes()) for jar in files.rglob("*.jar")
        )


def _line(tree: Tree, relative: Path, content: bytes) -> str:
    """Return the lock file's line for a jar at group/artifact/version/file."""
    group, artifact, version, name = relative.parts
    classifier = name.removesuffix(".jar").removeprefix(f"{artifact}-{version}").removeprefix("-")
    coordinate = ":".join(part for part in (group, artifact, version, classifier) if part)
    return f"{tree} {coordinate} {hashlib.sha256(content).hexdigest()} {len(content)}"


if __name__ == "__main__":
    sys.exit(main())
