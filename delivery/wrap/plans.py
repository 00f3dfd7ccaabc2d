"""What can be seen of a user's plan and of a run of it, from outside.

What it is: `look`, which finds the streams a plan reads and whether it keeps state, and `Watched`,
which says whether every stage of a run ran once. With `delivery.wrap.relations` the only module here
that reaches into the JVM.
What it must not know: lanes, verdicts.

Invariants:
    A node that is not known to be stateless counts as stateful.
    What cannot be seen counts as having happened: a run is good only if every stage of it was seen
    to have run once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dedup.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Look",
    "Stream",
    "forget_shuffles",
    "keeps_first",
    "lineage",
    "look",
    "nodes",
    "options_of",
    "refuse_unwatched",
    "watched",
    "whole_batches",
]

_T = TypeVar("_T")

#: Whether plans without state are changed while they run.
_ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
#: How files of a checkpoint are written, and the way that keeps what is there already.
_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_RENAME = ".FileSystemBasedCheckpointFileManager"
#: Spark notes by it that what a map task wrote is what it wrote before.
_CHECKSUMS = "spark.shuffle.checksum.enabled"
#: How long Spark's listeners may lag behind a job that has ended.
LISTENERS_MS_MAX = 30_000
#: What is said of a stage that makes a run useless.
_AGAIN = "ran more than once"

#: Nodes of a logical plan that keep nothing from one micro-batch to the next.
_STATELESS = frozenset(
    {
        "AppendColumns",
        "ArrowEvalPython",
        "BatchEvalPython",
        "CollectMetrics",
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LocalRelation",
        "LogicalRDD",
        "LogicalRelation",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "PythonMapInArrow",
        "Range",
        "RepartitionByExpression",
        "Repartition",
        "ResolvedHint",
        "SerializeFromObject",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "TypedFilter",
        "UnresolvedHint",
        "Union",
        "View",
    }
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream that a plan reads.

    Attributes:
        source: what kind it is, such as "kafka".
        options: as they were given, by Spark's names.
    """

    source: str
    options: Mapping[str, str]

    def batches(self) -> tuple[str, ...]:
        """Return the topics of a wrapped batch, which was told its partitions."""
        return tuple(json.loads(self.option("assign") or "{}"))

    def option(self, name: str) -> str | None:
        """Return an option; their names have no case."""
        return {key.lower(): value for key, value in self.options.items()}.get(name.lower())


@dataclass(frozen=True, slots=True)
class Look:
    """What a plan is seen to do.

    Attributes:
        streams: what it reads, once for each place that reads it.
        stateful: the nodes that keep state, by name.
    """

    streams: tuple[Stream, ...]
    stateful: tuple[str, ...]


def look(frame: DataFrame) -> Look:
    """Look at a plan."""
    streams, stateful = [], []
    for node in nodes(frame._jdf.queryExecution().analyzed()):  # noqa: SLF001 - no other way
        if not node.isStreaming():
            continue
        name = str(node.getClass().getSimpleName())
        if name == "StreamingRelationV2":
            streams.append(Stream(str(node.sourceName()), options_of(node.extraOptions())))
        elif node.children().isEmpty():
            streams.append(Stream(name, {}))
        elif name == "Join":
            children = node.children()
            if all(children.apply(at).isStreaming() for at in range(children.size())):
                stateful.append(name)
        elif name not in _STATELESS:
            stateful.append(name)
    return Look(tuple(streams), tuple(stateful))


