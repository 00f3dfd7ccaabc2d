"""Sessions as users start them: here, on a local cluster, and by their own spark-submit.

Each runs in a process of its own, because a JVM keeps the class path it was started with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dedup.errors import InvalidUsage
from delivery.services.java import find_java
from delivery.spark import refuse_connect, spark_options, spark_session
from tests.unit.documented import undocumented

#: Generous: a session takes 6 s on two idle cores, and the machine may be busy.
SECONDS_MAX = 300.0
BIN = Path(sys.executable).parent


def environment(**changes: str) -> dict[str, str]:
    """Give what a user's shell has: the tools of the environment first, nothing set for Spark."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{kept['PATH']}"} | changes


def run(tmp_path: Path, code: str, command: list[str] | None = None) -> Any:
    """Run a script in an empty directory; return what it printed last, as JSON."""
    script = tmp_path / "job.py"
    script.write_text("import json, os, sys\n" + textwrap.dedent(code))
    done = subprocess.run(
        [*(command or [sys.executable]), str(script)],
        cwd=tmp_path,
        env=environment(JAVA_HOME=str(find_java().home)) if command else environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_local_session_has_our_python_the_connector_and_retries(tmp_path):
    said = run(
        tmp_path,
        """
        import pyarrow as pa
        from delivery.spark import spark_session

        def flaky(batches):
            from pyspark import TaskContext

            if TaskContext.get().attemptNumber() < 3:
                raise RuntimeError("the first three attempts fail")
            for batch in batches:
                yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

        spark = spark_session("test", conf={"spark.log.level": "OFF", "spark.ui.retainedJobs": "7"})
        pythons = spark.range(0, 2, 1, 2).mapInArrow(flaky, "python string").collect()
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
        print(json.dumps({
            "pythons": sorted({row.python for row in pythons}),
            "columns": kafka.option("subscribe", "t").load().columns,
            "same": spark_session() is spark,
            "zone": spark.conf.get("spark.sql.session.timeZone"),
            "ours": spark.conf.get("spark.ui.retainedJobs"),
            "master": spark.sparkContext.master,
            "here": os.listdir("."),
        }))
        """,
    )
    assert said.pop("columns")[:5] == ["key", "value", "topic", "partition", "offset"]
    assert said == {
        "pythons": [sys.executable],
        "same": True,
        "zone": "UTC",
        "ours": "7",
        "master": "local[2,4]",
        "here": ["job.py"],
    }


def test_a_local_cluster_runs_python_with_our_packages_in_its_executors(tmp_path):
    said = run(
        tmp_path,
        """
        import pyarrow as pa
        from delivery.spark import spark_session

        def look(batches):
            import delivery

            for batch in batches:
                rows = [[os.getppid(), sys.executable, delivery.__file__]] * batch.num_rows
                columns = zip(*rows, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(list(column)) for column in columns], ["parent", "python", "package"]
                )

        if __name__ == "__main__":
            spark = spark_session("test", "local-cluster[2,1,1024]")
            rows = spark.range(0, 8, 1, 8).mapInArrow(look, "parent long, python string, package string")
            found = rows.collect()
            import delivery
            print(json.dumps({
                "rows": len(found),
                "pythons": sorted({row.python for row in found}),
                "packages": sorted({row.package for row in found}) == [delivery.__file__],
            }))
        """,
    )
    assert said == {"rows": 8, "pythons": [sys.executable], "packages": True}


SUBMITTED = """
from dedup.errors import InvalidUsage
from delivery.spark import spark_session

try:
    spark = spark_session("test")
except InvalidUsage as error:
    print(json.dumps({"refused": error.hint}))
else:
    count = spark.range(4).mapInArrow(lambda batches: batches, "id long").count()
    told = {key: spark.conf.get(key) for key in ("spark.sql.session.timeZone", "spark.buffer.size")}
    print(json.dumps({"master": spark.sparkContext.master, "count": count, **told}))
"""


def test_a_job_submitted_without_them_is_told(tmp_path):
    submit = [str(BIN / "spark-submit"), "--master", "local[1,4]"]
    assert "delivery spark-options" in run(tmp_path, SUBMITTED, submit)["refused"]


def test_what_a_job_was_submitted_with_wins_over_what_its_session_adds(tmp_path):
    """And what nobody said is added, but for jars: those of a cluster lie elsewhere."""
    options = spark_options()
    told = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.jars": options["spark.jars"]}
    words = [word for key, value in told.items() for word in ("--conf", f"{key}={value}")]
    submit = [str(BIN / "spark-submit"), "--master", "local[1,4]", *words]
    said = run(tmp_path, SUBMITTED, submit)
    assert said == {
        "master": "local[1,4]",
        "count": 4,
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.buffer.size": "512",
    }


def test_options_printed_as_json_are_the_function_s():
    done = subprocess.run(
        [BIN / "delivery", "spark-options", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYSPARK_PYTHON="/opt/python"),
    )
    expected = spark_options() | {"spark.pyspark.python": "/opt/python"}
    assert json.loads(done.stdout) == expected
    assert undocumented("spark-options", expected) == set()


def test_options_that_a_shell_would_take_apart_are_refused():
    done = subprocess.run(
        [BIN / "delivery", "spark-options"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(PYSPARK_PYTHON="/opt/my python"),
    )
    assert (done.returncode, done.stdout) == (InvalidUsage.exit_code, "")
    assert "/opt/my python" in done.stderr


def test_what_the_caller_says_wins_and_jars_are_added():
    options = spark_options(conf={"spark.buffer.size": "1", "spark.jars": "mine.jar"})
    assert options["spark.buffer.size"] == "1"
    *ours, mine = options["spark.jars"].split(",")
    assert mine == "mine.jar"
    assert len(ours) == 4
    local = spark_options("local[2,4]", conf={"spark.driver.extraClassPath": "mine.jar"})
    assert local["spark.driver.extraClassPath"].split(":") == [*ours, "mine.jar"]


@pytest.mark.parametrize(
    ("variables", "master", "conf"),
    [
        ({"SPARK_REMOTE": "sc://host"}, None, {}),
        ({"SPARK_CONNECT_MODE_ENABLED": "1"}, None, {}),
        ({}, "sc://host:15002", {}),
        ({}, None, {"spark.remote": "local"}),
        ({}, None, {"spark.api.mode": "connect"}),
    ],
)
def test_spark_connect_is_refused_before_anything_starts(monkeypatch, variables, master, conf):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidUsage, match=r"Spark Connect.*classic session"):
        spark_session(master=master, conf=conf)


def test_things_of_spark_connect_are_recognised_by_where_they_come_from():
    connect = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    classic = type("DataFrame", (), {"__module__": "pyspark.sql.classic.dataframe"})
    refuse_connect(classic())
    with pytest.raises(InvalidUsage, match=r"pyspark\.sql\.connect\.dataframe"):
        refuse_connect(connect())


@pytest.mark.parametrize("version", ["4.1.1", "4.3.0", "3.5.6"])
def test_another_pyspark_is_refused_by_version(monkeypatch, version):
    monkeypatch.setattr("delivery.spark._pyspark_version", lambda: version)
    with pytest.raises(InvalidUsage, match=rf"PySpark {version}: only 4\.2\.x"):
        spark_session()
