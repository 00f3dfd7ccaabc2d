"""Bounded runs of wrapped jobs: any plan over what is new, each record once, all in one Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.services.kafka import Kafka
from tests.integration.bounded_story import RECORDS
from tests.integration.wrap_kit import played, settings_of

ALL = list(range(RECORDS))
DONE = {"fresh": RECORDS, "duplicate": 1, "seals": 1}
NOTHING = {"fresh": 0, "duplicate": 0, "seals": 0}


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Play every scene once."""
    settings = settings_of("bounded", kafka, tmp_path_factory.mktemp("bounded"))
    return played("tests.integration.bounded_story", settings)


def test_every_run_takes_what_is_new_since_the_last_one_each_record_once(story):
    first, second, third = story["daily"]["said"]
    # What comes again in the other partition costs a second run of the plan; nothing new costs none.
    assert first == {"fresh": RECORDS, "duplicate": 11, "seals": 1, "runs": [0, 1], "seq": 1}
    assert second == {"fresh": 10, "duplicate": 11, "seals": 1, "runs": [0], "seq": 2}
    assert third == NOTHING | {"runs": [], "seq": 2}
    assert story["daily"]["out"] == list(range(RECORDS + 10))


def test_the_page_typed_in(story):
    """The block of docs/wrapping.md, over nine records of three keys."""
    assert story["page"] == {"fresh": 9, "out": {"0": "3", "1": "3", "2": "3"}}


@pytest.mark.parametrize(
    ("plan", "out"),
    [
        ("summed", [60 + 4 * digit for digit in range(10)]),
        ("broadcast", ALL),
        ("beside", ALL[::4]),
        ("itself", ALL),
        ("sorted", ALL[-3:]),
        ("subquery", ALL[10:20]),
    ],
)
def test_any_plan_is_judged_anew_each_time_that_it_runs(story, plan, out):
    """In whichever of Spark's threads it reads, however often, adaptive or not."""
    shown = story["plans"][plan]
    assert (shown["did"], shown["runs"], shown["out"]) == (DONE, [0, 1], out)


def test_a_wrapped_side_that_is_broadcast_under_adaptive_execution_is_judged_too(story):
    wanted = ["AdaptiveSparkPlan isFinalPlan=true", "BroadcastHashJoin"]
    assert story["plans"]["broadcast"]["seen"] == wanted


def test_two_topics_are_one_seal_also_when_one_has_nothing_new(story):
    both, one = story["joined"]["said"]
    assert both == {"fresh": RECORDS + RECORDS // 4, "duplicate": 0, "seals": 1, "seq": 1}
    assert one == {"fresh": 2, "duplicate": 0, "seals": 1, "seq": 2}
    assert story["joined"]["out"] == ALL[::4]


def test_what_spark_finds_to_change_nothing_is_judged_all_the_same(story):
    assert story["quiet"] == {"fresh": 8, "duplicate": 1, "seals": 1}


def test_a_run_ends_where_it_was_told_to_and_the_next_has_the_rest(story):
    some = [(did["fresh"], did["seals"]) for did in story["ending"]["said"]]
    assert some == [(5 + RECORDS // 2, 1), (0, 0), (RECORDS // 2 - 5, 1)]
    assert story["ending"]["out"] == ALL


def test_streams_and_runs_go_on_behind_each_other(story):
    assert [did["fresh"] for did in story["alternating"]["said"]] == [10, 10, 10]
    assert story["alternating"]["out"] == list(range(30))


def test_what_the_lane_is_past_by_now_is_not_run_again(story):
    """A second save finds nothing; what came after the DataFrame was made is of the next run."""
    assert [did["fresh"] for did in story["late"]["said"]] == [5, RECORDS - 5, 0, 10]
    assert story["late"]["said"][2] == NOTHING
    assert story["late"]["out"] == list(range(RECORDS + 10))


def test_code_that_raises_seals_nothing_and_the_stage_is_wrapped_again(story):
    failing = story["failing"]
    assert (failing["said"], failing["before"]) == (True, [0, []])
    assert (failing["did"]["fresh"], failing["out"]) == (RECORDS, ALL)


def test_headers_and_partitions_are_those_of_the_rows(story):
    assert story["headers"] == [[1, number, number] for number in range(4)]


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("limited", "let it read all that it is given, without limit()"),
        ("cached", "say unpersist() first"),
        ("rdd", "go on from the DataFrame itself"),
    ],
)
def test_what_would_be_sealed_unjudged_is_refused(story, scene, words):
    assert words in story["unread"][scene]
    assert story["unread"]["sealed"] == 0
    assert (story["unread"]["did"]["fresh"], story["unread"]["out"]) == (RECORDS, ALL)


def test_a_gap_between_the_lane_and_the_dataframe_is_refused(story):
    assert "its lane stands at offset 1 of partition 0, and the DataFrame begins at" in story["gap"]
    assert "what lies between would be lost" in story["gap"]


def test_a_shuffle_that_is_written_again_between_two_jobs_of_a_run_is_seen(story):
    kept, lost = story["rewritten"]
    assert (kept, lost.endswith("ran more than once")) == ("", True)


def test_a_topic_that_is_wrapped_and_not_read_is_refused(story):
    assert "would be sealed unread" in story["unasked"]


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("text", 'spark.read.format("kafka") for what is there now'),
        ("split", "one task, in order"),
        ("timestamp", "a run ends at offsets"),
        ("pattern", "cannot be chosen"),
        ("ahead", "ends at 1, as far as it is committed"),
        ("partly", "has the partitions [0, 1]"),
        ("elsewhere", "it says nothing of topic"),
        ("mixed", "wrapped over a stream and over a batch that ends"),
        ("stream", "a stream beside a wrapped source that ends"),
        ("nothing", "a plan over no wrapped source"),
        ("stages", "all of it for the same stage"),
        ("made twice", "was made by an earlier d.wrap_source(...)"),
        ("mode", "mode Overwrite"),
        ("partitioned", "partitionBy"),
        ("format", "format json"),
        ("option", "option topic"),
        ("circle", "it would read what it makes"),
        ("columns", "column offset int"),
        ("outside", "outside of d.wrap_sink"),
    ],
)
def test_what_would_lose_or_double_is_refused_with_the_way_out(story, scene, words):
    assert words in story["refusals"][scene]


def test_what_spark_s_writer_says_by_itself_is_taken(story):
    assert story["refusals"]["taken"] == ""
