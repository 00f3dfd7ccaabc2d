"""Of an outage a process says two lines; of librdkafka's own lines only what nobody else says."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from delivery.kafka import outages
from delivery.kafka.confluent import chatter

SECONDS_MAX = 30.0


class Heard(logging.Handler):
    """What is logged, as it comes from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[tuple[str, str]] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put((record.levelname, record.getMessage()))

    def next(self) -> tuple[str, str]:
        return self.lines.get(timeout=SECONDS_MAX)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(outages, "LOOK_SECONDS", 0.01)
    handler, log = Heard(), logging.getLogger("delivery.kafka")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.setLevel(before)
    log.removeHandler(handler)


def over(at: str) -> None:
    """Wait until nobody looks whether these brokers are back."""
    for thread in threading.enumerate():
        if thread.name == f"delivery-outage-{at}":
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()


def test_an_outage_is_two_lines_however_often_it_is_told(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
    at = f"127.0.0.1:{port}"
    for _ in range(100):
        outages.gone(at)
    level, said = heard.next()
    assert (level, said[:70]) == (
        "WARNING",
        f"Kafka at {at} does not answer; nothing is lost; the stages wait: start"[:70],
    )
    with socket.create_server(("127.0.0.1", port)):
        assert heard.next() == ("WARNING", f"Kafka at {at} is back; the stages go on")
    assert heard.lines.empty()
    over(at)
    outages.gone(at)
    assert "does not answer" in heard.next()[1], "the next outage is another one"
    with socket.create_server(("127.0.0.1", port)):
        heard.next()


def test_brokers_that_answer_are_no_outage(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker, socket.create_server(("127.0.0.1", 0)):
        at = f"127.0.0.1:1,127.0.0.1:{broker.getsockname()[1]}"
        outages.gone(at)
        over(at)
    assert heard.lines.empty()


def test_lines_of_librdkafka_are_for_those_who_debug(heard: Heard) -> None:
    said = [
        (logging.ERROR, "FAIL", "k:1/bootstrap: Connect to ipv4#k:1 failed: Connection refused"),
        (logging.ERROR, "ERROR", "1/1 brokers are down"),
        (
            logging.WARNING,
            "GETPID",
            "Failed to acquire PID: Coordinator load in progress: retrying",
        ),
        (
            logging.ERROR,
            "FAIL",
            "k:1: SSL handshake failed: bad certificate (after 3ms in state X)",
        ),
        (
            logging.ERROR,
            "FAIL",
            "k:1: SSL handshake failed: bad certificate (after 5ms in state X)",
        ),
        (logging.CRITICAL, "FATAL", "Fatal error: it cannot go on"),
    ]
    lines = chatter._Chatter()
    for level, about, text in said:
        lines.log(level, "%s [%s] %s", about, "rdkafka#consumer-3", text)
    levels = [heard.next()[0] for _ in said]
    assert levels == ["DEBUG", "DEBUG", "DEBUG", "ERROR", "DEBUG", "CRITICAL"]
