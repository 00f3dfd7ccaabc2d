"""A job of a user's on Spark, behind a login: one stage, until all there is is done.

What it is: a program; its argument is a JSON document with all it is told.
What it must not know: what a test expects.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

from delivery import Delivery, Output, Record
from delivery.spark import spark_session


def price(record: Record) -> Output:
    """Draw a number: another one each time."""
    return record.replace(value={"order": record.json(), "nonce": uuid.uuid4().hex})


def main(told: dict[str, Any]) -> None:
    """Run the stage to the end of its input."""
    d = Delivery(
        catalog=told["catalog"], kafka=told["kafka"], options=told["options"], pipeline="shop"
    )
    d.stage(reads=told["reads"], writes=told["writes"], id_from="value")(price)
    spark = spark_session("secured")
    query = d.start(spark, engine=told["engine"], create_topics=True)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
