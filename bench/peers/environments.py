"""Environments of the peers: one for each, apart from the project's own.

What it is: `python -m bench.peers.environments [PEER...]` makes what is missing below
`.cache/peers/`: virtual environments, jars, compiled Java; `python(peer)` and `java(peer, main)` say
how a program of a peer is started.
What it must not know: what the peers do.

Invariants:
    Versions are pinned: Python's in the file beside this one that has the peer's name, jars by
    checksum in `jars.lock`.
    No registry is named: uv and Ivy know their own, and their settings name a mirror.
    A part counts only if it was finished, and with its file as it is now.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import Corrupt, InvalidUsage
from delivery.services import ivy
from delivery.services.java import find_java

HERE = Path(__file__).parent
DIRECTORY = HERE.parent.parent / ".cache" / "peers"
UV = Path(sys.executable).with_name("uv")
LOCK = HERE / "jars.lock"
#: Peers that are Java programs: the source beside this file that is compiled.
PROGRAMS = {"streams": "KafkaStreamsJob.java"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jar:
    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def path(self) -> Path:
        """Where it lies below its peer's directory."""
        name = f"{self.artifact}-{self.version}.jar"
        return Path(self.group, self.artifact, self.version, name)


def python(peer: str) -> str:
    """Return the interpreter of a peer's environment."""
    return str(DIRECTORY / peer / "bin" / "python")


def java(peer: str, main: str) -> tuple[str, ...]:
    """Return the command that runs a class of a peer."""
    classpath = [DIRECTORY / peer / "classes", *sorted((DIRECTORY / peer / "jars").rglob("*.jar"))]
    options = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Xmx1g")
    return (str(find_java().executable), *options, "-cp", _joined(classpath), main)


def install(peer: str) -> None:
    """Make the environment of a peer unless it is there. May be killed and called again."""
    directory = DIRECTORY / peer
    finished = directory / "finished.txt"
    wanted = "".join(_parts(peer))
    if finished.exists() and finished.read_text(encoding="utf-8") == wanted:
        return
    print(f"{peer}: installing", file=sys.stderr, flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    if HERE.joinpath(f"{peer}.txt").exists():
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, directory], check=True)
        packages = ["--python", python(peer), "--requirements", str(HERE / f"{peer}.txt")]
        subprocess.run([UV, "pip", "install", "--quiet", *packages], check=True)
    if jars := _jars(peer):
        _fetch(jars, directory / "jars")
    if program := PROGRAMS.get(peer):
        _compile(HERE / program, directory)
    finished.parent.mkdir(parents=True, exist_ok=True)
    finished.write_text(wanted, encoding="utf-8")


def peers() -> list[str]:
    """Name every peer."""
    return sorted({path.stem for path in HERE.glob("*.txt")} | set(PROGRAMS))


def _parts(peer: str) -> Iterator[str]:
    """Say everything that an environment is made of."""
    requirements = HERE / f"{peer}.txt"
    if requirements.exists():
        yield requirements.read_text(encoding="utf-8")
    yield from (f"{jar.path} {jar.sha256}\n" for jar in _jars(peer))
    if program := PROGRAMS.get(peer):
        yield HERE.joinpath(program).read_text(encoding="utf-8")


def _jars(peer: str) -> list[_Jar]:
    found = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{peer} "):
            _, coordinate, sha256, size = line.split()
            group, artifact, version = coordinate.split(":")
            found.append(
                _Jar(group=group, artifact=artifact, version=version, sha256=sha256, size=int(size))
            )
    return found


def _fetch(jars: list[_Jar], target: Path) -> None:
    """Fetch jars, and keep them only if they are what the lock file says."""
    work = target.with_name("ivy")
    wanted = [
        ivy.dependency(jar.group, jar.artifact, jar.version, [None], transitive=False)
        for jar in jars
    ]
    files = ivy.fetch(work, wanted)
    for jar in jars:
        content = files.joinpath(jar.path).read_bytes()
        if (len(content), hashlib.sha256(content).hexdigest()) != (jar.size, jar.sha256):
            hint = f"it is not what {LOCK.name} says. Nothing was kept; run this again, and if it stays, ask who runs whatever stands between here and the registry."
            raise Corrupt("fetch the jars of a peer", str(jar.path), hint)
    files.replace(target)
    shutil.rmtree(work)


def _compile(source: Path, directory: Path) -> None:
    compiler = find_java().home / "bin" / "javac"
    if not compiler.exists():
        hint = f"there is no {compiler}. Install a JDK (Debian: openjdk-17-jdk-headless), or leave this peer out."
        raise InvalidUsage("compile a peer", source.name, hint)
    jars = sorted((directory / "jars").rglob("*.jar"))
    options = ["-Xlint:all", "-Werror", "--release", "17", "-d", str(directory / "classes")]
    subprocess.run([compiler, *options, "-cp", _joined(jars), source], check=True)


def _joined(paths: list[Path]) -> str:
    return os.pathsep.join(map(str, paths))


if __name__ == "__main__":
    for name in sys.argv[1:] or peers():
        install(name)
