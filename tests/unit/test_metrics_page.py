"""docs/metrics.md, the dashboard and the alerts speak of the metrics that there are, and of all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from delivery.cli import VERBS
from delivery.watch.registry import METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: What PromQL or Prometheus itself adds to the labels of a metric.
GIVEN = {"le", "job", "instance"}


def dashboard() -> dict[str, Any]:
    found = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    assert isinstance(found, dict)
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of dashboard and alerts, with where it stands."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def named(expression: str) -> set[str]:
    """The samples that an expression names."""
    return set(re.findall(r"\bdelivery_\w+", expression))


def samples() -> dict[str, tuple[str, ...]]:
    """What can be asked for, and the labels of each."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found.update({f"{metric.name}{end}": metric.labels for end in ends})
    return found


def test_the_page_has_a_row_for_every_metric_and_no_other() -> None:
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(delivery_\w+)` \| (\w+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), said)
        for name, kind, labels, said in rows
    }
    assert told == {one.name: (one.kind, one.labels, one.help) for one in METRICS.values()}
    assert len(rows) == len(told)


def test_names_say_what_they_count() -> None:
    for one in METRICS.values():
        assert re.fullmatch(r"delivery(_[a-z]+)+", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert one.help.endswith(".")


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_expression_names_metrics_and_labels_that_there_are(
    where: str, expression: str
) -> None:
    known = samples()
    assert named(expression), where
    assert named(expression) <= set(known)
    labels = {label for name in named(expression) for label in known[name]} | GIVEN
    asked = set(re.findall(r"[{,](\w+)(?:=~|!=|=)", expression))
    asked |= {
        one for by in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression) for one in by.split(", ")
    }
    assert asked <= labels


def test_brackets_of_expressions_close() -> None:
    for where, expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), where


def test_the_dashboard_is_one_that_can_be_imported() -> None:
    found = dashboard()
    numbers = [panel["id"] for panel in found["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [tuple(panel["gridPos"].values()) for panel in found["panels"]]
    assert all(x + width <= 24 for x, _, width, _ in places)
    assert len({(x, y) for x, y, _, _ in places}) == len(places)
    assert all(panel["description"] for panel in found["panels"])
    assert "http" not in json.dumps(found)


def test_every_alert_says_what_to_do_with_verbs_that_there_are() -> None:
    for rule in alerts():
        said = rule["annotations"]
        assert said["summary"]
        assert said["description"].endswith(".")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(re.findall(r"`delivery (\w+)", said["description"])) <= set(VERBS)


def test_every_metric_of_stages_is_on_the_dashboard_or_in_an_alert() -> None:
    shown = {name for _, expression in expressions() for name in named(expression)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    hidden = {name for name in METRICS if name.startswith("delivery_stage_")} - shown
    # Rates hide these; they are there for whoever looks for more.
    assert hidden == {
        "delivery_stage_unclaimed_partitions",
        "delivery_stage_lane_time_timestamp_seconds",
        "delivery_stage_outputs_total",
    }
