"""Opens a catalog by its URL: the one place that knows which store a scheme means.

What it is: `open_store`, `open_catalog`, `restoring`, which opens one that appears only once it is
whole, and `refuse_malformed`, for whoever opens it later.
What it must not know: how any store works. A store's driver is imported only when its scheme is
used.

Invariants:
    A malformed URL is refused with a right one, before anything is opened.
    No message repeats what stands before an `@`: a password may have strayed there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path

from dedup import backup
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Store
from dedup.errors import InvalidUsage, Unavailable

_SCHEMES = ("memory", "sqlite", "cassandra")
#: What SQLite may keep beside a file, and what is made of a file's name while it is restored.
_BESIDE = ("-wal", "-shm", "-journal")
RESTORING = ".restoring-"
_RIGHT = "memory:, sqlite:shop.db or cassandra://host:9042/keyspace"


def open_catalog(url: str, *, create: bool = True, restoring: bool = False) -> Catalog:
    """Open the catalog at `url`.

    Args:
        url: `memory:` (a new one each time, gone with the process), `sqlite:PATH` (relative to
            the working directory, or absolute; made if absent) or
            `cassandra://[user@]host[:port][,host…]/keyspace[?option=value&…]` (needs the extra
            `cassandra`).
        create: whether one that is not there is made; whoever only looks says no, so that a
            mistyped URL is an error and not an empty catalog.
        restoring: whether a restore that was killed is to be finished in it.

    Raises:
        InvalidUsage: the URL is malformed, what it names cannot serve as a catalog, there is none,
            or a restore of it is not finished.
        Unavailable: it cannot be reached now.
        Corrupt: what is there is damaged.
    """
    return Catalog(open_store(url, create=create, restoring=restoring))


def open_store(url: str, *, create: bool = True, restoring: bool = False) -> Store:
    """Open the raw store at `url`; see `open_catalog`."""
    store = _opened(url, create=create)
    try:
        if not restoring:
            refuse_unfinished(store)
    except BaseException:
        store.close()
        raise
    return store


def refuse_unfinished(store: Store) -> None:
    """Refuse a catalog some of whose lanes are not restored yet: they would begin anew."""
    if backup.unfinished(store) is not None:
        raise InvalidUsage(
            "open the catalog",
            store.url,
            "a restore into it was begun and is not finished, so lanes are missing; nothing was "
            "read or written: run the same `delivery catalog restore` again, and it finishes",
        )


@contextmanager
def restoring(url: str) -> Iterator[Catalog]:
    """Open the catalog at `url` to be restored into.

    One in a file that is not there is made in a directory beside it, and gets its name when the body
    has ended without an error: before, nobody finds a catalog there, not even an empty one.

    Raises:
        InvalidUsage: as `open_catalog`, or the name was taken meanwhile; nothing is there of it then.
    """
    path = Path(url.partition(":")[2]).absolute() if url.startswith("sqlite:") else None
    beside = _directory_beside(path) if path is not None else None
    if path is None or beside is None:
        catalog = open_catalog(url, restoring=True)
        with closing(catalog.store):
            yield catalog
        return
    try:
        made = beside / path.name
        catalog = open_catalog(f"sqlite:{made}")
        with closing(catalog.store):
            yield catalog
        try:
            # SUBTLE: a link fails if the name was taken meanwhile; a rename would take a catalog away
            # from whoever has opened it.
            os.link(made, path)
        except FileExistsError as error:
            raise InvalidUsage(
                "restore a catalog",
                url,
                f"{path} was made meanwhile, and is as it was; nothing was restored: name another one",
            ) from error
        except OSError as error:
            raise Unavailable(
                "restore a catalog",
                url,
                f"{path} cannot get its name ({error.strerror}), and nothing is there: its file system "
                "may have no hard links; name a path on another one",
            ) from error
        sync_directory(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _directory_beside(path: Path) -> Path | None:
    """Make a directory for a file that is not there; None: it is, or nothing can be made there."""
    if any(path.with_name(f"{path.name}{more}").exists() for more in ("", *_BESIDE)):
        return None
    try:
        return Path(tempfile.mkdtemp(prefix=f"{path.name}{RESTORING}", dir=path.parent))
    except OSError:
        return None  # who opens it there says why


def sync_directory(directory: Path) -> None:
    """Bring a new name to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_malformed(url: str) -> None:
    """Refuse a URL that names no catalog, as far as that can be told without opening it."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        # A path, or a slip of the fingers: another scheme is no file's name.
        like = get_close_matches(scheme, _SCHEMES, n=1) if colon else []
        meant = f"{like[0]}:{rest}" if like else "" if colon or not url else f"sqlite:{url}"
        meant = f"; did you mean {without_user(meant)}?" if meant else ""
        raise _malformed(url, f"a catalog's URL is one of {_RIGHT}{meant}")
    if scheme == "memory" and rest:
        raise _malformed(url, "a memory catalog has no name: write memory:")
    if scheme == "sqlite" and (not rest or rest.startswith(("//", ":")) or "\0" in rest):
        raise _malformed(
            url,
            "write sqlite:shop.db for a file in the working directory, sqlite:/var/lib/shop.db for "
            "an absolute path, or memory: for none",
        )


def _opened(url: str, *, create: bool) -> Store:
    refuse_malformed(url)
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        return _memory(url, create=create)
    if scheme == "sqlite":
        return _sqlite(url, rest, create=create)
    return _cassandra(url, create=create)


def _memory(url: str, *, create: bool) -> Store:
    if not create:
        raise _malformed(url, "a memory catalog is its process's own, and no other can look at it")
    return MemoryStore()


def _sqlite(url: str, rest: str, *, create: bool) -> Store:
    path = Path(rest).absolute()
    if not create and not (path.is_file() and path.stat().st_size):
        raise InvalidUsage(
            "open the catalog",
            url,
            f"there is no catalog at {path}; nothing was made: mend the path, which is relative to "
            "the working directory unless it begins with a slash",
        )
    from dedup.catalog.sqlite import SqliteStore  # noqa: PLC0415 - workers of a cluster never need it

    return SqliteStore(path)


def _cassandra(url: str, *, create: bool) -> Store:
    try:
        from dedup.catalog.cassandra import CassandraStore  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cassandra":
            raise
        raise InvalidUsage(
            "open the catalog",
            without_user(url),
            "the Cassandra driver is not installed; nothing was opened: install "
            "exactly-once-delivery[cassandra]",
        ) from error
    return CassandraStore.open(url, create=create)


def without_user(url: str) -> str:
    """Return `url` without what stands before its last `@`."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, slashes, rest = url.partition(":")
    _, at, after = rest.rpartition("@")
    return f"{scheme}{slashes}…@{after}" if at else url


def _malformed(url: str, hint: str) -> InvalidUsage:
    return InvalidUsage("open the catalog", without_user(url), f"{hint}; nothing was opened")
