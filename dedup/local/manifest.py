"""The manifest of a lane's home: which files belong together, and the head they are exact for.

What it is: frozen values, their stored form, and nothing else.
What it must not know: directories, locks, what is in the files it names.

Invariants:
    A manifest is complete: every id sealed up to `tag` is in the runs it names, unless it was
    forgotten, and in the filter beside them.
    Whatever is not exactly what this release writes reads as None: the home is made anew.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field
from typing import Any

import xxhash

from dedup.formats.segment import Bucket, Origin
from dedup.local.stats import Asked
from dedup.model import Attempt, HeadRef, Incarnation, ReadSeq, TopicId

VERSION = 2


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run file, by its name in the lane's directory."""

    name: str
    bucket: Bucket
    count: int
    #: The highest seq that it holds ids of.
    seq: int


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """The files of ids that are asked for together: one bucket of internal ids, or all external."""

    bucket: Bucket
    filter: str
    runs: tuple[NamedRun, ...]
    seen: tuple[ReadSeq, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a lane's home holds."""

    #: A fresh name for each manifest, by which a reader notices that it was replaced.
    mark: str
    lane: str
    boot: str
    #: How filters were made: engine, rate and a digest of the key. Others are made from the runs.
    filters: str
    window_ms: int
    tag: HeadRef
    groups: tuple[NamedGroup, ...]
    #: How such filters did, by all processes of this host, as far as they have published it.
    asked: Asked = field(default_factory=Asked)

    @property
    def names(self) -> frozenset[str]:
        """Every file it names."""
        runs = (run.name for group in self.groups for run in group.runs)
        return frozenset((*runs, *(group.filter for group in self.groups)))


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the stored form: a checksum, and JSON that a person can read."""
    body = json.dumps(
        {
            "version": VERSION,
            "mark": manifest.mark,
            "lane": manifest.lane,
            "boot": manifest.boot,
            "filters": manifest.filters,
            "window_ms": manifest.window_ms,
            "tag": [manifest.tag.incarnation.hex(), manifest.tag.seq, manifest.tag.attempt.hex()],
            "groups": [_group_fields(group) for group in manifest.groups],
            "asked": astuple(manifest.asked),
        }
    ).encode()
    return b"%s\n%s" % (xxhash.xxh3_64_hexdigest(body).encode(), body)


def decode_manifest(blob: bytes) -> Manifest | None:
    """Return what `encode_manifest` wrote; None for anything else."""
    checksum, _, body = blob.partition(b"\n")
    if checksum != xxhash.xxh3_64_hexdigest(body).encode():
        return None
    fields = json.loads(body)
    if fields["version"] != VERSION:
        return None
    incarnation, seq, attempt = fields["tag"]
    return Manifest(
        mark=fields["mark"],
        lane=fields["lane"],
        boot=fields["boot"],
        filters=fields["filters"],
        window_ms=fields["window_ms"],
        tag=HeadRef(Incarnation(bytes.fromhex(incarnation)), seq, Attempt(bytes.fromhex(attempt))),
        groups=tuple(_group(group) for group in fields["groups"]),
        asked=Asked(*fields["asked"]),
    )


def _group_fields(group: NamedGroup) -> dict[str, Any]:
    return {
        "bucket": _bucket_fields(group.bucket),
        "filter": group.filter,
        "runs": [[run.name, _bucket_fields(run.bucket), run.count, run.seq] for run in group.runs],
        "seen": [
            [read.sender, read.incarnation.hex(), read.topic.hex(), read.seq] for read in group.seen
        ],
    }


def _group(fields: dict[str, Any]) -> NamedGroup:
    return NamedGroup(
        bucket=_bucket(fields["bucket"]),
        filter=fields["filter"],
        runs=tuple(
            NamedRun(name, _bucket(bucket), count, seq)
            for name, bucket, count, seq in fields["runs"]
        ),
        seen=tuple(
            ReadSeq(
                sender, Incarnation(bytes.fromhex(incarnation)), TopicId(bytes.fromhex(topic)), seq
            )
            for sender, incarnation, topic, seq in fields["seen"]
        ),
    )


def _bucket_fields(bucket: Bucket) -> list[int]:
    return [int(bucket.origin), bucket.number, bucket.span]


def _bucket(fields: list[int]) -> Bucket:
    origin, number, span = fields
    return Bucket(Origin(origin), number, span)
