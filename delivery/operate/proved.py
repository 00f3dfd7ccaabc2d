"""What audits have proved so far, in one file, so that the next one looks at what came since.

What it is: `load` and `save`, and running digests as plain data.
What it must not know: how anything is proved.

Invariants:
    The file is replaced as a whole; a torn or foreign one is refused, never read in part.
    It holds 24 bytes for each decided id and 56 for each output, and no data of users; which ids and
    outputs, and so how long it gets, is said in `delivery.checker.columns.base`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.formats import segment
from dedup.model import Attempt, HeadRef, Incarnation, ReadSeq, Source, TopicId
from delivery.checker.columns import Base, Bucket, Group
from delivery.checker.columns.proof import BUCKET_MS
from delivery.operate.proving import Proved

__all__ = ["bucket_document", "load", "save"]

#: What this release writes; another one is refused.
VERSION = 2
_META = "meta"
_ARRAYS = ("decided", "group_of", "sent", "sealed", "places")


def load(file: Path, catalog: str) -> Proved:
    """Return what a file says was proved of a catalog; nothing if there is no file yet.

    Raises:
        InvalidUsage: it is of another catalog, or of another release, or nobody can write it there.
        Corrupt: it is torn, or none of ours.
    """
    # An audit may take hours, and would have nowhere to put what it found.
    if not os.access(file.parent, os.W_OK):
        raise InvalidUsage(
            "remember what is proved",
            str(file),
            f"no file can be made in {file.parent}; nothing was audited: name another one",
        )
    if not file.exists():
        return Proved()
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as held:
            meta = json.loads(held[_META].tobytes())
            arrays = {name: held[name] for name in held.files if name != _META}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise Corrupt(
            "read what was proved",
            str(file),
            "it is torn, or no file of an audit's at all; nothing was proved or written: name another "
            f"one, and the audit begins at the beginning ({type(error).__name__})",
        ) from error
    if (meta.get("version"), meta.get("catalog")) != (VERSION, catalog):
        raise InvalidUsage(
            "go on with an audit",
            str(file),
            f"it is of catalog {meta.get('catalog')}, version {meta.get('version')}; nothing was "
            f"done: name the file of {catalog}, or another one to begin anew",
        )
    return _proved(meta, arrays)


def save(file: Path, catalog: str, proved: Proved) -> None:
    """Write what was proved; whoever is killed meanwhile leaves the file that was there.

    Raises:
        Unavailable: the disk does not take it.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    lanes = []
    for number, (lane, base) in enumerate(sorted(proved.bases.items())):
        words, way = proved.named[lane]
        lanes.append(
            {
                "lane": lane,
                "named": words,
                "way": way,
                "incarnation": base.ref.incarnation.hex(),
                "seq": base.ref.seq,
                "attempt": base.ref.attempt.hex(),
                "minted_at_ms": base.minted_at_ms,
                "lane_time_ms": base.lane_time_ms,
                "frontier": list(_placed(base.frontier)),
                "reads": _reads(ReadSeq(*key, seq) for key, seq in base.reads.items()),
                "groups": [
                    [one.bucket.origin.value, one.bucket.number, one.bucket.span, _reads(one.seen)]
                    for one in base.groups
                ],
                "sources": [[source.topic.hex(), source.partition] for source in base.sources],
                "forgotten": base.forgotten,
                "let_go_ms": base.let_go_ms,
                "buckets": [
                    [at, one.seals, one.inputs, one.decided, *map(str, one.sums)]
                    for at, one in sorted(proved.buckets.get(lane, {}).items())
                ],
            }
        )
        arrays |= {f"{name}-{number}": getattr(base, name) for name in _ARRAYS}
    meta = {
        "version": VERSION,
        "catalog": catalog,
        "lanes": lanes,
        "positions": list(_placed(proved.positions)),
    }
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    fresh = file.with_name(f".{file.name}.new")
    try:
        with fresh.open("wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        raise Unavailable(
            "remember what is proved",
            str(file),
            f"{error.strerror or error}; nothing wrong was found, and the file is as it was: make "
            "room, and run the audit again",
        ) from error


def bucket_document(at: int, bucket: Bucket) -> dict[str, Any]:
    """Return a running digest as plain data."""
    return {
        "from_ms": at * BUCKET_MS,
        "seals": bucket.seals,
        "inputs": bucket.inputs,
        "decided": bucket.decided,
        "digest": f"{bucket.sums[0]:016x}{bucket.sums[1]:016x}",
    }


def _reads(reads: Iterable[ReadSeq]) -> list[list[Any]]:
    return [[one.sender, one.incarnation.hex(), one.topic.hex(), one.seq] for one in reads]


def _read_seqs(listed: list[list[Any]]) -> Iterator[ReadSeq]:
    for sender, incarnation, topic, seq in listed:
        yield ReadSeq(
            sender, Incarnation(bytes.fromhex(incarnation)), TopicId(bytes.fromhex(topic)), seq
        )


def _placed(offsets: Mapping[Source, int]) -> Iterator[list[Any]]:
    for source, offset in sorted(offsets.items()):
        yield [source.topic.hex(), source.partition, offset]


def _offsets(listed: list[list[Any]]) -> dict[Source, int]:
    return {
        Source(TopicId(bytes.fromhex(topic)), partition): offset
        for topic, partition, offset in listed
    }


def _proved(meta: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Proved:
    found = Proved(positions=_offsets(meta["positions"]))
    for number, one in enumerate(meta["lanes"]):
        lane = one["lane"]
        decided, group_of, sent, sealed, places = (arrays[f"{name}-{number}"] for name in _ARRAYS)
        found.named[lane] = (one["named"], one["way"])
        found.bases[lane] = Base(
            ref=HeadRef(
                Incarnation(bytes.fromhex(one["incarnation"])),
                one["seq"],
                Attempt(bytes.fromhex(one["attempt"])),
            ),
            frontier=_offsets(one["frontier"]),
            reads={read.key: read.seq for read in _read_seqs(one["reads"])},
            minted_at_ms=one["minted_at_ms"],
            lane_time_ms=one["lane_time_ms"],
            decided=decided,
            group_of=group_of,
            groups=tuple(
                Group(segment.Bucket(segment.Origin(origin), at, span), tuple(_read_seqs(seen)))
                for origin, at, span, seen in one["groups"]
            ),
            sent=sent,
            sealed=sealed,
            places=places,
            sources=tuple(
                Source(TopicId(bytes.fromhex(topic)), at) for topic, at in one["sources"]
            ),
            forgotten=one["forgotten"],
            # Files of before had one window for all that was proved.
            let_go_ms=one.get("let_go_ms", 0),
        )
        found.buckets[lane] = {
            at: Bucket(seals, inputs, count, (int(high), int(low)))
            for at, seals, inputs, count, high, low in one["buckets"]
        }
    return found
