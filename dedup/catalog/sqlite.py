"""The SQLite store: the embedded catalog, one file for all processes of one machine.

What it is: the statements of the store port over `SqliteFile`.
What it must not know: how the file is opened, locked and checkpointed; what the bytes mean.

Invariants:
    Every comparison is part of the transaction that writes.
    Chunks of attempts are held back in memory, in bounded bytes, until the next row is written,
    and then written in the same transaction: a bundle costs one fsync. What is held back is
    visible to this object at once, to others with that row, and is lost in a crash, like anything
    that no seal names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from dedup.catalog.sqlite_file import Column, SqliteFile, Write
from dedup.catalog.store import Blob, RawAck, RawLane, slot_name
from dedup.model import Attempt, HeadRef, Incarnation, Slot

#: Chunks held back for the next row, and chunks written by one transaction.
HELD_BYTES_MAX = 8 * 1024 * 1024
#: Rows a listing reads at once, and entries one transaction deletes.
PAGE_ROWS_MAX = 256
#: Slots whose chunks one transaction deletes; a slot of some MiB takes about a millisecond.
DELETE_SLOTS_MAX = 32

#: The largest integer SQLite has.
_SEQ_MAX = (1 << 63) - 1

_Key = tuple[Blob, Slot]


class SqliteStore:
    """A store in one SQLite file; its threads may share it, a forked process may not."""

    concurrent = False

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)
        self.url = self._file.url
        self._held: dict[_Key, tuple[bytes, ...]] = {}
        #: Of those, what stands in a transaction that is not committed yet.
        self._writing: set[_Key] = set()

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        rows = self._file.read(
            "read a lane",
            lane,
            "SELECT incarnation, seq, attempt, head, ack_incarnation, ack_seq, ack, collected"
            " FROM lane WHERE lane = ?",
            (lane,),
            (bytes, int, bytes, bytes, bytes, int, bytes, int),
        )
        for incarnation, seq, attempt, head, ack_incarnation, ack_seq, ack, collected in rows:
            ref = HeadRef(Incarnation(incarnation), seq, Attempt(attempt))
            return RawLane(ref, head, RawAck(Incarnation(ack_incarnation), ack_seq, ack), collected)
        return None

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head and add the entry."""
        with self._file.write("append a seal", lane) as write:
            moved = write(
                "UPDATE lane SET incarnation = ?, seq = ?, attempt = ?, head = ?"
                " WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ?",
                (*_columns(ref), head, lane, *_columns(expected)),
            )
            if not moved:
                return False
            _add_entry(write, lane, ref, entry)
            written = self._write_held(write)
        self._file.once_written(partial(self._drop_held, written))
        return True

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row, and its entry if given."""
        with self._file.write("create a lane", lane) as write:
            created = write(
                "INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (lane, *_lane_columns(row)),
            )
            if not created:
                return False
            if entry is not None:
                _add_entry(write, lane, row.ref, entry)
            written = self._write_held(write)
        self._file.once_written(partial(self._drop_held, written))
        return True

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries of a past incarnation, a page to a transaction."""
        remaining = iter(entries)
        while page := list(islice(remaining, PAGE_ROWS_MAX)):
            with self._file.write("import entries", lane) as write:
                if self.read(lane) is None:
                    return False
                for seq, entry in page:
                    write(
                        "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)",
                        (lane, incarnation, seq, entry),
                    )
        return self.read(lane) is not None

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place."""
        with self._file.write("fence a lane", lane) as write:
            fenced = write(
                "UPDATE lane SET incarnation = ?, seq = ?, attempt = ?, head = ?,"
                " ack_incarnation = ?, ack_seq = ?, ack = ?, collected = ?"
                " WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ?"
                " AND ? IN (-1, ack_seq) AND ? IN (-1, collected)",
                (*_lane_columns(row), lane, *_columns(expected), *(settled or (-1, -1))),
            )
        return fenced == 1

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement."""
        with self._file.write("acknowledge", lane) as write:
            moved = write(
                "UPDATE lane SET ack_incarnation = ?, ack_seq = ?, ack = ?"
                " WHERE lane = ? AND ack_incarnation = ? AND ack_seq = ?",
                (ack.incarnation, ack.seq, ack.blob, lane, expected.incarnation, expected.seq),
            )
        return moved == 1

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        with self._file.write("raise the collected mark", lane) as write:
            raised = write(
                "UPDATE lane SET collected = ? WHERE lane = ? AND incarnation = ? AND collected = ?",
                (collected, lane, incarnation, expected),
            )
        return raised == 1

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""
        return self._file.read(
            "read the entries of a lane",
            lane,
            "SELECT seq, entry FROM entry"
            " WHERE lane = ? AND incarnation = ? AND seq BETWEEN ? AND ? ORDER BY seq",
            (lane, incarnation, first, last),
            (int, bytes),
        )

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries in [first, last], a page to a transaction so that writers get a turn."""
        while True:
            with self._file.write("delete entries", lane) as write:
                current = self.read(lane)
                if current is None or current.ref.incarnation != head:
                    return False
                deleted = write(
                    "DELETE FROM entry WHERE lane = ? AND incarnation = ? AND seq IN ("
                    "SELECT seq FROM entry WHERE lane = ? AND incarnation = ?"
                    " AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?)",
                    (lane, incarnation, lane, incarnation, first, last, PAGE_ROWS_MAX),
                )
            if deleted < PAGE_ROWS_MAX:
                return True

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Hold the chunks of an attempt back for the next row, or write them if they are many."""
        with self._file.turn("store chunks"):
            self._held[kind, slot] = tuple(chunks)
            held = sum(len(chunk) for chunks in self._held.values() for chunk in chunks)
        if held > HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is held back, in transactions of bounded size."""
        with self._file.turn("store chunks"):
            held = self._held.items()
            rows = [(key, at, chunk) for key, chunks in held for at, chunk in enumerate(chunks)]
            for part in _parts(rows):
                with self._file.write("store chunks", self.url) as write:
                    for key, at, chunk in part:
                        _add_chunk(write, key, at, chunk)
            self._held.clear()

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot."""
        with self._file.turn("read chunks"):
            held = self._held.get((kind, slot))
            if held is not None:
                return list(held)
            rows = self._file.read(
                "read chunks",
                slot_name(slot),
                "SELECT bytes FROM chunk WHERE kind = ? AND lane = ? AND seq = ?"
                " AND incarnation = ? AND attempt = ? ORDER BY ordinal",
                _slot_columns((kind, slot)),
                (bytes,),
            )
        return [chunk for (chunk,) in rows]

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete the chunks of these slots, a page to a transaction."""
        remaining = iter(slots)
        while page := list(islice(remaining, DELETE_SLOTS_MAX)):
            with self._file.write("delete chunks", self.url) as write:
                for slot in page:
                    self._held.pop((kind, slot), None)
                    write(
                        "DELETE FROM chunk WHERE kind = ? AND lane = ? AND seq = ?"
                        " AND incarnation = ? AND attempt = ?",
                        _slot_columns((kind, slot)),
                    )

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield the slots of a lane, held back or written."""
        upto = last if last is not None else _SEQ_MAX
        with self._file.turn("list chunks"):
            held = {
                slot
                for stored, slot in self._held
                if (stored, slot.lane) == (kind, lane) and slot.seq <= upto
            }
        yield from held
        after: tuple[Column, ...] = (-1, b"", b"")
        while True:
            page = self._file.read(
                "list chunks",
                lane,
                "SELECT DISTINCT seq, incarnation, attempt FROM chunk"
                " WHERE kind = ? AND lane = ? AND seq <= ?"
                " AND (seq, incarnation, attempt) > (?, ?, ?)"
                " ORDER BY seq, incarnation, attempt LIMIT ?",
                (kind.value, lane, upto, *after, PAGE_ROWS_MAX),
                (int, bytes, bytes),
            )
            found = (Slot(lane, Incarnation(it[1]), it[0], Attempt(it[2])) for it in page)
            yield from (slot for slot in found if slot not in held)
            if len(page) < PAGE_ROWS_MAX:
                return
            after = page[-1]

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list."""
        rows = self._file.read(
            "read a segment list",
            lane,
            "SELECT version, list FROM segment_list WHERE lane = ?",
            (lane,),
            (int, bytes),
        )
        return rows[0] if rows else None

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list, together with the chunks it may name."""
        with self._file.write("replace a segment list", lane) as write:
            if expected is None:
                replaced = write(
                    "INSERT INTO segment_list VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (lane, version, blob),
                )
            else:
                replaced = write(
                    "UPDATE segment_list SET version = ?, list = ? WHERE lane = ? AND version = ?",
                    (version, blob, lane, expected),
                )
            if not replaced:
                return False
            written = self._write_held(write)
        self._file.once_written(partial(self._drop_held, written))
        return True

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember the digest of a loser."""
        with self._file.write("note a loser", slot_name(slot)) as write:
            write(
                "INSERT OR REPLACE INTO loser VALUES (?, ?, ?, ?, ?)",
                (slot.lane, slot.seq, slot.incarnation, slot.attempt, digest),
            )

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield the losers of a lane."""
        rows = self._file.read(
            "list losers",
            lane,
            "SELECT seq, incarnation, attempt, digest FROM loser WHERE lane = ? ORDER BY seq",
            (lane,),
            (int, bytes, bytes, bytes),
        )
        for seq, incarnation, attempt, digest in rows:
            yield Slot(lane, Incarnation(incarnation), seq, Attempt(attempt)), digest

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop losers up to `last`."""
        with self._file.write("forget losers", lane) as write:
            write("DELETE FROM loser WHERE lane = ? AND seq <= ?", (lane, last))

    def lanes(self) -> Iterator[str]:
        """Yield the lanes."""
        rows = self._file.read(
            "list lanes", self.url, "SELECT lane FROM lane ORDER BY lane", (), (str,)
        )
        yield from (lane for (lane,) in rows)

    def setting(self, name: str, value: str) -> str:
        """Store a setting once."""
        with self._file.write("store a setting", name) as write:
            write("INSERT INTO setting VALUES (?, ?) ON CONFLICT DO NOTHING", (name, value))
            stored = self.find_setting(name)
        assert stored is not None, "it was stored just now"
        return stored

    def find_setting(self, name: str) -> str | None:
        """Return a setting."""
        for (stored,) in self._file.read(
            "read a setting", name, "SELECT value FROM setting WHERE name = ?", (name,), (str,)
        ):
            return str(stored)
        return None

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make all writes of the body one transaction, with one wait for the disk."""
        try:
            with self._file.group("write a group", self.url):
                yield
        finally:
            self._writing.clear()

    def close(self) -> None:
        """Close the file; what no row has asked for yet is dropped, as in a crash."""
        self._file.close()

    def _write_held(self, write: Write) -> list[_Key]:
        """Write what is held back into the transaction of a row; returns what to drop AFTER it."""
        held = [key for key in self._held if key not in self._writing]
        self._writing.update(held)
        for key in held:
            for at, chunk in enumerate(self._held[key]):
                _add_chunk(write, key, at, chunk)
        return held

    def _drop_held(self, keys: Iterable[_Key]) -> None:
        """Forget what is on the disk now. A slot's content never changes, so no check is needed."""
        with self._file.turn("store chunks"):
            for key in keys:
                self._held.pop(key, None)
                self._writing.discard(key)


