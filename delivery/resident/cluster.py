"""What the engine asks of Spark: slots, hosts, addresses, our packages on executors, one long job.

What it is: the only module of the engine that touches a session, and the only one that reaches
into the JVM.
What it must not know: lanes, stages, what tasks say.

Invariants:
    An answer that Spark does not give is None, never a guess.
    A job that was cancelled is waited for no longer than was said.
"""

from __future__ import annotations

import ipaddress
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.errors import InvalidUsage, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "Job",
    "buffer_bytes",
    "busy",
    "driver_address",
    "is_local",
    "session_gone",
    "ship",
    "slots",
    "spans_machines",
    "stopped",
]

#: What executors need of ours.
PACKAGES = ("dedup", "delivery", "connectors", "sinks")
ZIP_NAME = "exactly-once-delivery.zip"
#: Spark's own default, where a session does not say.
BUFFER_BYTES_DEFAULT = 65536


def is_local(master: str) -> bool:
    """Tell whether driver and executors read the same packages from the same disk."""
    return master.partition("[")[0] in {"local", "local-cluster"}


def spans_machines(master: str) -> bool:
    """Tell whether executors of a master may run on other machines than the driver."""
    if is_local(master):
        return False
    if not master.startswith("spark://"):
        return True
    # A master that is listening on a loopback address has no workers but this machine's.
    return not all(
        _loopback(one.rpartition(":")[0]) for one in master.removeprefix("spark://").split(",")
    )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once just now; 0 while there is no executor."""
    context = _context(spark)
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def busy(spark: SparkSession) -> int:
    """Return how many tasks are running just now, of whatever job."""
    infos = _context(spark).statusTracker().getExecutorInfos()
    return sum(int(info.numRunningTasks()) for info in infos)


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark has no other way to the JVM


def stopped(spark: SparkSession) -> bool:
    """Tell whether the session's context is gone."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - Spark is not needed before

    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - None once it is stopped
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError):
        return True  # its JVM is gone


def session_gone(name: str) -> Unavailable:
    """Return what the query of that name fails with when its session was stopped."""
    return Unavailable(
        "run a pipeline",
        name,
        "the Spark session was stopped under it; nothing is lost: start it again in another "
        "session, and stop the query before the session",
    )


def driver_address(spark: SparkSession) -> tuple[str, str]:
    """Return the address at which executors reach the driver, and the one it listens on."""
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host


def buffer_bytes(spark: SparkSession) -> int:
    """Return how much a task has to yield before Spark sees any of it."""
    said: str = spark.sparkContext.getConf().get("spark.buffer.size") or str(BUFFER_BYTES_DEFAULT)
    return int(said) if said.isdigit() else BUFFER_BYTES_DEFAULT


def ship(spark: SparkSession) -> None:
    """Give executors our packages, by `addPyFile`, where they may not have them. Twice is once."""
    context = spark.sparkContext
    if is_local(str(context.master)) or any(f.endswith(ZIP_NAME) for f in context.listFiles):
        return
    directory = Path(tempfile.mkdtemp(prefix="delivery-ship-"))
    context.addPyFile(str(packed(directory / ZIP_NAME)))


def packed(path: Path) -> Path:
    """Write our packages into an archive that Python imports from; return it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for root in _roots(package):
                for file in sorted(root.rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, str(Path(package) / file.relative_to(root)))
    return path


def _roots(package: str) -> Iterable[Path]:
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise InvalidUsage(
            "give executors our packages",
            package,
            "it cannot be found from here; nothing was started: install the library as a package",
        )
    return [Path(place) for place in spec.submodule_search_locations]


class Job:
    """One submission: `tasks` tasks that each call `body` with its number and run until it ends.

    Args:
        spark: the session.
        name: what Spark's pages call it.
        tasks: how many.
        body: yields bytes now and then.
        done: called, from any thread, when the job has ended.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        tasks: int,
        body: Callable[[int], Iterator[bytes]],
        done: Callable[[], None],
    ) -> None:
        from pyspark import InheritableThread  # noqa: PLC0415 - Spark is not needed before

        self._spark = spark
        self._name = name
        self._tasks = tasks
        self._body = body
        self._tag = f"delivery-{uuid.uuid4().hex}"
        self._done = done
        self.ended = threading.Event()
        #: What Spark said, if it did not end well.
        self.error: Exception | None = None
        thread = InheritableThread(target=self._run, name="delivery-job", daemon=True)
        thread.start()

    def _run(self) -> None:
        body = self._body

        def loop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa  # noqa: PLC0415 - in the task

            from delivery.buffers import blobs  # noqa: PLC0415 - likewise
            from delivery.host.memory import calm_collector  # noqa: PLC0415 - likewise

            calm_collector()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for beat in body(number):
                        yield pa.RecordBatch.from_arrays([blobs([beat], pa.binary())], ["beat"])

        try:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            context.setJobDescription(self._name)
            frame = self._spark.range(0, self._tasks, 1, self._tasks)
            # Nothing is kept of what is yielded, and nothing asks a coordinator.
            frame.mapInArrow(loop, "beat binary").write.format("noop").mode("overwrite").save()
        except Exception as error:  # noqa: BLE001 - Py4J and Spark raise what they like; it is told
            self.error = error
        finally:
            self.ended.set()
            self._done()

    def cancel(self, seconds: float) -> bool:
        """Let Spark end it; tell whether it has ended within `seconds`."""
        if not self.ended.is_set() and not stopped(self._spark):
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
        return self.ended.wait(seconds)
