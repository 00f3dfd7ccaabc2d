"""Every metric there is: its name, its kind, its labels, what it says.

What it is: `METRICS`, as data; docs/metrics.md, the dashboard and the alerts are compared with it.
What it must not know: how a value is found.

Invariants:
    Names are for ever: lower case, the unit last, `_total` behind what only grows. With dots for
    the first underscores they are names of OpenTelemetry's form, and units are UCUM's words.
    What is unknown has no sample; it is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]

_STAGE = ("pipeline", "stage")
_LANE = (*_STAGE, "lane")
_RUN = ("run",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric(
            "delivery_up",
            "gauge",
            ("of",),
            "1 if the last look at catalog or kafka went well, else 0.",
        ),
        Metric("delivery_look_duration_seconds", "gauge", (), "How long the last look took."),
        Metric(
            "delivery_guarantee",
            "gauge",
            (*_STAGE, "state"),
            "1 for the state that holds of exact, degraded and unknown, 0 for the others.",
        ),
        Metric(
            "delivery_degraded_since_timestamp_seconds",
            "gauge",
            _STAGE,
            "The earliest moment since which a stage is degraded, where one is known.",
        ),
        Metric("delivery_stage_lanes", "gauge", _STAGE, "Lanes of a stage."),
        Metric(
            "delivery_stage_behind_records",
            "gauge",
            _STAGE,
            "Records, by offsets, that no seal of a stage covers.",
        ),
        Metric(
            "delivery_stage_unclaimed_partitions",
            "gauge",
            _STAGE,
            "Partitions of a stage's input that no lane reads yet.",
        ),
        Metric(
            "delivery_stage_waiting_age_seconds",
            "gauge",
            _STAGE,
            "Age of the oldest record that no seal of a stage covers; 0 if there is none.",
        ),
        Metric(
            "delivery_stage_pending_seals",
            "gauge",
            _STAGE,
            "Seals of a stage whose outputs are not acknowledged.",
        ),
        Metric(
            "delivery_stage_pending_age_seconds",
            "gauge",
            _STAGE,
            "Age of the oldest seal of a stage that is not acknowledged; 0 if there is none.",
        ),
        Metric(
            "delivery_stage_last_seal_timestamp_seconds",
            "gauge",
            _STAGE,
            "When the last seal of a stage was minted.",
        ),
        Metric(
            "delivery_stage_lane_time_timestamp_seconds",
            "gauge",
            _STAGE,
            "The least lane time of a stage's lanes: windows are measured on it.",
        ),
        Metric(
            "delivery_stage_records_total",
            "counter",
            (*_STAGE, "verdict"),
            "Records sealed since this endpoint began to look, by what became of them.",
        ),
        Metric(
            "delivery_stage_conflicts_total",
            "counter",
            _STAGE,
            "Duplicates whose payload was not that of the record they repeat.",
        ),
        Metric(
            "delivery_stage_unnamed_total",
            "counter",
            _STAGE,
            "Records without the name that id_from= says: one that its publisher sends twice takes "
            "effect twice.",
        ),
        Metric(
            "delivery_stage_dead_letters_total",
            "counter",
            _STAGE,
            "Records that user code could not process or that were put aside, sealed as dead letters.",
        ),
        Metric("delivery_stage_outputs_total", "counter", _STAGE, "Outputs sealed."),
        Metric(
            "delivery_stage_output_bytes_total",
            "counter",
            _STAGE,
            "Bytes of sealed outputs as they are stored, compressed.",
        ),
        Metric(
            "delivery_stage_bundle_records",
            "histogram",
            _STAGE,
            "Records that a seal read; seals that read none are left out.",
        ),
        Metric(
            "delivery_stage_seal_delay_seconds",
            "histogram",
            _STAGE,
            "From the newest timestamp that a lane has sealed to the seal: how fresh a seal is.",
        ),
        Metric(
            "delivery_stage_losing_attempts",
            "gauge",
            _STAGE,
            "Attempts that lost a race and left a digest, as far as they are kept.",
        ),
        Metric("delivery_lane_seals_total", "counter", _LANE, "Seals of a lane since it began."),
        Metric(
            "delivery_lane_acknowledged_seals_total",
            "counter",
            _LANE,
            "Seals of a lane whose outputs are acknowledged.",
        ),
        Metric(
            "delivery_lane_sealed_offsets_total",
            "counter",
            _LANE,
            "The sum of a lane's frontier: its rate is that of the input, holes included.",
        ),
        Metric(
            "delivery_lane_behind_records",
            "gauge",
            _LANE,
            "Records, by offsets, that no seal of a lane covers.",
        ),
        Metric(
            "delivery_run_active", "gauge", _RUN, "1 while what this process started runs, else 0."
        ),
        Metric("delivery_run_tasks", "gauge", _RUN, "Spark tasks that answer."),
        Metric(
            "delivery_run_records_total",
            "counter",
            (*_RUN, "verdict"),
            "Records that this run has sealed, by what became of them.",
        ),
        Metric("delivery_run_seals_total", "counter", _RUN, "Seals that this run has won."),
        Metric(
            "delivery_run_lost_races_total",
            "counter",
            _RUN,
            "Appends that this run lost to another process.",
        ),
        Metric(
            "delivery_run_read_bytes_total", "counter", _RUN, "Bytes of records that were read."
        ),
        Metric(
            "delivery_run_filter_probes_total", "counter", _RUN, "Ids that filters were asked for."
        ),
        Metric(
            "delivery_run_filter_positives_total",
            "counter",
            _RUN,
            "Ids that filters let through, each looked up exactly.",
        ),
        Metric(
            "delivery_run_filter_false_positives_total",
            "counter",
            _RUN,
            "Ids that filters let through and that were not there.",
        ),
        Metric(
            "delivery_run_filter_saturations_total",
            "counter",
            _RUN,
            "Saturated filters that looks found, after ids were written; what stays so is found again.",
        ),
    )
}
