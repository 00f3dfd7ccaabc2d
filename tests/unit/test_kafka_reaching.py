"""Whether Kafka is there at all: refused quickly, waited for where it may be slow, with a word."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dedup.errors import InvalidUsage, Unavailable
from delivery.kafka import reaching
from delivery.kafka.opening import open_client
from delivery.kafka.options import Options
from delivery.kafka.reaching import addresses, announced, reach


@pytest.fixture
def refused() -> Iterator[str]:
    """An address that nobody can listen at meanwhile, and nobody does."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_addresses_are_read(text, found):
    assert addresses(text) == found


@pytest.mark.parametrize("text", ["localhost", "", "a:1,b", "a:1,", ":9092", "a:b", "::1:9092"])
def test_what_is_no_address_is_refused_before_anything_is_opened(text):
    with pytest.raises(InvalidUsage, match="write HOST:PORT") as raised:
        Options.of(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize("library", ["confluent", "kafka-python"])
def test_who_refuses_is_named_within_seconds(library, refused):
    said: list[tuple[float, str]] = []
    began = time.monotonic()
    with pytest.raises(Unavailable, match=re.escape(f"reach Kafka: {refused}: ")) as raised:
        open_client(
            refused, {}, library, lambda line: said.append((time.monotonic() - began, line))
        )
    assert time.monotonic() - began < 2 * reaching.REFUSED_SECONDS
    assert "Connection refused" in str(raised.value)
    assert "nothing was read or changed" in str(raised.value)
    ((after, line),) = said
    assert after < 2
    assert refused in line


def test_a_broker_that_comes_up_meanwhile_is_waited_for(monkeypatch):
    """It listens as soon as it was found missing once."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        found: list[int] = []

        def pause(_: float) -> None:
            found.append(1)
            late.listen()

        monkeypatch.setattr(reaching.time, "sleep", pause)
        reach(f"127.0.0.1:{late.getsockname()[1]}", lambda _: None)
    assert found == [1]


def test_one_of_several_is_enough(refused, taken):
    reach(f"{refused},{taken}", pytest.fail)


def test_who_does_not_answer_may_be_slow_and_is_no_refusal(monkeypatch):
    def slow(*_: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(reaching.socket, "create_connection", slow)
    reach("far.away:9092", pytest.fail)


def test_who_is_waited_for_is_said_and_not_where_it_was_quick(monkeypatch):
    monkeypatch.setattr(reaching, "QUIET_SECONDS", 0.01)
    said, heard = [], threading.Event()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    with announced("a:1", say):
        assert heard.wait(10)
    assert said == ["waiting for Kafka at a:1 to answer"]
    monkeypatch.setattr(reaching, "QUIET_SECONDS", 3600.0)
    with announced("a:1", pytest.fail):
        pass
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_a_question_that_nobody_answers_names_who_was_asked(taken, monkeypatch):
    monkeypatch.setattr("delivery.kafka.confluent.client.ANSWER_SECONDS_MAX", 0.5)
    with open_client(taken, {}, "confluent") as client, pytest.raises(Unavailable) as raised:
        client.describe(["orders"])
    assert f"asked at {taken}" in str(raised.value)


def test_an_opened_client_has_been_answered(taken, monkeypatch):
    monkeypatch.setattr("delivery.kafka.confluent.client.ANSWER_SECONDS_MAX", 0.5)
    with pytest.raises(Unavailable, match="no broker answers") as raised:
        open_client(taken, {}, "confluent", lambda _: None)
    assert taken in str(raised.value)
