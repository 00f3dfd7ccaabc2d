"""Directories of this host where lanes keep their indexes between processes.

What it is: `Home`, one directory for all catalogs and lanes, and `home_of`, which finds it;
`Place`, that of one lane: its manifest, its lock, and a workshop of its own for each process that
makes files there.
What it must not know: what is in runs and filters, which ids were decided.

Invariants:
    A file gets its place in the lane's directory BEFORE a manifest names it, and is whole by then.
    Manifests are replaced by a rename, under the lane's lock. Nobody ever waits for that lock.
    Names are never used again, so that a name read is that file or none.
    Only the holder of the lock deletes: what its manifest does not name, and the workshops of
    processes that are dead.
    What nobody uses goes after `UNUSED_SECONDS_MAX`; a place that is in use stays.
    Everything here may be deleted at any moment, by anybody: that costs time, never correctness.
    Nothing is flushed to the disk: the death of a process tears no file that was renamed into its
    place, and after a crash of the machine its boot id is another, and nothing here counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dedup.filters.header import boot_id
from dedup.local import steps
from dedup.local.manifest import Manifest, decode_manifest, encode_manifest

_MANIFEST = "manifest"
_LOCK = "lock"
_UPKEEP = "upkeep"
#: A process's own directory inside the lane's; its lock says that the process lives.
_WORKSHOP = "work-"
#: The same before its lock is held: nobody can tell whether its process lives.
_UNBORN = "new-"
#: A directory that got no lock for so long belongs to a process that died making it.
UNBORN_SECONDS_MAX = 600.0
#: Hex digits of the directories' names: 64 bits of a hash of what they are for.
_NAME_DIGITS = 16

#: Names this host's home where a pipeline does not; empty: none, each process has its own.
VARIABLE = "DELIVERY_HOME"
#: A lane's place that nobody wrote to for so long is deleted.
UNUSED_SECONDS_MAX = 7 * 86_400.0

#: Told the name of each step of what must survive being killed; tests end the process there.
At = Callable[[str], None]


def nowhere(_step: str) -> None:
    """Take no notice of a step."""


class Home:
    """A directory of this host, on a local disk.

    Args:
        root: made when first needed; 0700, because filters' keys are in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, catalog: str, lane: str, at: At = nowhere) -> Place:
        """Return the place of one lane of the catalog with this URL."""
        return Place(self._catalog(catalog) / _name(lane), lane, at)

    def sweep(self, catalog: str, lanes: Iterable[str]) -> list[Path]:
        """Delete the places of lanes that this catalog no longer has; return them.

        A place whose lock is held is in use, and stays.
        """
        known = {_name(lane) for lane in lanes}
        places = sorted(_children(self._catalog(catalog)))
        return [path for path in places if path.name not in known and _deleted(path)]

    def sweep_unused(self, seconds: float = UNUSED_SECONDS_MAX) -> list[Path]:
        """Delete the places, of whatever catalog, that nobody wrote to for so long; return them."""
        before = time.time() - seconds
        places = [path for one in sorted(_children(self.root)) for path in sorted(_children(one))]
        return [path for path in places if _changed(path) < before and _deleted(path)]

    def _catalog(self, url: str) -> Path:
        return self.root / _name(url)


