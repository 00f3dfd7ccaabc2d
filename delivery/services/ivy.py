"""PySpark's own Ivy as a program of its own: coordinates in, files of a Maven repository out.

What it is: one run of the Ivy that every PySpark carries, in a JVM of its own. Without the POM
files of the jars it asks for nothing but the jars, which is six times as fast; with them it finds
the jars that other jars need.
What it must not know: which jars are wanted and why, checksums, the lock file.

Invariants:
    No registry is named here: Ivy knows Maven Central by itself, and $DEFAULT_ARTIFACT_REPOSITORY
    names a mirror, as it does for Spark's own `--packages`.
    Ivy writes below the directory it is given and nowhere else, whatever HOME says.
    Files stand under `files/`, laid out as `LAYOUT`; an unfinished one has another name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dedup.errors import InvalidUsage, Unavailable
from delivery.services import trust
from delivery.services.java import WHEEL, find_java

__all__ = ["LAYOUT", "Tick", "dependency", "fetch"]

#: Told how many files are complete and how many bytes have come.
Tick = Callable[[int, int], None]

#: The layout every Maven repository has.
LAYOUT = "[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
#: What Ivy waits for one connection, and for one read of it.
CONNECT_MILLISECONDS_MAX = 10_000
READ_MILLISECONDS_MAX = 30_000
#: Ivy asks for every file in turn, however many time-outs that takes; when nothing has come for
#: this long, nothing will.
STALL_SECONDS_MAX = 90.0
#: How often that is looked at, and `tick` called.
POLL_SECONDS = 0.25
#: A registry that has a bad moment is asked this many times.
TRIES_MAX = 3
#: How many lines of Ivy's own words an error carries.
PROBLEM_LINES_MAX = 4

_NO_NETWORK = re.compile(
    r"UnknownHost|Host \S+ not found|Connection refused|ConnectException|NoRouteToHost|Network is unreachable"
    r"|timed? ?out|Connection reset|Server access error",
    re.IGNORECASE,
)

# `work` and `repository` are properties on the command line, so that no path is written into XML.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="registry"/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="{connect}" readTimeout="{read}"/>
  </timeout-constraints>
  <caches defaultCacheDir="${{work}}/files" artifactPattern="{layout}"/>
  <resolvers>
    <ibiblio name="registry" {root}m2compatible="true" usepoms="{poms}" checksums=""
             timeoutConstraint="bounded"/>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="delivery" module="wanted"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def dependency(
    group: str, artifact: str, version: str, classifiers: Sequence[str | None], *, transitive: bool
) -> str:
    """Return Ivy's words for the jars of one module, one for each classifier (None: the plain one).

    With `transitive` the jars it needs at run time come too; that takes its POM files.
    """
    # Without a POM Ivy makes up a module with one configuration, "default"; with one it maps the
    # scopes to configurations, and what a program needs to run is called "runtime".
    head = f'<dependency org="{group}" name="{artifact}" rev="{version}"'
    head += f' transitive="{str(transitive).lower()}" conf="default->default(runtime)"'
    if list(classifiers) == [None]:
        return f"    {head}/>"
    jars = "".join(
        f'<artifact name="{artifact}" type="jar" ext="jar"'
        + (f' m:classifier="{classifier}"/>' if classifier else "/>")
        for classifier in classifiers
    )
    return f"    {head}>{jars}</dependency>"


def fetch(
    work: Path,
    dependencies: Sequence[str],
    *,
    poms: bool = False,
    tick: Tick = lambda _files, _bytes: None,
    hold: Sequence[int] = (),
) -> Path:
    """Run Ivy once below `work` and return the directory with the files.

    May be called again after a crash; what is there already is not fetched again.

    Args:
        work: a directory that nobody else uses at the same time.
        dependencies: from `dependency`.
        poms: read POM files, which finds transitive dependencies.
        tick: called a few times a second while Ivy runs, with the files and bytes so far.
        hold: file descriptors (a lock) that the JVM keeps open while it lives, even if this
            process is killed.

    Raises:
        Unavailable: something was not fetched; the message has Ivy's reason.
        InvalidUsage: no Java, or no PySpark.
    """
    work.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    settings = _SETTINGS.format(
        connect=CONNECT_MILLISECONDS_MAX,
        read=READ_MILLISECONDS_MAX,
        layout=LAYOUT,
        root='root="${repository}" ' if mirror else "",
        poms=str(poms).lower(),
    )
    (work / "settings.xml").write_text(settings)
    (work / "wanted.xml").write_text(_MODULE.format(dependencies="\n".join(dependencies)))
    command = [
        *_java(work),
        *([f"-Drepository={mirror}"] if mirror else []),
        *("-jar", str(_ivy_jar())),
        *("-settings", str(work / "settings.xml"), "-ivy", str(work / "wanted.xml")),
    ]
    log = work / "ivy.log"
    for _ in range(TRIES_MAX):
        with log.open("wb") as output:
            status = _run(command, output.fileno(), work / "files", tick=tick, hold=hold)
        if status == 0:
            return work / "files"
        if status is None:
            hint = f"nothing came for {STALL_SECONDS_MAX:.0f} s, so it was stopped. What was fetched is kept; look at the network, then run this again."
            raise Unavailable("fetch jars", _registry(mirror), hint)
    raise _refusal(log.read_text(errors="replace"), _registry(mirror))


def _run(
    command: Sequence[str], output: int, files: Path, *, tick: Tick, hold: Sequence[int]
) -> int | None:
    """Run it, calling `tick`; return the exit status, or None if it stood still and was stopped."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=hold,
    )
    try:
        seen, deadline = (0, 0), time.monotonic() + STALL_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                now = _came(files)
            if now != seen:
                seen, deadline = now, time.monotonic() + STALL_SECONDS_MAX
            tick(*now)
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _came(files: Path) -> tuple[int, int]:
    """Return how many jars are complete below `files`, and the bytes of all that is there."""
    jars, size = 0, 0
    for directory, _, names in os.walk(files):
        for name in names:
            jars += name.endswith(".jar")
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile: counted next time
                size += Path(directory, name).stat().st_size
    return jars, size


