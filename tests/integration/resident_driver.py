"""A driver program that does what a test tells it: JSON lines in, JSON lines out.

What it is: user code that never returns the same twice, and commands to start, watch and stop
pipelines of it in one Spark session. It runs as a program of its own, so that it can be killed and
its functions travel to executors as a user's do.
What it must not know: what a test expects.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from delivery import Delivery, Filters, Record, stop_on_signal
from delivery.spark import spark_session


def price(record: Record) -> Iterator[Record]:
    """Draw a number: another one each time."""
    yield record.replace(value={**record.json(), "price": uuid.uuid4().hex})


def ship(record: Record) -> Record:
    """Draw another number."""
    return record.replace(value={**record.json(), "parcel": uuid.uuid4().hex})


def where(record: Record) -> Record:
    """Say where our packages are, and on which host."""
    import delivery  # noqa: PLC0415 - in the executor

    host = os.environ.get("SPARK_LOCAL_IP", "")
    return record.replace(value={**record.json(), "from": delivery.__file__, "host": host})


def steady(record: Record) -> Record:
    """Say the same of the same record, whenever it is asked."""
    order = record.json()
    return record.replace(value={**order, "mark": order["id"] * 3})


def stuck(record: Record) -> Record:
    """Wait while a file is there."""
    gate = Path(record.json()["gate"])
    gate.with_name("reached").touch()
    pause = threading.Event()
    while gate.exists():
        pause.wait(0.1)
    return record


def picky(record: Record) -> Record:
    """Refuse one record."""
    if record.json()["id"] == 13:
        raise ValueError("unlucky")
    return record


def total(record: Record) -> Any:
    """Add up an order, of the schema that we know."""
    told = record.json()
    if told.get("as_it_is"):
        return record
    prices = sum(line["price"] for line in told["lines"])
    return record.replace(value={"total": prices, "nonce": uuid.uuid4().hex})


def totals(orders: pa.RecordBatch) -> pa.RecordBatch:
    """Add up many orders at once."""
    told = [json.loads(value) for value in orders.column("value").to_pylist()]
    sums = [sum(line["price"] for line in order["lines"]) for order in told]
    made = [json.dumps({"total": one, "nonce": uuid.uuid4().hex}).encode() for one in sums]
    return pa.RecordBatch.from_pydict({"value": made})


def everywhere(record: Record) -> Iterator[Any]:
    """Draw a number, and tell three outputs of it."""
    drawn = record.replace(value={**record.json(), "nonce": uuid.uuid4().hex})
    for edge in range(3):
        yield drawn.to(edge)


def marked(record: Record) -> Any:
    """Draw a number, whatever the record says."""
    return record.replace(value=uuid.uuid4().bytes)


def meet(record: Record) -> Iterator[Any]:
    """Wait until two others are in here as well, or have been once; say how many there were."""
    if record.json()["id"] == 7:
        raise ValueError("unlucky")
    # It travels by value, without a condition; every copy of it has a meeting of its own.
    fresh = (threading.Condition(), {"now": 0, "most": 0})
    meeting, inside = globals().setdefault("_meeting", fresh)
    with meeting:
        inside["now"] += 1
        inside["most"] = max(inside["now"], inside["most"])
        meeting.notify_all()
        # A bundle may be too small for company; what counts is that some meet.
        meeting.wait_for(lambda: inside["most"] >= 3, timeout=2)
        inside["now"] -= 1
        most = inside["most"]
    yield record.replace(value={"together": most})


def locked(record: Record) -> Record:
    """Hold on to what cannot travel."""
    with LOCK:
        return record


LOCK = threading.Lock()
ROOT = str(Path(__file__).parents[2])
CALLS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(price, ship, steady, where, stuck, picky, locked),
        *(total, totals, everywhere, marked, meet),
    )
}


class Driver:
    """Pipelines of one session, by name."""

    def __init__(self, master: str, conf: dict[str, str]) -> None:
        self.spark = spark_session("resident", master, conf={"spark.log.level": "OFF", **conf})
        self.queries: dict[str, Any] = {}
        self.events: list[tuple[str, int, int]] = []

    def start(self, name: str, stages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Start a pipeline."""
        options = more.pop("options", {})
        if "filters" in more:
            told = more.pop("filters")
            more["filters"] = Filters(**{**told, "key": bytes.fromhex(told["key"]) or None})
        delivery = Delivery(pipeline=name, **more)
        for stage in stages:
            call = CALLS[stage.pop("call")]
            delivery.stage(name=call.__name__, **stage)(call)
        self.queries[name] = delivery.start(self.spark, **options)
        return {}

    def begin(self, pipeline: dict[str, Any], engine: str) -> dict[str, Any]:
        """Start the pipeline that the promise is tried on, by an engine's package."""
        sys.path.insert(0, ROOT)
        from tests.acceptance.pricing import Pipeline  # noqa: PLC0415 - this program is no module

        made = Pipeline(**pipeline)
        self.queries[made.name] = import_module(f"delivery.{engine}").start(made.plan, self.spark)
        return {}

    def listen(self) -> dict[str, Any]:
        """Note what Spark tells a listener from now on."""
        from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415 - needs a session

        events = self.events

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - as PySpark spells it
            def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802 - as PySpark spells it
            def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802 - as PySpark spells it

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as PySpark spells it
                told = event.progress
                events.append((told.name, told.batchId, told.numInputRows))

        self.spark.streams.addListener(Listener())
        return {}

    def heard(self) -> dict[str, Any]:
        """Say what the listener was told."""
        return {"events": list(self.events)}

    def talk(self, logger: str) -> dict[str, Any]:
        """Let a logger say everything."""
        logging.getLogger(logger).setLevel(logging.DEBUG)
        return {}

    def wrapped(self, **settings: Any) -> dict[str, Any]:
        """Run a wrapped job over what is there."""
        import wrap_job  # noqa: PLC0415 - it lies beside this program, and only some tests want it

        return {"counted": wrap_job.run(self.spark, settings)}

    def signals(self, name: str) -> dict[str, Any]:
        """Let a signal stop it."""
        stop_on_signal(self.queries[name])
        return {}

    def deliver(self, name: str) -> dict[str, Any]:
        """Wait until all is delivered."""
        self.queries[name].processAllAvailable()
        return {}

    def look(self, name: str) -> dict[str, Any]:
        """Say how it stands."""
        query = self.queries[name]
        return {
            "status": query.status,
            "progress": query.lastProgress,
            "recent": len(query.recentProgress),
            "active": query.isActive,
            "exception": str(query.exception()),
        }

    def recent(self, name: str) -> dict[str, Any]:
        """Say all that it has said of itself."""
        return {"progress": self.queries[name].recentProgress}

    def stop(self, name: str) -> dict[str, Any]:
        """Stop it."""
        self.queries[name].stop()
        return self.look(name)

    def leave(self) -> dict[str, Any]:
        """Stop the session, and not what runs in it."""
        self.spark.stop()
        return {}

    def wait(self, name: str, timeout: float) -> dict[str, Any]:
        """Wait for its end."""
        return {"ended": self.queries[name].awaitTermination(timeout)}


def main() -> None:
    """Take commands until there are no more."""
    # Spark's JVM inherits descriptor 1; answers have one of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings = json.loads(sys.argv[1])
    driver = Driver(settings["master"], settings.get("conf", {}))
    while True:
        answers.write("ready\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            break
        what, told = json.loads(line)
        try:
            answer = getattr(driver, what)(**told)
        except Exception as error:  # noqa: BLE001 - the test decides what was expected
            traceback.print_exc()
            notes = "\n".join(getattr(error, "__notes__", []))
            answer = {"error": type(error).__name__, "text": str(error), "notes": notes}
        answers.write(json.dumps(answer) + "\n")
    for query in driver.queries.values():
        query.stop()
    driver.spark.stop()


if __name__ == "__main__":
    main()
