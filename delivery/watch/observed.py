"""Everything that a report and advice rest on, looked at once.

What it is: `observe`, and `Observed`.
What it must not know: how it is shown, the clock.

Invariants:
    What was not asked for or could not be asked is empty or None, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dedup.catalog.catalog import Catalog
from delivery.kafka.port import Client
from delivery.operate.logs import Cluster
from delivery.operate.reporting import Report, silent
from delivery.watch.advice import Advice, advise
from delivery.watch.distances import Distances, distances
from delivery.watch.filters import Health, filters
from delivery.watch.guarantee import Guarantee, guarantee, settings_in
from delivery.watch.history import History, history
from delivery.watch.lag import Lag, lag
from delivery.watch.rows import StageRows, read_rows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors

__all__ = ["Observed", "observe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of one catalog."""

    catalog: str
    now_ms: int
    with_kafka: bool
    lag: Lag
    guarantee: Guarantee
    history: History
    distances: Mapping[str, Distances]
    filters: tuple[Health, ...]
    advice: tuple[Advice, ...]


def observe(
    catalog: Catalog,
    client: Client | None,
    now_ms: int,
    *,
    since_ms: int = 0,
    home: Path | None = None,
    report: Report = silent,
) -> Observed:
    """Look at everything.

    Args:
        catalog: it is only read.
        client: Kafka; None: what only Kafka knows is left out.
        now_ms: the time that ages are measured at.
        since_ms: seals before it are left out.
        home: this host's directory of indexes; None: filters are left out.
        report: is told how far it is.
    """
    rows = read_rows(catalog)
    doors = Doors(client) if client is not None else None
    tallies = Tallies()
    tallies.look(catalog, rows)
    late = lag(catalog, rows, doors, now_ms)
    past = history(catalog, rows, since_ms=since_ms, report=report)
    found: dict[str, Distances] = {}
    letters: dict[str, str] = {}
    if client is not None:
        cluster = Cluster(client, report)
        for stage in rows.stages:
            found[stage.name] = distances(catalog, cluster, stage)
        totals = {one.name: one.total("dead_letter") for one in past.stages}
        places = {one.name: _letter(cluster, one) for one in rows.stages if totals[one.name]}
        letters = {name: place for name, place in places.items() if place is not None}
    found_here = filters(catalog, rows.lanes, home) if home is not None else ()
    health = tuple(one for lane in found_here for one in lane.each)
    return Observed(
        catalog=catalog.store.url,
        now_ms=now_ms,
        with_kafka=client is not None,
        lag=late,
        guarantee=guarantee(rows, doors, tallies, settings_in(rows, doors)),
        history=past,
        distances=found,
        filters=health,
        advice=tuple(advise(past, found, late, health, letters)),
    )


def _letter(cluster: Cluster, stage: StageRows) -> str | None:
    """Return the place of the last record in a stage's topic of dead letters, which is its last."""
    topic = cluster.topics().get(stage.writes[-1]) if stage.writes else None
    if topic is None:
        return None
    bounds = cluster.bounds(topic)
    places = (
        f"{topic.name}/{source.partition}/{end - 1}"
        for source, end in bounds.high
        if end > (bounds.low.at(source) or 0)
    )
    return next(places, None)
