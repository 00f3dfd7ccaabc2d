"""What a stage is, as every process that runs lanes of it is told.

What it is: `StageSpec` and `Plan`, frozen and picklable, how lanes are named, windows as users say
them, `rooted`, by which a plan means the same everywhere, and `there_is`, for mistyped topics.
What it must not know: Spark, clients, catalogs.

Invariants:
    A lane's name is a function of pipeline, stage, topic and partition alone; nothing that Spark
    numbers is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from dedup.errors import InvalidUsage
from dedup.expiry import WINDOW_MS_DEFAULT, WINDOW_MS_MAX
from dedup.filters import Filters
from dedup.model import Source
from delivery.declaring import one_of, refuse_no_text
from delivery.lateness import Trust
from delivery.naming import IdFrom, id_from, said_of
from delivery.protocol.state import Limits
from delivery.records import Record
from delivery.stage import Policy
from delivery.timing import TimeFrom, time_from

#: What ends a bundle, whichever comes first.
BUNDLE_ROWS = 20_000
BUNDLE_BYTES = 4 * 1024 * 1024
#: Rows of a lane that are read and not yet in a bundle; behind it the source is held back.
BUFFER_ROWS_MAX = 2 * BUNDLE_ROWS
BUFFER_BYTES_MAX = 2 * BUNDLE_BYTES

#: Milliseconds of the units in which a window is said.
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

#: Sinks beside Kafka, by the scheme of their URLs.
SINKS = ("files", "cassandra")
#: What is named by a path, by the scheme of its URL.
_PATHS = ("files", "sqlite")

#: What becomes of a repeat whose payload is not that of the record it repeats.
Conflicts = Literal["count", "ignore", "error"]
Start = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage.

    Attributes:
        pipeline: name of the pipeline it belongs to.
        name: name of the stage in it.
        reads: topic of the input edge.
        writes: topics of the output edges, or URLs of other sinks: "files:PATH",
            "cassandra://host:port/keyspace/table".
        call: user code: a record in, records out.
        batch: whether `call` takes an Arrow batch instead.
        code: version of the code, kept in every seal.
        named: how publishers name their records; see `delivery.naming.id_from`.
        time_from: how records say when they were made, where that is to be trusted; see
            `delivery.timing.time_from`.
        dead_letters: topic of records that user code cannot process, that cannot be named, or that
            come too late to tell whether they are repeats; None: the stage stops.
        duplicates: topic of records that take no effect; None: they are counted, and that is all.
        keep_ids: re-keying only: outputs keep the ids of their inputs.
        by_id: re-keying only: outputs are placed by their ids.
        rekeyed: whether the input is what another stage re-keys; else its records tell.
        conflicts: what becomes of repeats with another payload.
        window_ms: how long a publisher may repeat itself, along the lane's own progress.
        start: where a stage that never ran begins: at the earliest record, or behind the latest.
        threads: how many calls of user code run at once, for code that waits.
        deterministic: the code makes the same of the same records whenever it runs, so that seals
            keep recipes in place of rows.
        bundle_rows, bundle_bytes: what ends a bundle.
        limits: what bounds a lane.
    """

    pipeline: str
    name: str
    reads: str
    writes: tuple[str, ...] = ()
    call: Callable[..., Any]
    batch: bool = False
    code: str = ""
    named: str | IdFrom | None = None
    time_from: str | TimeFrom | None = None
    dead_letters: str | None = None
    duplicates: str | None = None
    keep_ids: bool = False
    by_id: bool = False
    rekeyed: bool = False
    conflicts: Conflicts = "count"
    window_ms: int = WINDOW_MS_DEFAULT
    start: Start = "earliest"
    threads: int = 1
    deterministic: bool = False
    bundle_rows: int = BUNDLE_ROWS
    bundle_bytes: int = BUNDLE_BYTES
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse what could not run, before anything is started."""
        if self.reads != "":
            refuse_no_text("declare a stage", reads=self.reads)
        for topic in self.topics:
            refuse_no_text("declare a stage", writes=topic)
        one_of(Conflicts, conflicts=self.conflicts)
        one_of(Start, start=self.start)
        for what, text in (("pipeline", self.pipeline), ("stage", self.name)):
            if not text or "/" in text:
                raise InvalidUsage(
                    "declare a stage",
                    f"{what} {text!r}",
                    "a name is not empty and has no slash; nothing was started: choose another",
                )
        if not 0 < self.window_ms <= WINDOW_MS_MAX:
            raise InvalidUsage(
                "declare a stage",
                f"{self.name}: a window of {self.window_ms} ms",
                f"it is more than nothing and at most {WINDOW_MS_MAX} ms (30 days); nothing was "
                "started",
            )
        if self.reads and self.reads in (*self.writes, self.dead_letters):
            raise InvalidUsage(
                "declare a stage",
                f"{self.name}: reads and writes {self.reads}",
                "it would read what it makes, and make of one record more without end; nothing was "
                "started: name another output. If records are to go round, let a second stage pass "
                "them back from a topic of their own",
            )
        if self.duplicates is not None and self.duplicates in (self.reads, *self.writes):
            raise InvalidUsage(
                "declare a stage",
                f"{self.name}: duplicates={self.duplicates!r}",
                "there they would take effect after all; nothing was started: give them a topic of "
                "their own",
            )
        if self.batch and self.threads > 1:
            raise InvalidUsage(
                "declare a stage",
                f"batch=True, threads={self.threads}",
                "a batch is one call, and Arrow uses threads of its own; nothing was started: say "
                "one of the two",
            )
        id_from(self.named)
        self._check_time()
        elsewhere = [target for target in self.topics if scheme_of(target)]
        if self.deterministic and (elsewhere or self.keep_ids):
            raise InvalidUsage(
                "declare a stage",
                f"{self.name}: deterministic=True",
                "outputs that are not stored can be made again for topics of Kafka's alone, not for "
                f"{', '.join(scheme_of(target) for target in elsewhere) or 're-keying'}; nothing was "
                "started: leave it out",
            )

    def _check_time(self) -> None:
        """Refuse a time that could not be told, or nowhere to put what is too late by it."""
        if self.time_from is None:
            return
        time_from(self.time_from)
        if self.dead_letters is None:
            raise InvalidUsage(
                "declare a stage",
                f"{self.name}: time_from={self.time_from!r}",
                "a record that may be a repeat of one that is forgotten must go somewhere, and it has "
                "no dead letters; nothing was started: say dead_letters=... as well",
            )
        if self.time_from == "timestamp" and (self.rekeyed or self.keep_ids):
            raise InvalidUsage(
                "declare a stage",
                f'{self.name}: time_from="timestamp", dedup="topic"',
                "Kafka stamps re-keyed records when they are sent on, not when they were made; nothing "
                'was started: let the publisher say the time, time_from="header:NAME" or "json:FIELD"',
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """What is written, by edge: topics, or the URLs of other sinks."""
        return (*self.writes, *filter(None, (self.duplicates, self.dead_letters)))

    @property
    def duplicate_edge(self) -> int | None:
        """The edge of records that take no effect."""
        return len(self.writes) if self.duplicates else None

    @property
    def dead_letter_edge(self) -> int | None:
        """The edge of records that cannot be processed; it is the last one."""
        return len(self.topics) - 1 if self.dead_letters else None

    @property
    def kafka_topics(self) -> tuple[str, ...]:
        """Those of them that are topics of Kafka's."""
        return tuple(target for target in self.topics if not scheme_of(target))

    @property
    def prefix(self) -> str:
        """What the names of its lanes begin with."""
        return f"{self.pipeline}/{self.name}/"

    @property
    def group(self) -> str:
        """The consumer group under which monitors see how far it is."""
        return f"{self.pipeline}.{self.name}"

    def lane(self, source: Source) -> str:
        """Return the name of the lane that reads a partition."""
        return f"{self.prefix}{self.reads}-{source.partition}"

    def id_of(self) -> Callable[[Record], bytes | None]:
        """Return how records are named."""
        return id_from(self.named)

    @property
    def policy(self) -> Policy:
        """What it chose, as who runs its code is told."""
        return Policy(
            reads=self.reads,
            writes=self.topics,
            dead_letter_edge=self.dead_letter_edge,
            duplicate_edge=self.duplicate_edge,
            keep_ids=self.keep_ids,
            conflict_stops=self.conflicts == "error",
            deterministic=self.deterministic,
            window_ms=self.window_ms,
            named=said_of(self.named),
        )

    def trust(self) -> Trust | None:
        """Return the time that its records are trusted to say, if they are."""
        if self.time_from is None:
            return None
        return Trust(time_from(self.time_from), self.window_ms)


