"""Backups in files: written whole or not at all, read and checked before anything is restored.

What it is: `back_up` and `restore`, over `dedup.backup`.
What it must not know: what is in a backup, topics.

Invariants:
    A file of the name asked for is a whole backup: it is written beside it, brought to the disk and
    renamed last. A file that is there is never written over.
    Nothing is restored, and no catalog is made, unless all of the file was checked and the catalog is
    empty. Where a restore fails a file is as it was; a keyspace is opened by nobody until it is finished.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dedup import backup
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog, restoring, sync_directory, without_user
from dedup.errors import Corrupt, Indeterminate, InvalidUsage, Unavailable
from dedup.formats.envelope import ENVELOPE_BYTES, wrapped_bytes
from delivery.operate.opening import present
from delivery.operate.reporting import Report, silent

__all__ = ["BackedUp", "Restored", "back_up", "restore"]

#: What is written is called so until it is whole.
PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """A backup that was made: its file, frames and bytes, and the lanes in it with their heads."""

    file: str
    frames: int
    size: int
    lanes: dict[str, int]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a backup holds, and whether it was restored: lanes and the seq of their heads."""

    catalog: str
    file: str
    done: bool
    lanes: dict[str, int]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def back_up(catalog: Catalog, file: Path, report: Report = silent) -> BackedUp:
    """Write a backup of every lane to a new file, beside writers.

    Args:
        catalog: what is backed up.
        file: where to; it must not be there.
        report: is told how far it is.

    Raises:
        InvalidUsage: the file is there, or its directory is not.
        Unavailable: the file cannot be written, or lanes change faster than they can be read.
    """
    _refuse_existing(file)
    partial = file.with_name(file.name + PARTIAL_SUFFIX)
    count = size = 0
    lanes = (0, 0)
    made = False

    def tell(done: int, total: int) -> None:
        nonlocal lanes
        lanes = done, total

    try:
        with partial.open("xb") as out:
            made = True
            for frame in backup.back_up(catalog, tell=tell):
                out.write(frame)
                count, size = count + 1, size + len(frame)
                report(f"{count} frames, {size} bytes", *lanes)
            out.flush()
            os.fsync(out.fileno())
        # SUBTLE: a link fails if the name was taken meanwhile; a rename would write over it.
        os.link(partial, file)
        sync_directory(file.parent)
    except FileExistsError as error:
        raise _exists(Path(error.filename2 or error.filename)) from error
    except OSError as error:
        raise Unavailable(
            "back up a catalog",
            str(file),
            f"it cannot be written ({error.strerror}); there is no backup: make room, or name "
            "another place, and run it again",
        ) from error
    finally:
        if made:
            partial.unlink(missing_ok=True)
    # What was written is read back and restored in memory: a backup is one only if that succeeds.
    return BackedUp(file=str(file), frames=count, size=size, lanes=_read(file, None, report))


def restore(file: Path, url: str, report: Report = silent, *, perform: bool = False) -> Restored:
    """Restore a backup into a new or empty catalog, or check that this can be done.

    Failed or killed, it is done again. Until it has ended a catalog in a file is as it was before,
    and one in Cassandra is opened by nobody else.

    Args:
        file: the backup.
        url: the catalog; it is made if it is not there.
        report: is told how far it is.
        perform: whether it is done.

    Raises:
        InvalidUsage: there is no such file, or the catalog holds lanes. Nothing was written.
        Corrupt: the file is torn. Nothing was written.
        Unavailable, Indeterminate: the catalog cannot be written; it is to be run again.
    """
    if not file.is_file():
        raise InvalidUsage(
            "restore a catalog",
            str(file),
            "there is no such file; nothing was written: mend the path",
        )
    _refuse_lanes(url)
    lanes = _read(file, None, report)
    if perform:
        try:
            with restoring(url) as catalog:
                lanes = _read(file, catalog, report)
        except (Unavailable, Indeterminate) as error:
            raise type(error)(
                "restore a catalog",
                without_user(url),
                f"{error.subject}: {error.hint}; what is there is as it was, or opened by nobody until "
                "this is finished: run the same again",
            ) from error
    return Restored(catalog=without_user(url), file=str(file), done=perform, lanes=lanes)


def _read(file: Path, catalog: Catalog | None, report: Report) -> dict[str, int]:
    """Restore a file, into memory if nowhere else; return the lanes and their heads' seqs."""
    target, does = catalog or open_catalog("memory:"), "try" if catalog is None else "write"
    try:
        with file.open("rb") as source:
            lanes = backup.restore(
                target,
                _frames(source, file, report),
                lambda: uuid.uuid4().bytes,
                lambda done, total: report(f"{does} {done} of {total} frames", done, total),
            )
    except Corrupt as error:
        # What stored bytes advise is to restore a backup.
        why = f"{error.subject}: {error.hint.partition(';')[0]}"
        raise Corrupt(
            "restore a catalog",
            str(file),
            f"{why}; it is torn, or no backup at all; nothing was written: take another backup, or "
            "the one before it",
        ) from error
    rows = {lane: target.load(lane) for lane in lanes}
    return {lane: row.head.ref.seq for lane, row in rows.items() if row is not None}


def _frames(source: BinaryIO, file: Path, report: Report) -> Iterator[bytes]:
    number, size = 0, file.stat().st_size
    while begin := source.read(ENVELOPE_BYTES):
        rest = wrapped_bytes(begin, f"frame {number} of {file}") - len(begin)
        yield begin + source.read(rest)
        number += 1
        report(f"check {file}", source.tell(), size)


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise _exists(file)
    if not file.parent.is_dir():
        raise InvalidUsage(
            "back up a catalog",
            str(file),
            f"the directory {file.parent} does not exist; there is no backup: create it first",
        )


def _exists(file: Path) -> InvalidUsage:
    if file.name.endswith(PARTIAL_SUFFIX):
        hint = "another backup is being written there, or was killed: if none runs, delete it"
    else:
        hint = "nothing is written over: name another file, or move this one away"
    return InvalidUsage("back up a catalog", str(file), f"it is there already; {hint}")


def _refuse_lanes(url: str) -> None:
    """Say before anything is done what a restore would be refused for."""
    catalog = present(url, restoring=True)
    if catalog is None:
        return
    try:
        backup.refuse_lanes(catalog)
    finally:
        catalog.store.close()
