"""Spark sessions that can run stages: connector jars, Python, Java and settings in one place.

What it is: `spark_session`, for `local[...]`, `local-cluster[...]` and any other master, and
`spark_options`, the same as options for somebody's own `spark-submit`.
What it must not know: stages, lanes, topics, servers. PySpark is imported when a session is asked
for, so that everything else starts without it.

Invariants:
    A session that is returned has the Kafka connector and is not a Spark Connect session.
    What the caller says wins over every setting here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dedup.errors import InvalidUsage
from delivery.services.jars import Report, Tree, jars, to_stderr
from delivery.services.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PYSPARK_SUPPORTED", "refuse_connect", "spark_options", "spark_session"]

#: The connector reaches into Spark's internals, so its jars fit one minor version; 4.2 is the
#: newest for which all four are published.
PYSPARK_SUPPORTED = "4.2.x"
#: Two tasks at once, and four attempts at each: plain `local[2]` never retries a task.
MASTER_DEFAULT = "local[2,4]"

#: What an executor, a driver and a job may have whatever the master is.
SETTINGS = {
    # Without it every Python task waits 40 ms for a delayed TCP acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # A socket's path may have 107 characters, and one below a container of YARN has more.
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - Java's own, but in containers
    # A row that Python yields stays in this buffer until it is full. At the default of 64 KiB a
    # quiet stage is told nothing; a smaller one costs nothing, as Arrow writes whole batches.
    "spark.buffer.size": "512",
    # The same timestamps in the same records, wherever the driver happens to run.
    "spark.sql.session.timeZone": "UTC",
}
#: What holds only where driver and executors are on this machine.
SETTINGS_LOCAL = {
    # A laptop's own name often resolves to nothing, or to an address of another network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Workers are forked with everything loaded, so that one that dies is replaced at once. Not for
    # other masters: this daemon starts before an executor has our packages.
    "spark.python.daemon.module": "delivery.daemon",
    # A port and two seconds; whoever wants to look says so.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Checkpoints on a local disk by plain rename: 60 ms less a micro-batch. Not for other masters,
    # whose checkpoints may lie where a rename is no atomic step.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}


def spark_session(
    app: str = "delivery",
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    report: Report = to_stderr,
) -> SparkSession:
    """Return a session that can run stages, started if there is none.

    May be called again: like `getOrCreate`, it returns the session that runs. The first call sets
    JAVA_HOME and, unless they are set already, PYSPARK_PYTHON and (for a local master)
    SPARK_LOCAL_IP in this process, because that is where Spark looks.

    Args:
        app: the application's name, as Spark shows it.
        master: where it runs; by default what `spark-submit` was told, else two local threads
            with four attempts at each task.
        conf: settings that win over ours; jars and class paths come in addition to ours.
        report: told what is going on when jars have to be fetched first.

    Raises:
        InvalidUsage: Spark Connect, an unsupported PySpark, no Java 17, or a running session
            without the Kafka connector.
        Unavailable, Corrupt: the connector's jars could not be fetched.
    """
    given = dict(conf or {})
    _refuse_connect_settings(master, given)
    _check_version(_pyspark_version(), "PySpark")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - see the module's first lines

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    running = SparkSession.getActiveSession() is not None
    if not submitted and not running:
        os.environ["JAVA_HOME"] = str(find_java().home)
    if master is None and not submitted:
        master = MASTER_DEFAULT
    options = _left_to_say(given) if submitted else spark_options(master, conf=given, report=report)
    os.environ.setdefault("PYSPARK_PYTHON", options.get("spark.pyspark.python", sys.executable))
    if _is_local(master):
        # The workers of a local cluster ask only this; see SETTINGS_LOCAL.
        os.environ.setdefault("SPARK_LOCAL_IP", SETTINGS_LOCAL["spark.driver.host"])
    builder = SparkSession.builder.appName(app).config("spark.api.mode", "classic")
    if master is not None:
        builder = builder.master(master)
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        _check_version(spark.version, "Spark in SPARK_HOME")
        _require_connector(spark)
    except InvalidUsage:
        if not running:
            spark.stop()  # what is refused leaves nothing behind
        raise
    return spark


def spark_options(
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    report: Report = to_stderr,
) -> dict[str, str]:
    """Return the settings a session needs, fetching the connector's jars if they are missing.

    Without a master these are the ones that are right for all; a local master adds its own.

    Raises:
        Unavailable, Corrupt, InvalidUsage: as `delivery.services.jars.jars`.
    """
    given = dict(conf or {})
    local = _is_local(master)
    paths = [str(path) for path in jars(Tree.SPARK_KAFKA, report=report)]
    # On this machine executors read the jars where they are; by `spark.jars` each would copy them,
    # and a local cluster leaves the copies (10 MB an executor) inside the PySpark package for good.
    keys = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
    connector = (
        {key: _joined(os.pathsep, *paths, given.pop(key, "")) for key in keys}
        if local
        else {"spark.jars": _joined(",", *paths, given.pop("spark.jars", ""))}
    )
    return {
        **SETTINGS,
        **(SETTINGS_LOCAL if local else {}),
        # Or Spark starts whichever `python3` it finds first, without our packages.
        "spark.pyspark.python": _python(),
        **given,
        **connector,
    }


def _python() -> str:
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _left_to_say(given: dict[str, str]) -> dict[str, str]:
    """Return what a job that was submitted adds to what it was submitted with.

    The connector is not among it: a JVM that runs takes no more jars, and one in a cluster, whose
    submission named them, brought them along.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - see the module's first lines

    SparkContext._ensure_initialized()  # noqa: SLF001 - or the next line sees nothing of it
    told = SparkConf()
    ours = SETTINGS | {"spark.pyspark.python": _python()}
    return {key: value for key, value in ours.items() if not told.contains(key)} | given


