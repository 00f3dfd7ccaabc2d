"""What can be said about the race with peers without any of them: same work, pinned versions."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec

import pytest

from bench.job import Job, with_nonce
from bench.peers.environments import HERE, LOCK, PROGRAMS, peers
from bench.peers.order import Order, nonce


def test_a_peers_user_code_does_what_ours_does():
    record = Job().record(7)
    (own,) = with_nonce(record)
    theirs = nonce(record.value or b"")
    assert own.value is not None
    assert len(theirs) == len(own.value)
    assert without_nonce(theirs) == without_nonce(own.value) == json.loads(record.value or b"")
    assert nonce(record.value or b"") != theirs


def without_nonce(value: bytes) -> object:
    """Read an output, and take out what no two executions have in common."""
    made = json.loads(value)
    assert re.fullmatch(r"[0-9a-f]{32}", made.pop("nonce"))
    return made


@pytest.mark.parametrize("file", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_every_version_of_a_peer_is_pinned(file):
    lines = file.read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line)] == []


def test_every_jar_of_a_peer_has_its_checksum():
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    pin = re.compile(r"(?P<peer>\w+) [\w.-]+:[\w.-]+:[\w.-]+ [0-9a-f]{64} \d+")
    matches = [pin.fullmatch(line) for line in lines]
    assert [line for line, match in zip(lines, matches, strict=True) if match is None] == []
    assert {match["peer"] for match in matches if match} <= set(peers())
    assert set(PROGRAMS) <= {match["peer"] for match in matches if match}


def test_every_driver_is_there():
    from bench.peers.__main__ import contestants  # noqa: PLC0415 - it looks for Java

    ways = contestants()
    modules = {way.command[-1] for way in ways.values() if "-m" in way.command}
    assert [module for module in modules if find_spec(module) is None] == []
    assert all(way.commit_ms[1] < way.commit_ms[0] for way in ways.values() if way.transactional)
    assert {way.way for way in ways.values() if way.transactional} == {"plain", "dedup"}


def test_an_order_says_whether_repeats_are_dropped():
    told = {
        "kafka": "k",
        "source": "s",
        "target": "t",
        "catalog": "",
        "scratch": "/",
        "commit_ms": "9",
    }
    assert [Order(way=way, **told).dedup for way in ("dedup", "plain")] == [True, False]
