"""What a pipeline will be, before it runs: stages, lanes, what is stored where, and how much of it.

What it is: `plan_of`, over the declared pipeline alone.
What it must not know: servers: nothing is connected to, opened or started.

Invariants:
    Figures follow from a rate that the user names and from what was measured once (docs/bench.md);
    they say what to expect, and promise nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from dedup.errors import InvalidUsage
from dedup.filters import ENGINES, Filters
from dedup.local.limits import LIMITS
from delivery.api import Delivery
from delivery.host.spec import StageSpec
from delivery.kafka.options import Options
from delivery.operate.cautions import Caution, of_pipeline, of_stage

__all__ = ["Load", "Planned", "StagePlan", "plan_of"]

DAY_SECONDS = 86_400
#: Of stored outputs beside their raw bytes, as measured with words and random nonces.
STORED_SHARE = 0.4
#: What an id takes wherever it is kept: itself, and which seal it came from.
ID_BYTES = 16 + 2
#: And of one that its publisher named, where repeats are compared: of what payload it is.
DIGEST_BYTES = 2
#: What is around ids beside them, as measured: pages of SQLite's; tables of a run's prefixes.
CATALOG_MORE, RUN_MORE = 1.02, 1.05
#: A filter of so many ids is measured, and others are in proportion.
FILTER_IDS = 1_000_000
#: A seal and its row, and how many a lane makes at most while it is quiet.
SEAL_BYTES = 1024
#: How long entries stay unless `delivery catalog compact --keep-entries` says otherwise.
ENTRY_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the user expects.

    Attributes:
        per_second: records of each external topic.
        record_bytes: of one of them, and of one output.
        partitions: of each topic.
        keep_days: how long delivered outputs are kept for a replay; 0: not at all.
    """

    per_second: float
    record_bytes: int
    partitions: int
    keep_days: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage.

    Attributes:
        lanes: one for each partition of what it reads.
        window_ids: ids that a repeat may name, held at once.
        deterministic: its outputs are not stored, but made again by whoever must send them again.
        outputs_a_day, kept: bytes of outputs stored in a day, and those that stay.
        ids_catalog, ids_host, filter_bytes: what the held ids take, in the catalog, on the hosts,
            and how much of that are filters.
        entries: bytes of seals that stay, at a full bundle each.
    """

    name: str
    reads: str
    writes: tuple[str, ...]
    lanes: int
    named: str
    window_ms: int
    per_second: float
    window_ids: int
    deterministic: bool
    outputs_a_day: int
    kept: int
    ids_catalog: int
    ids_host: int
    filter_bytes: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A pipeline."""

    pipeline: str
    catalog: str
    home: str | None
    stages: tuple[StagePlan, ...]
    warnings: tuple[Caution, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "pipeline": self.pipeline,
            "stored": self.catalog,
            "home": self.home,
            "stages": [asdict(stage) | {"writes": list(stage.writes)} for stage in self.stages],
            "warnings": [asdict(warning) for warning in self.warnings],
        }


def plan_of(delivery: Delivery, load: Load) -> Planned:
    """Return what a pipeline will be."""
    specs = delivery.stages
    made = {topic: spec for spec in specs for topic in spec.kafka_topics}
    warnings = [*of_pipeline(delivery), *_of_options(delivery)]
    for spec in specs:
        warnings += of_stage(spec, made)
    return Planned(
        pipeline=delivery.pipeline,
        catalog=_where(delivery.catalog),
        home=delivery.home,
        stages=tuple(_stage(spec, load, made.keys(), delivery.filters) for spec in specs),
        warnings=tuple(warnings),
    )


def _stage(spec: StageSpec, load: Load, made: Iterable[str], filters: Filters) -> StagePlan:
    internal = spec.reads in made
    # Ids that an attempt made are let go as soon as a receiver has read past them.
    brief = internal and not spec.reads.endswith(".by-id")
    held_seconds = 600.0 if brief else spec.window_ms / 1000
    ids = round(load.per_second * held_seconds)
    outputs = round(load.per_second * DAY_SECONDS * load.record_bytes * STORED_SHARE)
    outputs *= bool(spec.topics) and not spec.deterministic
    id_bytes = ID_BYTES + DIGEST_BYTES * (not brief and spec.conflicts != "ignore")
    filter_bytes = round(ids * _filter_bytes(filters))
    bundles = load.per_second / spec.bundle_rows + load.partitions / 60
    return StagePlan(
        name=spec.name,
        reads=spec.reads,
        writes=tuple(map(_where, spec.topics)),
        lanes=load.partitions,
        named=_named(spec, internal=internal),
        window_ms=spec.window_ms,
        per_second=load.per_second,
        window_ids=ids,
        deterministic=spec.deterministic,
        outputs_a_day=outputs,
        kept=round(outputs * load.keep_days),
        ids_catalog=round(ids * id_bytes * CATALOG_MORE),
        ids_host=round(ids * id_bytes * RUN_MORE) + filter_bytes,
        filter_bytes=filter_bytes,
        entries=round(bundles * DAY_SECONDS * ENTRY_DAYS * SEAL_BYTES),
    )


def _filter_bytes(filters: Filters) -> float:
    """Return what an id takes in a filter that is new, with room to grow into."""
    size = ENGINES[filters.engine].size(FILTER_IDS, filters.rate)
    return size / FILTER_IDS * LIMITS.filter_room


def _named(spec: StageSpec, *, internal: bool) -> str:
    if internal:
        return "by the stages that made them"
    if spec.named is None:
        return "by their place"
    return spec.named if isinstance(spec.named, str) else "by a function"


def _where(url: str) -> str:
    """Return a URL without the name and password that may stand in it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url


def _of_options(delivery: Delivery) -> list[Caution]:
    try:
        Options.of(delivery.kafka, delivery.options)
    except InvalidUsage as error:
        return [Caution("", "options", f"{error.subject}: {error.hint}")]
    return []