class Place:
    """The directory of one lane."""

    def __init__(self, path: Path, lane: str, at: At) -> None:
        self.path = path
        self.lane = lane
        self.at = at
        #: What was read last, and what it says: most often it is the same again.
        self._last: tuple[bytes, Manifest] | None = None

    def workshop(self) -> Workshop:
        """Make this process's own directory."""
        return Workshop(self.path, self.at)

    def read(self) -> Manifest | None:
        """Return the manifest, or None if there is none of this boot, lane and release."""
        try:
            blob = (self.path / _MANIFEST).read_bytes()
            if self._last is not None and self._last[0] == blob:
                return self._last[1]
            found = decode_manifest(blob)
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            # Gone, torn or strange: whatever it is, it is nothing to rely on.
            return None
        if found is None or (found.lane, found.boot) != (self.lane, boot()):
            return None
        self._last = blob, found
        return found

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the lane's lock if it can be had at once; give whether it is held."""
        try:
            _make(self.path)
        except OSError:
            yield False
            return
        with _held(self.path / _LOCK) as held:
            yield held

    def reserve(self) -> int | None:
        """Return a lock on long upkeep, to be closed: one process at a time is enough."""
        try:
            file = os.open(self.path / _UPKEEP, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        return file

    def take_over(self, path: Path) -> Path:
        """Move a finished file of a workshop to its place here. The lock is held."""
        place = self.path / path.name
        path.rename(place)
        self.at(steps.FILE_IN_PLACE)
        return place

    def replace(self, manifest: Manifest, workshop: Workshop) -> None:
        """Put a manifest in place of the one that is there, and delete what it does not name."""
        fresh, blob = workshop.path / _MANIFEST, encode_manifest(manifest)
        fresh.write_bytes(blob)
        self.at(steps.MANIFEST_WRITTEN)
        fresh.replace(self.path / _MANIFEST)
        self._last = blob, manifest
        self.at(steps.MANIFEST_IN_PLACE)
        kept = manifest.names | {_MANIFEST, _LOCK, _UPKEEP}
        for path in _children(self.path):
            if path.name in kept:
                continue
            if path == workshop.path or _alive(path):
                continue
            self.at(steps.FILE_DELETING)
            _delete(path)


class Workshop:
    """The directory of one process: what it makes is its own until it is taken over."""

    def __init__(self, parent: Path, at: At = nowhere, label: str = "") -> None:
        self._parent = parent
        self._at = at
        self._label = label
        self._lock: int | None = None
        self.path = self._open()

    def fresh(self, kind: str) -> Path:
        """Return a path that was never used."""
        if not (self.path / _LOCK).exists():  # somebody has deleted everything
            self.close()
            self.path = self._open()
        return self.path / f"{kind}-{os.urandom(8).hex()}"

    def close(self) -> None:
        """Delete everything in it; a second call does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _open(self) -> Path:
        """Make a directory, and say that this process lives, before anybody may take it for dead."""
        _make(self._parent)
        unborn = Path(tempfile.mkdtemp(prefix=self._label + _UNBORN, dir=self._parent))
        self._at(steps.WORKSHOP_UNBORN)
        lock = os.open(unborn / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody else asks for the lock of what is not born
        self._lock = lock
        born = unborn.rename(unborn.with_name(unborn.name.replace(_UNBORN, _WORKSHOP, 1)))
        self._at(steps.WORKSHOP_BORN)
        return born


def home_of(given: str | None) -> Home | None:
    """Return the home that was given, else this host's own; None: each process keeps to itself.

    This host's own is `$DELIVERY_HOME`, or a directory of this user's below the one for temporary
    files. One that is somebody else's, or that others may write to, is not used.
    """
    if given is None:
        given = os.environ.get(VARIABLE)
    if given is not None:
        return Home(Path(given)) if given else None
    root = Path(tempfile.gettempdir()) / f"delivery-home-{os.getuid()}"
    try:
        _make(root)
        found = root.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None
    home = Home(root)
    home.sweep_unused()
    return home


def private() -> Workshop:
    """Return a workshop where there is no home."""
    return Workshop(Path(tempfile.gettempdir()), label="delivery-lane-")


def boot() -> str:
    """Name this boot of the machine."""
    return boot_id()


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold the lock on a file if it can be had at once."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(file)  # frees it


def _alive(path: Path) -> bool:
    """Tell whether a path is the workshop of a living process, or may become one."""
    if path.name.startswith(_UNBORN):
        return time.time() - _changed(path) < UNBORN_SECONDS_MAX
    if not path.name.startswith(_WORKSHOP):
        return False
    try:
        file = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # somebody deletes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _deleted(place: Path) -> bool:
    """Delete the place of a lane unless it is in use; tell whether it is gone."""
    with _held(place / _LOCK) as held:
        if not held or any(_alive(one) for one in _children(place)):
            return False
        shutil.rmtree(place, ignore_errors=True)
        return True


def _changed(place: Path) -> float:
    """Return when a directory was last written to."""
    try:
        return place.stat().st_mtime
    except OSError:
        return time.time()  # somebody else deletes it


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _children(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _make(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _name(text: str) -> str:
    # Two catalogs or lanes with one name would share a directory; the manifest's lane and the
    # tag's place on the lane's history then make each throw away what the other left.
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]
