"""Kafka's protocol, as far as reading and writing need it: requests as bytes, bytes as answers.

What it is: a function for each request, a function for each answer, and the values they carry.
What it must not know: sockets, who asks, what an error means for anybody.

Invariants:
    One version of each request is spoken; `SPOKEN` says which, and a broker that does not know it
    is not spoken to.
    What a broker adds in tagged fields is passed over.
    Records are views of the answer, never copies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dedup.model import IDENTITY_BYTES, TopicId
from delivery.kafka.wire.answers import Reader

__all__ = [
    "SIZE",
    "SPOKEN",
    "FetchedPart",
    "Metadata",
    "Node",
    "Part",
    "Produced",
    "api_versions",
    "fetch",
    "framed",
    "init_producer_id",
    "metadata",
    "produce",
    "read_api_versions",
    "read_correlation",
    "read_fetch",
    "read_init_producer_id",
    "read_metadata",
    "read_produce",
]

PRODUCE, FETCH, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 18, 22
#: The one version of each request that is spoken. Fetch 13 is the first that asks for a topic by its
#: identity and not by its name; brokers speak it since Kafka 3.1.
SPOKEN: Mapping[int, int] = {
    PRODUCE: 9,
    FETCH: 13,
    METADATA: 12,
    API_VERSIONS: 3,
    INIT_PRODUCER_ID: 4,
}

#: In front of every request and every answer: how long it is.
SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")
_NAME = b"delivery"
#: As a string of the old kind, which headers still have.
_CLIENT = struct.pack(">h", len(_NAME)) + _NAME
_VERSION = b"1"
_NO_TAGS = b"\0"
#: Nothing, where there could be a string, an array or bytes.
_NULL = b"\0"
_ALL_REPLICAS = -1
_READ_COMMITTED = 1
_MORE = 0x80

_FETCH_START = struct.Struct(">iiiibii")
_FETCH_PART = struct.Struct(">iiqiqi")
_PART_HEAD = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_PRODUCED = struct.Struct(">ihqqq")


class Part(NamedTuple):
    """A partition of a topic, which is named as requests name it."""

    topic: TopicId
    number: int


class FetchedPart(NamedTuple):
    """What an answer says of one partition."""

    part: Part
    error: int
    #: Where the log begins just now.
    start: int
    #: Whose transactions were given up from which offset on.
    aborted: Sequence[tuple[int, int]]
    records: memoryview


class Produced(NamedTuple):
    """Where a batch landed, or why not."""

    topic: str
    number: int
    error: int
    offset: int
    text: str


class Node(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Which brokers there are, and who leads what of the topics asked for."""

    nodes: Mapping[int, Node]
    #: Of each topic by name: its identity, or None and an error.
    topics: Mapping[str, tuple[TopicId | None, int]]
    leaders: Mapping[Part, int]


# Requests -------------------------------------------------------------------------------------


def framed(api: int, correlation: int, *body: bytes | bytearray | memoryview) -> list[bytes]:
    """Return a request as pieces that are sent one after the other."""
    # SUBTLE: the question for versions has a header of the new kind, and its answer one of the old.
    head = _HEADER.pack(api, SPOKEN[api], correlation) + _CLIENT + _NO_TAGS
    size = len(head) + sum(map(len, body))
    return [SIZE.pack(size) + head, *body]  # type: ignore[list-item]  # sockets take any buffer


def api_versions() -> bytes:
    """Ask which versions a broker speaks."""
    return _text(_NAME) + _text(_VERSION) + _NO_TAGS


def metadata(topics: Iterable[str]) -> bytes:
    """Ask who leads the partitions of some topics; none is made by asking."""
    named = [bytes(IDENTITY_BYTES) + _text(name.encode()) + _NO_TAGS for name in topics]
    return _count(named) + b"".join(named) + b"\0\0" + _NO_TAGS


def init_producer_id() -> bytes:
    """Ask for the identity of a new idempotent producer."""
    return _NULL + struct.pack(">iqh", -1, -1, -1) + _NO_TAGS


def fetch(
    positions: Mapping[Part, int], *, wait_ms: int, bytes_max: int, part_bytes_max: int
) -> bytes:
    """Ask for committed records, of each partition from an offset on."""
    by_topic: dict[TopicId, list[bytes]] = {}
    for part, offset in positions.items():
        said = _FETCH_PART.pack(part.number, -1, offset, -1, -1, part_bytes_max) + _NO_TAGS
        by_topic.setdefault(part.topic, []).append(said)
    pieces = [
        # Whole answers, no session: the broker remembers nothing of what was asked before.
        _FETCH_START.pack(-1, wait_ms, 1, bytes_max, _READ_COMMITTED, 0, -1),
        _count(by_topic),
    ]
    for topic, parts in by_topic.items():
        pieces += [topic, _count(parts), *parts, _NO_TAGS]
    # No topic is forgotten, and the consumer is in no rack.
    pieces += [_count(()), _text(b""), _NO_TAGS]
    return b"".join(pieces)