def nodes(node: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan, and those of the subqueries in it."""
    yield node
    for below in (node.children(), node.subqueries()):
        for at in range(below.size()):
            yield from nodes(below.apply(at))


def options_of(said: Any) -> dict[str, str]:
    """Return options as they were given, of a map of Spark's whose names have no case."""
    return {str(k): str(v) for k, v in said.asCaseSensitiveMap().items()}


def forget_shuffles(frame: DataFrame) -> None:
    """Let Spark run all of a micro-batch's plan again the next time it is asked for its rows.

    SUBTLE: what `foreachBatch` is handed stands on one RDD, and what its map tasks wrote is kept for
    whoever asks again. A second run of the plan would skip the tasks that judge, and take the rows
    of the first.
    """
    context: Any = frame.sparkSession.sparkContext
    tracker = context._jsc.sc().env().mapOutputTracker()  # noqa: SLF001 - PySpark has no other way
    for rdd in lineage(frame._jdf.queryExecution().toRdd(), set()):  # noqa: SLF001 - see above
        for shuffle in _shuffles(rdd):
            if tracker.containsShuffle(shuffle):
                tracker.unregisterAllMapAndMergeOutput(shuffle)


def lineage(rdd: Any, seen: set[int]) -> Iterator[Any]:
    """Yield an RDD and what it stands on, each once."""
    if rdd.id() in seen:
        return
    seen.add(rdd.id())
    yield rdd
    for dependency in _dependencies(rdd):
        yield from lineage(dependency.rdd(), seen)


def _shuffles(rdd: Any) -> Iterator[int]:
    for dependency in _dependencies(rdd):
        if dependency.getClass().getSimpleName() == "ShuffleDependency":
            yield int(dependency.shuffleId())


def _dependencies(rdd: Any) -> Iterator[Any]:
    dependencies = rdd.dependencies()
    return (dependencies.apply(at) for at in range(dependencies.size()))


@contextmanager
def whole_batches(spark: SparkSession, *, stateful: bool) -> Iterator[None]:
    """Let queries that start here leave their plans to us until we ask for the rows.

    SUBTLE: adaptive execution runs the parts of a plan before `foreachBatch` is called, when tasks
    cannot know yet what to judge. And a plan may run twice for one micro-batch: by plain rename the
    state on disk stays that of the first run, which did not count, and the next start reads it. A
    query takes its settings along when it starts.
    """
    wanted: dict[str, str | None] = {_ADAPTIVE: "false"}
    if stateful and str(spark.conf.get(_FILES, "")).endswith(_PLAIN_RENAME):
        wanted[_FILES] = None
    before = {key: spark.conf.get(key, None) for key in wanted}
    try:
        _set(spark, wanted)
        yield
    finally:
        _set(spark, before)


def keeps_first(spark: SparkSession, root: str) -> bool:
    """Tell whether a file that is written twice below a directory stays as it was first written.

    What has no `FileContext` of Hadoop's is written by plain rename, whatever the settings say. Of
    what cannot be asked Spark will say so itself.
    """
    java: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way
    package = java.org.apache.spark.sql.execution.streaming.checkpointing
    with whole_batches(spark, stateful=True), suppress(Exception):
        settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - see above
        managers = getattr(getattr(package, "CheckpointFileManager$"), "MODULE$")
        manager = managers.create(java.org.apache.hadoop.fs.Path(root), settings)
        return str(manager.getClass().getName()).endswith(_PLAIN_RENAME)
    return False


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set what has a value, and leave the rest to Spark."""
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def refuse_unwatched(spark: SparkSession) -> None:
    """Refuse a session in which nobody would see that part of a plan ran twice.

    Raises:
        InvalidUsage: it was told to leave out what shows it.
    """
    if spark.sparkContext.getConf().get(_CHECKSUMS, "true").lower() == "false":
        raise InvalidUsage(
            "start a wrapped job",
            f"{_CHECKSUMS}=false",
            "without it nobody notices that part of a batch ran twice; nothing was started: leave it on",
        )


def watched(spark: SparkSession, job: Callable[[], _T]) -> tuple[_T | None, str]:
    """Do something with Spark, and say why what it gave may be of two runs; nothing if it is of one.

    A job that failed when stages of it ran again is one of these, and gave nothing.

    SUBTLE: a map task that runs again while its stage is still running is none of it: nobody has
    read what it wrote before. One that runs again afterwards, because what it wrote was lost, is a
    new attempt of its stage, and whoever read before has read of another run of user code. By its
    checksums Spark often sees that itself, and ends the job.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - comes with Spark

    context: Any = spark.sparkContext
    java = context._jsc.sc()  # noqa: SLF001 - PySpark does not show attempts
    tag = f"delivery-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        result = job()
    except (Py4JJavaError, PySparkException):
        trouble = _trouble(java, tag)
        if trouble.endswith(_AGAIN):
            return None, trouble
        raise
    finally:
        context.removeJobTag(tag)
    return result, _trouble(java, tag)


def _trouble(context: Any, tag: str) -> str:
    """Say what is wrong with the stages of the jobs with a tag."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    try:
        context.listenerBus().waitUntilEmpty(LISTENERS_MS_MAX)
    except Py4JJavaError:
        return "Spark did not say in time how often its stages ran"
    tracker = context.statusTracker()
    jobs = list(tracker.getJobIdsForTag(tag))
    if not jobs:
        return "Spark did not say which jobs it ran"
    stages: list[int] = []
    for number in jobs:
        job = tracker.getJobInfo(number)
        if job.isEmpty():
            return f"Spark does not know job {number} any more"
        stages += job.get().stageIds()
    return _repeated(context, tracker, stages)


def _repeated(context: Any, tracker: Any, stages: Iterable[int]) -> str:
    """Say which stage did what was done before; nothing if none did."""
    ran: dict[frozenset[int], int] = {}
    for stage in stages:
        seen = tracker.getStageInfo(stage)
        if seen.isEmpty():
            return f"Spark does not know stage {stage} any more"
        if seen.get().currentAttemptId() > 0:
            return f"stage {stage} {_AGAIN}"
        written = _written(context, stage)
        if written and ran.setdefault(written, stage) != stage:
            return f"stage {stage} {_AGAIN}"
    return ""


def _written(context: Any, stage: int) -> frozenset[int]:
    """Return of which RDDs a stage wrote a shuffle; none if it was skipped or wrote nothing.

    SUBTLE: where a plan runs in several jobs, as adaptive ones do, what was lost of a shuffle between
    two of them is written by a stage of another number, which is at its first attempt. A job before it
    may have read of what was there first. What writes no shuffle may run as often as it likes: Spark
    looks for the first rows of something in a few partitions, and then in more.
    """
    data = context.statusStore().lastStageAttempt(stage)
    if not data.shuffleWriteRecords():
        return frozenset()
    rdds = data.rddIds()
    return frozenset(int(rdds.apply(at)) for at in range(rdds.size()))
