"""A restore that is killed at any step is finished by the same, and its catalog opened by nobody before."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dedup.backup import BEGUN, back_up, restore, unfinished
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import RESTORING, open_store, refuse_unfinished
from dedup.catalog.store import Store
from dedup.errors import InvalidUsage, Unavailable
from delivery.operate import keeping
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Wire
from tests.unit.house import House
from tests.unit.operate_kit import chained, document, housed
from tests.unit.test_backup import CHAIN, chain, lasting, saved


def killed(store: Store, stream: list[bytes], at: int, fault: Fault, house: House) -> bool:
    """Restore, and die at one of the store's changing calls; False if there are not so many."""
    wire = Wire({}, lambda number, _: fault if number == at else None)
    try:
        restore(Catalog(FaultyStore(store, wire)), stream, house.fresh)
    except Crashed:
        return True
    return False


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_killed_restore_is_finished_by_the_same_and_opened_by_nobody_before(
    house, tmp_path, kind, fault
):
    chain(house)
    before, stream = {lane: lasting(house.catalog(), lane) for lane in CHAIN}, saved(house)
    whole = between = 0
    for at in range(1_000):
        path = tmp_path / f"{at}.db"
        store = MemoryStore() if kind == "memory" else open_store(f"sqlite:{path}")
        if not killed(store, stream, at, fault, house):
            break
        if kind == "sqlite":
            store.close()
            store = open_store(f"sqlite:{path}", restoring=True)
        catalog = Catalog(store)
        if len(list(catalog.lanes())) < len(CHAIN) and store.find_setting(BEGUN) is not None:
            between += 1
            with pytest.raises(InvalidUsage, match="delivery catalog restore"):
                refuse_unfinished(store)
            with pytest.raises(InvalidUsage, match="another backup"):
                restore(catalog, list(back_up(other_catalog())), house.fresh)
        assert bool(list(catalog.lanes())) <= (store.find_setting(BEGUN) is not None)
        if unfinished(store) is None and list(catalog.lanes()):
            whole += 1
        else:
            assert sorted(restore(catalog, stream, house.fresh)) == sorted(CHAIN)
        assert {lane: lasting(catalog, lane) for lane in CHAIN} == before
        assert all(len(catalog.load(lane).head.past) == 1 for lane in CHAIN)
        refuse_unfinished(store)
        store.close()
    if kind == "sqlite":
        assert (between, whole) == (0, 0), "it is one transaction: all of it is there, or nothing"
        return
    assert between > len(CHAIN)
    # Only who dies behind the last mark leaves nothing to finish.
    assert whole == (fault is Fault.CRASH_AFTER)


def other_catalog() -> Catalog:
    """Another catalog with lanes of its own."""
    other = House(MemoryStore())
    other.write("z")
    other.done()
    return other.catalog()


def test_a_process_that_opens_a_catalog_in_between_is_refused(tmp_path):
    """Such a file an earlier release left behind; in Cassandra every restore has such a moment."""
    url = f"sqlite:{tmp_path / 'restored.db'}"
    store = open_store(url)
    store.setting(BEGUN, "a digest")
    store.close()
    with pytest.raises(InvalidUsage, match="lanes are missing"):
        open_store(url)


# As a whole command, into a file ----------------------------------------------------------------------


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    with housed(tmp_path / "shop.db", chained):
        pass
    file = tmp_path / "monday.backup"
    document("catalog", "backup", f"sqlite:{tmp_path / 'shop.db'}", str(file))
    return file


def files(directory: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in directory.iterdir() if each.is_file()}


def dies(wanted: str) -> Callable[..., None]:
    """Report to something that breaks off when so much is written."""

    def report(text: str, *_: int) -> None:
        if text.startswith(wanted):
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("at", ["write 0 of", "write 3 of", "write 15 of"])
@pytest.mark.parametrize("there", [False, True])
def test_a_restore_that_is_broken_off_leaves_what_was_there(
    backup: Path, tmp_path: Path, at: str, *, there: bool
) -> None:
    target = tmp_path / "into" / "new.db"
    target.parent.mkdir()
    url = f"sqlite:{target}"
    if there:
        open_store(url).close()
    before = files(target.parent)
    with pytest.raises(KeyboardInterrupt):
        keeping.restore(backup, url, dies(at), perform=True)
    assert [each for each in target.parent.iterdir() if each.is_dir()] == []
    if there:
        assert document("catalog", "inspect", url)["lanes"] == []
    else:
        assert files(target.parent) == before == {}, "not even an empty catalog"
    assert document("catalog", "restore", str(backup), url, "--yes")["done"]
    assert document("catalog", "verify", url)["whole"]
    assert document("catalog", "inspect", url)["lanes"]


def test_a_disk_that_is_full_leaves_no_catalog_and_says_what_to_do(
    backup: Path, tmp_path: Path
) -> None:
    target = tmp_path / "into" / "new.db"
    target.parent.mkdir()

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    line = [
        sys.executable,
        "-m",
        "delivery.cli",
        "catalog",
        "restore",
        str(backup),
        f"sqlite:{target}",
    ]
    died = subprocess.run(
        [*line, "--yes"], capture_output=True, text=True, check=False, timeout=60, preexec_fn=little
    )
    assert died.returncode == Unavailable.exit_code, died.stderr
    assert "run the same again" in " ".join(died.stderr.split())
    assert list(target.parent.iterdir()) == []
    assert subprocess.run([*line, "--yes"], check=False, timeout=60).returncode == 0
    assert document("catalog", "verify", f"sqlite:{target}")["whole"]


def test_a_restore_that_is_killed_leaves_no_catalog(backup: Path, tmp_path: Path) -> None:
    """By SIGKILL, which lets nobody tidy up: a directory is left that nobody takes for a catalog."""
    target = tmp_path / "into" / "new.db"
    target.parent.mkdir()
    code = (
        "import os, signal, sys; from pathlib import Path; from delivery.operate import keeping\n"
        "def die(text, *_):\n"
        "    if text.startswith('write 3 of'): os.kill(os.getpid(), signal.SIGKILL)\n"
        "keeping.restore(Path(sys.argv[1]), sys.argv[2], die, perform=True)"
    )
    line = [sys.executable, "-c", code, str(backup), f"sqlite:{target}"]
    died = subprocess.run(line, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    (left,) = target.parent.iterdir()
    assert left.name.startswith(f"new.db{RESTORING}")
    assert document("catalog", "restore", str(backup), f"sqlite:{target}", "--yes")["done"]
    assert document("catalog", "verify", f"sqlite:{target}")["whole"]


def test_a_file_system_without_links_is_told_of(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("dedup.catalog.open.os.link", refuse)
    with pytest.raises(Unavailable, match="no hard links"):
        keeping.restore(backup, f"sqlite:{tmp_path / 'new.db'}", perform=True)
    assert list(tmp_path.glob("new.db*")) == []


def test_a_catalog_that_was_made_meanwhile_is_left_alone(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.db"

    def taken(text: str, *_: int) -> None:
        if text.startswith("write 3 of"):
            target.write_bytes(b"mine")

    with pytest.raises(InvalidUsage, match="made meanwhile"):
        keeping.restore(backup, f"sqlite:{target}", taken, perform=True)
    assert target.read_bytes() == b"mine"
    assert list(tmp_path.glob(f"*{RESTORING}*")) == []