def produce(
    batches: Mapping[str, Sequence[tuple[int, bytes | bytearray]]], *, timeout_ms: int
) -> list[bytes | bytearray]:
    """Write a batch of records to each of some partitions, on all replicas that are in sync."""
    pieces: list[bytes | bytearray] = [
        _NULL + struct.pack(">hi", _ALL_REPLICAS, timeout_ms) + _count(batches)
    ]
    for topic, parts in batches.items():
        pieces.append(_text(topic.encode()) + _count(parts))
        for number, batch in parts:
            pieces += [struct.pack(">i", number) + _varint(len(batch) + 1), batch, _NO_TAGS]
        pieces.append(_NO_TAGS)
    pieces.append(_NO_TAGS)
    return pieces


# Answers --------------------------------------------------------------------------------------


def read_correlation(answer: memoryview) -> int:
    """Return which request is answered."""
    return int(SIZE.unpack_from(answer)[0])


def read_api_versions(answer: memoryview) -> bool:
    """Tell whether a broker speaks everything that is spoken here."""
    reader = Reader(answer, SIZE.size)
    if reader.unpack(">h"):
        return False

    def one() -> tuple[int, tuple[int, int]]:
        key, least, most = reader.unpack_all(">hhh")
        reader.skip_tags()
        return key, (least, most)

    known = dict(reader.array(one))
    return all(
        api in known and known[api][0] <= version <= known[api][1]
        for api, version in SPOKEN.items()
    )


def read_metadata(answer: memoryview) -> Metadata:
    """Return what is said of brokers and topics."""
    reader = _answered(answer)
    reader.unpack(">i")

    def node() -> tuple[int, Node]:
        number = reader.unpack(">i")
        host, port = reader.text(), reader.unpack(">i")
        reader.text()
        reader.skip_tags()
        return number, Node(host, port)

    nodes = dict(reader.array(node))
    reader.text()
    reader.unpack(">i")
    leaders: dict[Part, int] = {}

    def topic() -> tuple[str, tuple[TopicId | None, int]]:
        error, name = reader.unpack(">h"), reader.text()
        identity = TopicId(reader.raw(IDENTITY_BYTES))
        reader.unpack(">b")
        reader.array(lambda: _read_leader(reader, identity, leaders))
        reader.unpack(">i")
        reader.skip_tags()
        return name, (identity if not error else None, error)

    return Metadata(nodes, dict(reader.array(topic)), leaders)


def _read_leader(reader: Reader, topic: TopicId, leaders: dict[Part, int]) -> None:
    _error, number, leader, _epoch = reader.unpack_all(">hiii")
    for _ in range(3):  # replicas, those in sync, those away
        reader.array(lambda: reader.unpack(">i"))
    reader.skip_tags()
    if leader >= 0:
        leaders[Part(topic, number)] = leader


def read_init_producer_id(answer: memoryview) -> tuple[int, int, int]:
    """Return an error, and a producer's identity and epoch."""
    reader = _answered(answer)
    reader.unpack(">i")
    error, identity, epoch = reader.unpack_all(">hqh")
    return error, identity, epoch


def read_fetch(answer: memoryview) -> tuple[int, list[FetchedPart]]:
    """Return the error of the whole, and what is said of each partition."""
    reader = _answered(answer)
    _throttled, error, _session = reader.unpack_all(">ihi")
    return error, [one for parts in reader.array(lambda: _read_topic(reader)) for one in parts]


def _read_topic(reader: Reader) -> list[FetchedPart]:
    topic = TopicId(reader.raw(IDENTITY_BYTES))

    def part() -> FetchedPart:
        number, error, _high, _stable, start = reader.unpack_struct(_PART_HEAD)
        aborted = reader.array(lambda: _read_aborted(reader))
        reader.unpack(">i")
        records = reader.blob()
        reader.skip_tags()
        return FetchedPart(Part(topic, number), error, start, aborted, records)

    parts = reader.array(part)
    reader.skip_tags()
    return parts


def _read_aborted(reader: Reader) -> tuple[int, int]:
    producer, first = reader.unpack_struct(_ABORTED)
    reader.skip_tags()
    return producer, first


def read_produce(answer: memoryview) -> list[Produced]:
    """Return where each batch landed."""
    reader = _answered(answer)
    return [one for parts in reader.array(lambda: _read_produced(reader)) for one in parts]


def _read_produced(reader: Reader) -> list[Produced]:
    topic = reader.text()

    def part() -> Produced:
        number, error, offset, _stamp, _start = reader.unpack_struct(_PRODUCED)

        def refused() -> str:
            reader.unpack(">i")
            text = reader.text()
            reader.skip_tags()
            return text

        texts = [text for text in reader.array(refused) if text]
        whole = reader.text()
        reader.skip_tags()
        return Produced(topic, number, error, offset, "; ".join(filter(None, [whole, *texts[:1]])))

    parts = reader.array(part)
    reader.skip_tags()
    return parts


def _answered(answer: memoryview) -> Reader:
    reader = Reader(answer, SIZE.size)
    reader.skip_tags()
    return reader


def _varint(value: int) -> bytes:
    return bytes(_septets(value))


def _septets(value: int) -> Iterator[int]:
    while value >= _MORE:
        yield (value & (_MORE - 1)) | _MORE
        value >>= 7
    yield value


def _count(items: Iterable[object]) -> bytes:
    """Return what stands before an array: its length and one more, since nothing is another."""
    return _varint(len(list(items)) + 1)


def _text(text: bytes) -> bytes:
    return _varint(len(text) + 1) + text