def _columns(ref: HeadRef) -> tuple[Column, ...]:
    return (ref.incarnation, ref.seq, ref.attempt)


def _lane_columns(row: RawLane) -> tuple[Column, ...]:
    ack = row.ack
    return (*_columns(row.ref), row.head, ack.incarnation, ack.seq, ack.blob, row.collected)


def _slot_columns(key: _Key) -> tuple[Column, ...]:
    kind, slot = key
    return (kind.value, slot.lane, slot.seq, slot.incarnation, slot.attempt)


def _add_entry(write: Write, lane: str, ref: HeadRef, entry: bytes) -> None:
    write("INSERT INTO entry VALUES (?, ?, ?, ?)", (lane, ref.incarnation, ref.seq, entry))


def _add_chunk(write: Write, key: _Key, at: int, chunk: bytes) -> None:
    write(
        "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*_slot_columns(key), at, chunk),
    )


def _parts(
    rows: Iterable[tuple[_Key, int, bytes]],
) -> Iterator[list[tuple[_Key, int, bytes]]]:
    """Cut rows into lists of at most `HELD_BYTES_MAX`, or of one row."""
    part: list[tuple[_Key, int, bytes]] = []
    size = 0
    for row in rows:
        if part and size + len(row[2]) > HELD_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row[2])
    if part:
        yield part
