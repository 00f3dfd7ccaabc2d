"""The blocks of docs/how-to/avro-and-protobuf.md, each in the place that the page gives it.

What they import the project does not have: a registry, its client, and what protoc generates. These
are stand-ins here, which read and write the real formats of one message: an order and its count.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest

from delivery import Record
from delivery.testing import run
from tests.pages import blocks

PAGE = "docs/how-to/avro-and-protobuf.md"
REGISTRY = "http://registry.example:8081"
NUMBER = 7
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "order", "type": "string"}, {"name": "count", "type": "long"}],
}


def varint(stream: io.BytesIO) -> int:
    """Read a number of seven bits a byte, as both formats have it."""
    value = shift = 0
    while True:
        (byte,) = stream.read(1)
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value


def small(value: int) -> bytes:
    """Write a number of seven bits."""
    assert 0 <= value < 0x80
    return bytes([value])


class Answer:
    """What the registry answers."""

    def raise_for_status(self) -> None:
        pass

    def json(self) -> dict[str, str]:
        return {"schema": json.dumps(SCHEMA)}


class Requests(ModuleType):
    """Asks the registry."""

    asked: ClassVar[list[str]] = []

    def get(self, url: str, *, timeout: float) -> Answer:
        assert timeout > 0
        self.asked.append(url)
        return Answer()


class Fastavro(ModuleType):
    """Avro, of records of strings and numbers; a number is written twice itself."""

    def parse_schema(self, schema: Any) -> Any:
        assert schema == SCHEMA
        return schema

    def schemaless_reader(self, stream: io.BytesIO, schema: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in schema["fields"]:
            number = varint(stream) // 2
            text = field["type"] == "string"
            found[field["name"]] = stream.read(number).decode() if text else number
        return found

    def schemaless_writer(self, stream: io.BytesIO, schema: Any, record: dict[str, Any]) -> None:
        for field in schema["fields"]:
            value = record[field["name"]]
            raw = value.encode() if field["type"] == "string" else b""
            stream.write(small(2 * (len(raw) if raw else value)) + raw)


class Order:
    """What protoc makes of `message Order { string order = 1; int64 count = 2; }`."""

    def __init__(self, *, order: str = "", count: int = 0) -> None:
        self.order, self.count = order, count

    @classmethod
    def FromString(cls, payload: bytes) -> Order:  # noqa: N802  Protobuf's name
        stream, made = io.BytesIO(payload), cls()
        while stream.tell() < len(payload):
            key = varint(stream)
            assert key in (0x0A, 0x10), "a string that is field 1, a number that is field 2"
            if key == 0x0A:
                made.order = stream.read(varint(stream)).decode()
            else:
                made.count = varint(stream)
        return made

    def SerializeToString(self) -> bytes:  # noqa: N802  see above
        raw = self.order.encode()
        return b"\x0a" + small(len(raw)) + raw + b"\x10" + small(self.count)


def framed(payload: bytes) -> bytes:
    return struct.pack(">bI", 0, NUMBER) + payload


#: "a" and 2, and "b" and 0, as Avro's specification and Protobuf's write them.
AVRO = [framed(b"\x02a\x04"), framed(b"\x02b\x00")]
PROTOBUF = [framed(b"\x00\x0a\x01a\x10\x02"), framed(b"\x00\x0a\x01b\x10\x00")]


@pytest.fixture
def typed_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """The page as a reader types it in: its first block, and in the places that it names another."""
    generated = ModuleType("orders_pb2")
    generated.Order = Order  # type: ignore[attr-defined]  # it is a stand-in
    for module in (Requests("requests"), Fastavro("fastavro"), generated):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Requests, "asked", [])

    def typing(block: str) -> dict[str, Any]:
        known: dict[str, Any] = {"REGISTRY": REGISTRY}
        for text in (*blocks(PAGE, "python"), block):
            exec(compile(text, PAGE, "exec"), known)  # noqa: S102 - our own document
        return known

    return typing


@pytest.mark.parametrize(("at", "values"), [(0, AVRO), (1, PROTOBUF)], ids=["avro", "protobuf"])
def test_the_stage_runs_on_the_format(
    typed_in: Callable[[str], dict[str, Any]], at: int, values: list[bytes]
) -> None:
    avro, protobuf = blocks(PAGE, "py")
    known = typed_in((avro, protobuf)[at])
    good, empty = values
    assert known["decoded"](good) == (NUMBER, {"order": "a", "count": 2})
    out = run(known["checked"], [Record(value=good), Record(value=empty)], crash="everywhere")
    assert [record.value for record in out] == [good]
    # One question for the whole process.
    assert Requests.asked == ([] if at else [f"{REGISTRY}/schemas/ids/{NUMBER}"])


def test_what_is_not_the_first_message_is_refused(
    typed_in: Callable[[str], dict[str, Any]],
) -> None:
    decoded = typed_in(blocks(PAGE, "py")[1])["decoded"]
    with pytest.raises(ValueError, match="first message"):
        decoded(framed(b"\x02\x00"))
    with pytest.raises(ValueError, match="not framed"):
        decoded(b"\x01" + PROTOBUF[0][1:])
