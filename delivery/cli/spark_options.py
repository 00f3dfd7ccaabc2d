"""`delivery spark-options`: what to add to a `spark-submit` of one's own.

What it is: words around `delivery.spark.spark_options`. What it must not know: which settings.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, verb


@click.command(
    epilog="Example: spark-submit $(delivery spark-options) job.py. What stands behind it on the "
    "line wins, so --conf spark.pyspark.python=/opt/venv/bin/python names another Python."
)
@click.option(
    "--jars-to",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Copy the connector's jars into this directory, such as $SPARK_HOME/jars of an image, and "
    "name none of them.",
)
@verb
def command(out: Output, jars_to: Path | None) -> None:
    """Print the options with which a job of yours can run stages.

    Fetches the Kafka connector's jars if they are missing. The job itself calls
    delivery.spark.spark_session(), or SparkSession.builder as ever.
    """
    from delivery.spark import spark_options  # noqa: PLC0415  keeps --help light

    options = spark_options(report=out.progress)
    if jars_to is not None:
        for jar in options.pop("spark.jars").split(","):
            shutil.copy(jar, jars_to)
    for key, value in options.items():
        # A shell that fills in $(...) splits at white space and knows no quotes there.
        if not out.as_json and len(value.split()) != 1:
            hint = "a value with a space in it falls apart in $(...). Nothing was printed; use --json, or set DELIVERY_CACHE (jars) or PYSPARK_PYTHON to a path without spaces."
            raise InvalidUsage("print spark-submit options", f"{key}={value}", hint)
    words = [f"--conf {key}={value}" for key, value in options.items()]
    out.result(" ".join(words), options, as_is=True)
