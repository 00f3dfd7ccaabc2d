"""One look at a catalog and its Kafka as samples of metrics.

What it is: `Collector`, which keeps both open and looks again whenever it is asked.
What it must not know: who asks, and how samples are shown.

Invariants:
    It never fails: what does not answer is down, is opened anew at the next look, and what it would
    have said is left out.
    It only reads. A look costs a row a lane, the seals since the last one, and Kafka's bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from dedup.catalog.catalog import Catalog
from dedup.errors import DeliveryError
from delivery.kafka.port import Client
from delivery.operate.opening import database_of, inputs_of
from delivery.watch.brokers import Brokers, Seen
from delivery.watch.exposition import Samples
from delivery.watch.guarantee import State, guarantee
from delivery.watch.lag import LaneLag, StageLag, lag
from delivery.watch.rows import Rows, StageRows, rows_of
from delivery.watch.tally import VERDICTS, Histogram, Tallies

__all__ = ["Collector"]

_SECOND_MS = 1000


class Collector:
    """Looks at one catalog.

    Args:
        catalog: opens it; called again after it did not answer.
        kafka: opens the cluster, likewise; None: only the catalog is looked at.
        now_ms: the clock.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        kafka: Callable[[], Client] | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._open_catalog = catalog
        self._now_ms = now_ms
        self._catalog: Catalog | None = None
        self._brokers = Brokers(kafka) if kafka is not None else None
        self._tallies = Tallies()

    def close(self) -> None:
        """Let go of both. May be called twice."""
        if self._catalog is not None:
            self._catalog.store.close()
            self._catalog = None
        if self._brokers is not None:
            self._brokers.close()

    def look(self) -> Samples:
        """Look, and return what was found."""
        began = time.monotonic()
        found = Samples()
        up = self._look(found)
        found.add("delivery_up", int(up), of="catalog")
        found.add("delivery_look_duration_seconds", time.monotonic() - began)
        return found

    def _look(self, found: Samples) -> bool:
        """Look at catalog and Kafka; False if the catalog does not answer."""
        try:
            if self._catalog is None:
                self._catalog = self._open_catalog()
            # SUBTLE: rows FIRST, bounds AFTER: a lane that moves meanwhile is never ahead of its log.
            with rows_of(self._catalog) as (catalog, rows):
                seen = self._brokers.ask(rows) if self._brokers is not None else None
                if self._brokers is not None:
                    found.add("delivery_up", int(seen is not None), of="kafka")
                self._add(found, catalog, rows, seen)
        except DeliveryError:
            # It is down, which is a sample of its own; the next look opens it anew.
            if self._catalog is not None:
                with suppress(DeliveryError):
                    self._catalog.store.close()
                self._catalog = None
            return False
        return True

    def _add(self, found: Samples, catalog: Catalog, rows: Rows, seen: Seen | None) -> None:
        doors = seen.doors if seen is not None else None
        self._tallies.look(catalog, rows)
        for one in lag(catalog, rows, doors, self._now_ms()).stages:
            _add_lag(found, one)
        for stage in rows.stages:
            self._add_stage(found, catalog, stage)
        settings = seen.settings if seen is not None else {}
        for judged in guarantee(rows, doors, self._tallies, settings).stages:
            names = {"pipeline": judged.pipeline, "stage": judged.stage}
            for state in State:
                value = int(judged.state is state)
                found.add("delivery_guarantee", value, **names, state=state.value)
            found.add(
                "delivery_degraded_since_timestamp_seconds", _seconds(judged.since_ms), **names
            )

    def _add_stage(self, found: Samples, catalog: Catalog, stage: StageRows) -> None:
        names = {"pipeline": stage.pipeline, "stage": stage.stage}
        tallies = [self._tallies.lanes[lane] for lane in stage.lanes]
        for verdict in VERDICTS:
            count = sum(one.counts[verdict] for one in tallies)
            found.add("delivery_stage_records_total", count, **names, verdict=verdict)
        for name, key in (
            ("delivery_stage_conflicts_total", "conflict"),
            ("delivery_stage_dead_letters_total", "dead_letter"),
            ("delivery_stage_unnamed_total", "unnamed"),
            ("delivery_stage_outputs_total", "outputs"),
            ("delivery_stage_output_bytes_total", "output_bytes"),
        ):
            found.add(name, sum(one.counts[key] for one in tallies), **names)
        bundles, delays = Histogram(tallies[0].bundles.bounds), Histogram(tallies[0].delays.bounds)
        for tally in tallies:
            bundles.merge(tally.bundles)
            delays.merge(tally.delays)
        found.add("delivery_stage_bundle_records", bundles, **names)
        found.add("delivery_stage_seal_delay_seconds", delays, **names)
        losers = sum(1 for lane in stage.lanes for _ in catalog.store.losers(lane))
        found.add("delivery_stage_losing_attempts", losers, **names)
        times = [row.head.lane_time_ms for row in stage.lanes.values() if row.head.lane_time_ms]
        found.add(
            "delivery_stage_lane_time_timestamp_seconds",
            _seconds(min(times, default=None)),
            **names,
        )
        for lane, row in stage.lanes.items():
            if database_of(row.head) is not None:
                continue  # what the catalog remembers of it is old
            own = {**names, "lane": lane}
            found.add("delivery_lane_seals_total", row.head.ref.seq, **own)
            found.add("delivery_lane_acknowledged_seals_total", row.ack.seq, **own)
            sealed = sum(offset for _, offset in inputs_of(row.head))
            found.add("delivery_lane_sealed_offsets_total", sealed, **own)


def _add_lag(found: Samples, one: StageLag) -> None:
    names = {"pipeline": one.pipeline, "stage": one.stage}
    found.add("delivery_stage_lanes", len(one.lanes), **names)
    found.add("delivery_stage_behind_records", one.behind, **names)
    found.add("delivery_stage_unclaimed_partitions", one.unclaimed, **names)
    found.add("delivery_stage_waiting_age_seconds", _seconds(one.waiting_ms), **names)
    found.add("delivery_stage_pending_seals", one.pending, **names)
    found.add("delivery_stage_pending_age_seconds", _seconds(one.pending_ms), **names)
    found.add("delivery_stage_last_seal_timestamp_seconds", _seconds(one.sealed_ms), **names)
    for lane in one.lanes:
        _add_lane(found, lane, names)


def _add_lane(found: Samples, lane: LaneLag, names: dict[str, str]) -> None:
    found.add("delivery_lane_behind_records", lane.behind, **names, lane=lane.lane)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / _SECOND_MS
