"""A Spark driver that tests kill: every stage of a pipeline, until nothing is left to do.

What it is: a program. Its arguments are a pipeline as JSON, an engine's package, a master, a file that
appears when no more records come in, and settings for Spark as JSON.
What it must not know: who kills it or its processes, when.

Invariants:
    It ends with 0 only if the engine says that everything in the input topics is delivered, with
    `STOPPED` if a signal stopped it, and with `AWAY` if a server was away, as one may be that is
    killed while this starts.
    Whenever the query says of itself that it stands otherwise, it says what users of it see.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from dedup.errors import Unavailable
from delivery.host.killing import VARIABLE
from delivery.query import Query, stop_on_signal
from delivery.spark import spark_session
from tests.acceptance.kit import POLL_SECONDS, ROOT
from tests.acceptance.lifeline import hold
from tests.acceptance.pricing import TINY_INDEXES, Pipeline
from tests.acceptance.worker import AWAY

LOG = logging.getLogger(__name__)

#: How it ends if it was told to by a signal.
STOPPED = 76
#: The one setting among Spark's that is the resident engine's.
TASKS = "tasks"
#: What a line begins with, before its JSON, that says what users of the query see.
SEEN = "seen: "


def main(
    pipeline: Pipeline, engine: str, master: str, complete: Path, more: dict[str, str]
) -> None:
    """Run every stage to the end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    for noisy in ("py4j", "kafka"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    conf = {"spark.log.level": "OFF", "spark.executorEnv.PYTHONPATH": str(ROOT)}
    options = {TASKS: int(more[TASKS])} if TASKS in more else {}
    conf |= {key: value for key, value in more.items() if key != TASKS}
    for name in {VARIABLE, TINY_INDEXES} & set(os.environ):
        conf[f"spark.executorEnv.{name}"] = os.environ[name]
    spark = spark_session("acceptance", master, conf=conf)
    query = import_module(f"delivery.{engine}").start(pipeline.plan, spark, **options)
    stop_on_signal(query)
    before: tuple[str, ...] = ()
    while not complete.exists():
        if query.awaitTermination(0):
            spark.stop()
            sys.exit(STOPPED)
        before = seen(query, before)
        time.sleep(POLL_SECONDS)
    query.processAllAvailable()
    query.stop()
    spark.stop()


def seen(query: Query, before: tuple[str, ...]) -> tuple[str, ...]:
    """Return how a query stands, in words; if that has changed, say all that its users see."""
    status, progress = query.status, query.lastProgress
    words = status["message"], str((progress or {}).get("message"))
    if words != before:
        LOG.info("%s%s", SEEN, json.dumps({"status": status, "lastProgress": progress}))
    return words


if __name__ == "__main__":
    hold()
    _, said, engine, master, complete, more = sys.argv
    try:
        main(Pipeline(**json.loads(said)), engine, master, Path(complete), json.loads(more))
    except Unavailable as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(AWAY)
