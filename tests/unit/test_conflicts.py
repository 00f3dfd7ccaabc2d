"""What is said of repeats whose payload is not that of the record they repeat."""

from __future__ import annotations

import logging

import pytest

from dedup.errors import InvalidUsage
from dedup.ids import named
from dedup.model import Source, TopicId
from delivery.conflicts import QUIET_MS, ConflictLog
from delivery.judge import CONFLICTS_SHOWN
from delivery.verdicts import Conflict, Verdicts
from tests.unit.house import LANE

TOPIC = TopicId(b"t" * 16)
NOW_MS = 1_800_000_000_000


def found(count: int, kept: int | None = None) -> Verdicts:
    ids = [named(b"%d" % number) for number in range(count if kept is None else kept)]
    conflicts = [Conflict(Source(TOPIC, 3), 100 + at, one) for at, one in enumerate(ids)]
    return Verdicts(conflict=count, conflicts=conflicts)


def test_the_first_of_a_bundle_are_named_with_lane_offset_and_id(caplog) -> None:
    log = ConflictLog(LANE, stops=False)
    log.tell(Verdicts(read=5, duplicate=2), NOW_MS)
    assert not caplog.records
    log.tell(found(2), NOW_MS)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    text = said.getMessage()
    assert text.startswith(f"{LANE}: 2 records repeat an id with another payload")
    for number in range(2):
        one = named(b"%d" % number).hex()
        assert f"offset {100 + number} of partition 3 (id {one})" in text
    assert "…" not in text


def test_of_many_a_few_are_named_and_then_none_for_a_while(caplog) -> None:
    log = ConflictLog(LANE, stops=False)
    # Of several partitions together there may be more than of one bundle.
    log.tell(found(1000, kept=3 * CONFLICTS_SHOWN), NOW_MS)
    assert caplog.text.count("offset ") == CONFLICTS_SHOWN
    assert "…" in caplog.text
    for later in (0, 1, QUIET_MS - 1):
        log.tell(found(7), NOW_MS + later)
    assert len(caplog.records) == 1
    log.tell(found(1), NOW_MS + QUIET_MS)
    assert "(21 before them were not logged)" in caplog.records[1].getMessage()
    log.tell(found(1), NOW_MS)
    assert len(caplog.records) == 3, "a clock that was put back keeps nobody quiet"
    assert "not logged" not in caplog.records[2].getMessage()


def test_a_stage_that_is_to_stop_stops_and_logs_nothing(caplog) -> None:
    log = ConflictLog(LANE, stops=True)
    log.tell(Verdicts(), NOW_MS)
    with pytest.raises(InvalidUsage, match=f"{LANE}: offset 100 of partition 3.*another payload"):
        log.tell(found(2), NOW_MS)
    assert not caplog.records
