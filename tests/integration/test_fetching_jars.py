"""Fetching jars with the real Ivy, from a registry of the test's own that can fail on purpose."""

from __future__ import annotations

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dedup.errors import Corrupt, Unavailable
from delivery.services import jars as module
from delivery.services.jars import Tree, jars, missing, pins

pytestmark = pytest.mark.usefixtures("cache")

#: Generous: the machine may be busy.
SECONDS_MAX = 120.0

JARS = {
    "org.example:one:1.0": b"one",
    "org.example:two_2.13:2.0": b"two" * 1000,
    "org.example:two_2.13:2.0:linux-x86_64": b"native" * 1000,
    "org.example.deep:three:3.0-preview1": b"three" * 200_000,
}


@dataclass
class Registry:
    """A Maven repository over HTTP, what was asked of it, and a jar whose answer can be held."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    #: A jar whose answer stops half-way until `go_on` is set.
    held: str = ""
    holding: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def registry() -> Iterator[Registry]:
    state = Registry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            name = self.path.rsplit("/", 1)[1]
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not body:
                return
            state.asked[name] += 1
            half = len(content) // 2
            try:
                self.wfile.write(content[:half])
                self.wfile.flush()
                if name == state.held:
                    state.holding.set()
                    state.go_on.wait(SECONDS_MAX)
                self.wfile.write(content[half:])
            except ConnectionError:
                self.close_connection = True  # whoever asked was killed

        def log_message(self, *_: object) -> None:
            """Say nothing: pytest shows what matters."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state
        state.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(registry, monkeypatch, tmp_path) -> Iterator[Path]:
    """An empty cache, a lock file with JARS, and the registry that has them."""
    monkeypatch.setenv("DELIVERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", registry.url)
    lock = tmp_path / "jars.lock"
    with lock.open("w") as file:
        for coordinate, content in JARS.items():
            digest = hashlib.sha256(content).hexdigest()
            file.write(f"kafka {coordinate} {digest} {len(content)}\n")
    monkeypatch.setattr(module, "LOCK_FILE", lock)
    pins.cache_clear()
    for pin, content in zip(pins(Tree.KAFKA), JARS.values(), strict=True):
        path = pin.relative.as_posix().replace(pin.group, pin.group.replace(".", "/"), 1)
        registry.files[f"/{path}"] = content
    yield tmp_path / "cache"
    pins.cache_clear()


def fetching(**environment: str) -> subprocess.Popen[str]:
    """Fetch the same jars in a process of its own."""
    code = (
        "import pathlib, sys, delivery.services.jars as module\n"
        "module.LOCK_FILE = pathlib.Path(sys.argv[1])\n"
        "print(len(module.jars(module.Tree.KAFKA)))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(module.LOCK_FILE)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


JAR_NAMES = [
    "one-1.0.jar",
    "three-3.0-preview1.jar",
    "two_2.13-2.0-linux-x86_64.jar",
    "two_2.13-2.0.jar",
]


def test_jars_are_fetched_once_and_reported(registry):
    said: list[str] = []
    found = jars(Tree.KAFKA, report=said.append)
    assert [path.read_bytes() for path in found] == list(JARS.values())
    assert said[0] == "kafka jars: fetching 4 of 4, 1 MB"
    assert said[-1].startswith("kafka jars: complete after")
    assert jars(Tree.KAFKA, report=said.append) == found
    assert registry.asked == Counter(JAR_NAMES)


def test_only_what_is_missing_is_fetched(registry):
    one, two, *_ = jars(Tree.KAFKA, report=print)
    registry.asked.clear()
    one.unlink()
    os.truncate(two, 10)
    jars(Tree.KAFKA, report=print)
    assert registry.asked == Counter(["one-1.0.jar", "two_2.13-2.0.jar"])
    assert missing(Tree.KAFKA, verify=True) == []


def test_a_jar_with_another_checksum_is_refused_and_not_kept(cache, registry):
    path = next(path for path in registry.files if path.endswith("/one-1.0.jar"))
    good, registry.files[path] = registry.files[path], b"0ne"
    with pytest.raises(Corrupt, match=r"org\.example:one:1\.0: .*jars\.lock"):
        jars(Tree.KAFKA, report=print)
    assert files(cache) == sorted(["ivy.flock", *JAR_NAMES[1:]])
    registry.files[path] = good
    assert len(jars(Tree.KAFKA, report=print)) == len(JARS)
    assert registry.asked["three-3.0-preview1.jar"] == 1


def test_a_jar_the_registry_lacks_is_named(registry):
    path = next(path for path in registry.files if path.endswith("/three-3.0-preview1.jar"))
    del registry.files[path]
    with pytest.raises(Unavailable, match=r"does not have them.*three"):
        jars(Tree.KAFKA, report=print)
    assert [pin.artifact for pin in missing(Tree.KAFKA)] == ["three"]


def test_without_network_it_says_so(monkeypatch):
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://nowhere.invalid")
    with pytest.raises(Unavailable, match=r"nowhere\.invalid: no network"):
        jars(Tree.KAFKA, report=print)


@pytest.mark.parametrize("with_jvm", [False, True], ids=["python", "python and java"])
def test_a_killed_download_is_taken_up_again(registry, with_jvm):
    registry.held = "three-3.0-preview1.jar"
    process = fetching()
    assert registry.holding.wait(SECONDS_MAX)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    if with_jvm:
        for child in children:
            child.kill()
    else:
        registry.go_on.set()  # the JVM ends its work, and the next one waits for that
    registry.held = ""
    said: list[str] = []
    assert len(jars(Tree.KAFKA, report=said.append)) == len(JARS)
    assert missing(Tree.KAFKA, verify=True) == []
    again = {"three-3.0-preview1.jar"} if with_jvm else set()
    assert {name for name, times in registry.asked.items() if times > 1} == again
    registry.go_on.set()


def test_two_processes_at_once_fetch_once(registry):
    registry.held = "three-3.0-preview1.jar"
    first = fetching()
    assert registry.holding.wait(SECONDS_MAX)
    second = fetching()
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    registry.go_on.set()
    for process in (first, second):
        out, error = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, out) == (0, f"{len(JARS)}\n"), error
    assert registry.asked == Counter(JAR_NAMES)


def test_nothing_is_written_outside_of_the_cache(cache, tmp_path):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    process = fetching(HOME=str(home), TMPDIR=str(temporary))
    _, error = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, error
    assert files(home) + files(temporary) == []
    assert files(cache) == sorted(["ivy.flock", *JAR_NAMES])
