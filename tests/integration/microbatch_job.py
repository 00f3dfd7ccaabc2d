"""A process that runs the trial's pipeline in the micro-batch engine until its input is complete.

Started by tests as `python -m tests.integration.microbatch_job PIPELINE COMPLETE OPTIONS`. With the
option `doomed`, whoever dies at a point takes this process and its JVM along: the driver is killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from delivery.host.killing import VARIABLE, VICTIM_SUFFIX
from delivery.microbatch import start
from delivery.spark import spark_session
from tests.acceptance.pricing import Pipeline
from tests.integration.microbatch_kit import PROGRESS

POLL_SECONDS = 0.1


def main(pipeline: Pipeline, complete: Path, options: dict[str, object]) -> None:
    """Run every stage until everything is delivered."""
    spark = spark_session("job", str(options.pop("master", "local[2,4]")), conf=CONF)
    if options.pop("doomed", False):
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        for entry in os.environ[VARIABLE].split(","):
            marker = Path(entry.partition(":")[2])
            marker.with_name(marker.name + VICTIM_SUFFIX).write_text(f"{os.getpid()} {jvm}")
    query = start(pipeline.plan, spark, **options)
    pause = threading.Event()
    while not complete.exists():
        query.awaitTermination(0)
        pause.wait(POLL_SECONDS)
    if not query.awaitTermination(0):
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    sys.stdout.write(f"\n{PROGRESS}{json.dumps(query.lastProgress)}\n")
    sys.stdout.flush()
    spark.stop()


CONF = {"spark.log.level": "OFF"}

if __name__ == "__main__":
    main(Pipeline(**json.loads(sys.argv[1])), Path(sys.argv[2]), json.loads(sys.argv[3]))
