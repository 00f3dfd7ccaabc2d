"""What a wrapped job may read and write, and what is refused, all in one Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.kafka import Kafka
from delivery.wrap.query import DRAIN_SECONDS
from tests.integration.wrap_kit import PARTITIONS, played, settings_of
from tests.integration.wrap_story import RECORDS

TOPICS = ("left", "right", "join", "shuffled", "other", "after", "growing", "grown", "stuck")


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Play every scene once."""
    settings = settings_of("story", kafka, tmp_path_factory.mktemp("story"))
    with open_client(kafka.bootstrap) as client:
        for topic in TOPICS:
            client.create(f"{settings['name']}.{topic}", TopicSettings(partitions=PARTITIONS))
    return played("tests.integration.wrap_story", settings)


def test_a_join_of_two_topics_makes_each_pair_once(story):
    assert story["join"]["pairs"] == list(range(0, RECORDS, 4))
    assert story["join"]["told"] == RECORDS + RECORDS // 4


def test_a_plan_that_shuffles_runs_whole_when_it_runs_again(story):
    assert story["shuffled"] == {"out": list(range(RECORDS)), "told": RECORDS}


def test_the_identity_of_a_checkpoint_is_that_of_its_query(story):
    assert story["join"]["same"]


def test_a_checkpoint_that_is_another_stage_s_is_refused(story):
    assert "the checkpoint is that of" in story["shared"]
    assert "/join/all" in story["shared"]


def test_a_job_goes_on_where_the_plain_one_stood(story):
    assert story["taken_over"] == list(range(RECORDS, RECORDS + 10))


def test_a_partition_that_appears_while_a_query_runs_is_read_from_its_first_record(story):
    assert story["grown"] == {"out": list(range(RECORDS + 10)), "told": RECORDS + 10}


def test_a_stop_that_outlasts_its_patience_cancels_the_batch_which_is_run_again(story):
    stuck = story["stuck"]
    assert stuck["seconds"] < DRAIN_SECONDS - 10
    assert (stuck["active"], stuck["failed"], stuck["before"]) == (False, "None", [])
    assert stuck["out"] == list(range(RECORDS + 10))


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("itself", "read a stream that a plan joins or unites with itself twice"),
        ("unwrapped", "have to be wrapped sources of one stage"),
        ("rate", 'give spark.readStream.format("kafka")'),
        ("split", "one task, in order"),
        ("pattern", "cannot be chosen"),
        ("missing", "there are none of these names"),
        ("columns", "column offset bigint"),
        ("nowhere", "has nowhere to keep it"),
        ("twice", "reads it already"),
        ("outside", "outside of d.wrap_sink"),
    ],
)
def test_what_would_lose_or_double_is_refused_with_the_way_out(story, scene, words):
    assert words in story["refusals"][scene]