def _joined(separator: str, *parts: str) -> str:
    return separator.join(part for part in parts if part)


def refuse_connect(thing: object) -> None:
    """Raise `InvalidUsage` if a session, DataFrame, reader or writer is Spark Connect's."""
    if type(thing).__module__.startswith("pyspark.sql.connect"):
        raise _connect_refusal(f"{type(thing).__qualname__} of {type(thing).__module__}")


def refuse_no_session(thing: object) -> None:
    """Raise `InvalidUsage` if something is no session, such as the name of a master."""
    if not hasattr(thing, "sparkContext"):
        raise InvalidUsage(
            "start a pipeline",
            f"{thing!r} as the session" if isinstance(thing, str) else f"a {type(thing).__name__}",
            "stages run in a Spark session; nothing was started: say d.start(spark) with one, as in "
            'spark = delivery.spark.spark_session(master="local[2,4]")',
        )


def _refuse_connect_settings(master: str | None, conf: Mapping[str, str]) -> None:
    remotes = {
        "SPARK_REMOTE": os.environ.get("SPARK_REMOTE"),
        "SPARK_CONNECT_MODE_ENABLED": os.environ.get("SPARK_CONNECT_MODE_ENABLED"),
        "spark.remote": conf.get("spark.remote"),
        "spark.api.mode": "connect" if conf.get("spark.api.mode") == "connect" else None,
        "master": master if master and master.startswith("sc://") else None,
    }
    for name, value in remotes.items():
        if value:
            raise _connect_refusal(f"{name}={value}")


def _connect_refusal(subject: str) -> InvalidUsage:
    hint = "Spark Connect runs the driver on another machine, where stages cannot supervise their tasks. Nothing was started; use a classic session: unset SPARK_REMOTE and name a master (local[2,4], spark://host:7077, yarn), or submit the job with `spark-submit $(delivery spark-options) job.py`."
    return InvalidUsage("start a Spark session", subject, hint)


def _pyspark_version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("pyspark")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("pyspark-client")
        raise _connect_refusal("pyspark-client, which has no Spark inside")
    try:
        # That of a Spark distribution, as in YARN's containers, was not installed by anybody.
        from pyspark.version import __version__  # noqa: PLC0415 - see the module's first lines
    except ImportError as error:
        hint = (
            "it is not installed. Nothing was started; pip install 'exactly-once-delivery[spark]'."
        )
        raise InvalidUsage("start a Spark session", "PySpark", hint) from error
    return str(__version__)


def _check_version(version: str, what: str) -> None:
    if version.split(".")[:2] != PYSPARK_SUPPORTED.split(".")[:2]:
        hint = f"only {PYSPARK_SUPPORTED} is supported, the version the Kafka connector's jars are made for. Nothing was started; pip install 'exactly-once-delivery[spark]', and unset SPARK_HOME if it names another Spark."
        raise InvalidUsage("start a Spark session", f"{what} {version}", hint)


def _is_local(master: str | None) -> bool:
    return master is not None and master.partition("[")[0] in {"local", "local-cluster"}


def _require_connector(spark: SparkSession) -> None:
    """Refuse a session whose JVM was started without the connector: jars cannot be added later."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - see the module's first lines

    # Nothing is connected to: a batch source looks at its topics when it is run.
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
    try:
        source.option("subscribe", "none").load()
    except AnalysisException as error:
        hint = "it was started without the Kafka connector, which cannot be added later. Stop it and let spark_session start it, or submit the job with `spark-submit $(delivery spark-options) job.py`."
        raise InvalidUsage("use the running Spark session", spark.version, hint) from error
