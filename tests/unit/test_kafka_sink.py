"""What an output topic must be like, before anything is sealed for it."""

from __future__ import annotations

import pytest

from delivery import InvalidUsage
from delivery.kafka.port import MESSAGE_BYTES_MIN, TopicSettings
from delivery.records import RECORD_BYTES_MAX
from sinks.kafka import examined


def test_a_topic_as_we_create_it_passes() -> None:
    assert examined("orders", TopicSettings().config(), internal=True) == []
    assert int(TopicSettings().config()["max.message.bytes"]) > RECORD_BYTES_MAX


def test_a_topic_that_refuses_large_records_is_refused() -> None:
    with pytest.raises(InvalidUsage, match=r"max\.message\.bytes is 524288"):
        examined("orders", {"max.message.bytes": "524288"}, internal=False)
    assert examined("orders", {"max.message.bytes": str(MESSAGE_BYTES_MIN)}, internal=False) == []


def test_compaction_is_refused_between_stages_and_told_elsewhere() -> None:
    settings = {"cleanup.policy": "compact,delete"}
    with pytest.raises(InvalidUsage, match="set it to delete"):
        examined("orders", settings, internal=True)
    (warning,) = examined("orders", settings, internal=False)
    assert "orders is compacted" in warning


def test_short_retention_rolls_its_segments_in_time() -> None:
    config = TopicSettings(retention_ms=3_600_000, more={"compression.type": "zstd"}).config()
    assert config["retention.ms"] == "3600000"
    assert int(config["segment.ms"]) <= 3_600_000
    assert config["compression.type"] == "zstd"