def _java(work: Path) -> list[str]:
    """Return the command of a JVM that writes below `work` only."""
    java = find_java()
    command = [
        str(java.executable),
        "-XX:-UsePerfData",  # or it writes to /tmp
        f"-Duser.home={work}",  # a JVM asks the password file, not $HOME
        f"-Dwork={work}",
    ]
    if java.source == WHEEL and (store := trust.trust_store(work / "authorities")):
        command += [
            f"-Djavax.net.ssl.trustStore={store}",
            f"-Djavax.net.ssl.trustStoreType={trust.TYPE}",
        ]
    return command


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    # Found without importing it: that takes a second, and the jar is all we need. Where Spark was
    # unpacked and not installed, as in its image, no package of Python has it.
    homes = [Path(spec.origin).parent] if spec is not None and spec.origin is not None else []
    homes += [Path(home) for home in [os.environ.get("SPARK_HOME")] if home]
    for home in homes:
        for jar in (home / "jars").glob("ivy-*.jar"):
            return jar
    hint = "it carries the Ivy that fetches jars. Nothing was fetched; pip install 'exactly-once-delivery[spark]', or say where Spark is by SPARK_HOME."
    raise InvalidUsage("fetch jars", "PySpark is not installed", hint)


def _registry(mirror: str | None) -> str:
    return mirror or "the public Maven registry"


def _refusal(log: str, registry: str) -> Unavailable:
    """Turn what Ivy printed into one error that says what to do."""
    problems = [line.strip() for line in log.partition(":: problems summary ::")[2].splitlines()]
    reasons = [
        line for line in problems if line.startswith(("Host ", "module not found", "Server"))
    ]
    said = "; ".join(reasons[:PROBLEM_LINES_MAX]) or log[-500:].strip()
    if "PKIX path building failed" in log:
        hint = "Java does not trust its certificate: something between here and there (a company's proxy?) signs with an authority that this Java does not know. What was fetched is kept; add the authority to this Java's cacerts, or use the system's own Java, then run this again."
    elif _NO_NETWORK.search(log):
        hint = "no network, or it does not answer. What was fetched is kept; run this again when it is back, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY."
    else:
        hint = "it does not have them. What was fetched is kept; if DEFAULT_ARTIFACT_REPOSITORY names a mirror, make it complete or unset it, then run this again."
    return Unavailable("fetch jars", registry, f"{hint} Ivy says: {said}")
