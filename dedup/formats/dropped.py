"""Dropped records: which offsets of a bundle took no effect, and why.

What it is: per source partition, runs of neighbouring offsets with one verdict, delta-coded. With
the range of the seal it accounts for every record that was read.
What it must not know: how a verdict is found.

Invariants:
    Runs are in the order of their offsets and do not touch unless their verdicts differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.model import IDENTITY_BYTES, Source, TopicId

VERSION = 1
#: Runs per chunk: three numbers of at most ten bytes each stay below what a store takes.
CHUNK_RUNS = 16 * 1024


class Verdict(IntEnum):
    """Why a record took no effect. Numbers are for ever."""

    #: Its id was decided before, or stands further up in the same bundle.
    DUPLICATE = 1
    #: Everything of its sender's seq had been read.
    REMNANT = 2
    #: It was sealed in a history that a restore gave up.
    ABANDONED = 3


#: A dictionary answers several times as quickly as the class, and runs come by the ten thousand.
_VERDICTS = {int(verdict): verdict for verdict in Verdict}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring offsets of one partition with one verdict."""

    source: Source
    offset: int
    count: int
    verdict: Verdict


def runs_of(
    source: Source, offsets: npt.NDArray[np.int64], verdicts: npt.NDArray[np.uint8]
) -> Iterator[Run]:
    """Yield the runs of dropped offsets of one partition, given in order."""
    if not len(offsets):
        return
    apart = (np.diff(offsets) != 1) | (verdicts[1:] != verdicts[:-1])
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    counts = np.diff(np.concatenate((starts, [len(offsets)])))
    columns = zip(offsets[starts].tolist(), counts.tolist(), verdicts[starts].tolist(), strict=True)
    for offset, count, verdict in columns:
        yield Run(source, offset, count, _VERDICTS[verdict])


def dropped_chunks(runs: list[Run]) -> list[bytes]:
    """Return the stored form of runs in order, each chunk below what a store takes."""
    return [encode_dropped(runs[at : at + CHUNK_RUNS]) for at in range(0, len(runs), CHUNK_RUNS)]


def encode_dropped(runs: list[Run]) -> bytes:
    """Return one chunk."""
    out = Writer().uint(len(runs))
    source, behind = None, 0
    for run in runs:
        if run.source == source:
            out.uint(0)
        else:
            source, behind = run.source, 0
            out.uint(1).raw(source.topic).uint(source.partition)
        out.uint(run.offset - behind).uint(run.count).uint(run.verdict)
        behind = run.offset + run.count
    return wrap(Kind.DROPPED, VERSION, out.body())


def decode_dropped(blob: bytes, place: str) -> list[Run]:
    """Return the runs that `encode_dropped` wrote."""
    _, body = unwrap(blob, Kind.DROPPED, version_max=VERSION, place=place)
    reader = Reader(body, place)
    runs: list[Run] = []
    source: Source | None = None
    behind = 0
    try:
        for _ in range(reader.uint()):
            if reader.uint():
                named = Source(TopicId(reader.raw(IDENTITY_BYTES)), reader.uint())
                assert named != source, "the partition of the run before is named again"
                source, behind = named, 0
            assert source is not None, "the first run names its partition"
            offset = behind + reader.uint()
            count, verdict = reader.uint(), reader.uint()
            assert verdict in _VERDICTS, f"there is no verdict {verdict}"
            runs.append(Run(source, offset, count, _VERDICTS[verdict]))
            behind = offset + count
    except (AssertionError, ValueError) as error:
        raise Corrupt(
            "read dropped offsets", place, f"they contradict themselves ({error}); keep a copy"
        ) from error
    reader.end()
    return runs