def window_ms(window: object) -> int:
    """Return a window in milliseconds.

    Raises:
        InvalidUsage: it says no length of time.
    """
    if window is None:
        return WINDOW_MS_DEFAULT
    if isinstance(window, timedelta):
        return int(window.total_seconds() * 1000)
    found = re.fullmatch(r"(\d+)([smhd])", window) if isinstance(window, str) else None
    if found is None:
        raise InvalidUsage(
            "declare a stage",
            f"window={window!r}",
            'nothing was started: say a number and s, m, h or d, as in "24h", or give a timedelta',
        )
    return int(found[1]) * _UNITS[found[2]]


def scheme_of(target: str) -> str:
    """Return which sink an output edge names; nothing for a topic of Kafka's.

    Raises:
        InvalidUsage: there is no such sink.
    """
    scheme, colon, _ = target.partition(":")
    if not colon:
        return ""
    if scheme not in SINKS:
        raise InvalidUsage(
            "declare a stage",
            scheme,
            f"there is no sink of this name; nothing was started: write a topic of Kafka's, or a URL "
            f"that begins with {' or '.join(SINKS)} and a colon",
        )
    return scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a process needs to run lanes of a pipeline.

    Attributes:
        catalog: its URL.
        kafka: "host:port,host:port".
        options: any option of Kafka's.
        client: which client library; None: whichever is there.
        stages: the stages.
        home: directory of this host for the lanes' indexes; None: the host's own, "": none that is
            shared.
        filters: how those indexes' filters are made.
    """

    catalog: str
    kafka: str
    options: Mapping[str, Any] = field(default_factory=dict)
    client: str | None = None
    stages: tuple[StageSpec, ...] = ()
    home: str | None = None
    filters: Filters = field(default_factory=Filters)


def rooted(plan: Plan) -> Plan:
    """Return a plan whose paths mean the same in every process: Spark's each stand elsewhere."""
    home = plan.home and _absolute(plan.home)  # none said, or "": none that is shared
    stages = tuple(map(_rooted, plan.stages))
    return replace(plan, catalog=_rooted_url(plan.catalog), home=home, stages=stages)


def there_is(name: str, names: Iterable[str], *, like: float = 0.6) -> str:
    """Say which names there are that a mistyped one may have been meant for; "": none.

    Args:
        name: the one that is not there.
        names: those that are.
        like: how alike they have to be, at most 1.
    """
    found = get_close_matches(name, names, cutoff=like)
    return f" (there is {', '.join(found)})" if found else ""


def _rooted(spec: StageSpec) -> StageSpec:
    return replace(
        spec,
        writes=tuple(map(_rooted_url, spec.writes)),
        duplicates=spec.duplicates and _rooted_url(spec.duplicates),
        dead_letters=spec.dead_letters and _rooted_url(spec.dead_letters),
    )


def _rooted_url(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if scheme not in _PATHS or not colon:
        return url
    # Of what follows a path nothing is one; SQLite's URLs have nothing behind theirs.
    path, mark, options = rest.partition("?") if scheme == "files" else (rest, "", "")
    return f"{scheme}:{_absolute(path)}{mark}{options}"


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else path  # who opens none refuses it
