"""Files and tables behind stages on Spark, in both engines, while the processes that write them die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest

from delivery.services.cassandra import Cassandra
from sinks.files import read_files
from tests.integration import resident_driver as user
from tests.integration.resident_kit import until
from tests.integration.test_poison import ENGINES, House, catalog, driver, house, order
from tests.servers import connected

__all__ = ["catalog", "driver", "house"]

ORDERS, ROUNDS = 300, 3


@pytest.mark.parametrize("engine", ENGINES)
def test_each_record_is_written_once_and_everywhere_by_the_same_execution(
    house: House,
    engine: str,
    cassandra: Cassandra,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    keyspace, raw = unique("shop"), house.topic("raw")
    node = f"{cassandra.contact_points[0]}:{cassandra.port}"
    columns, lines = tmp_path / "columns", tmp_path / "lines"
    writes = [f"files:{columns}", f"files:{lines}?format=jsonl"]
    writes.append(f"cassandra://{node}/{keyspace}/priced")
    with connected(cassandra.contact_points, cassandra.port) as session:
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        house.stage(user.everywhere, reads=raw, writes=writes, id_from="json:id")
        name = house.start(engine)
        for round_ in range(ROUNDS):
            before = written(columns)
            rows = [order(number) for number in range(round_ * ORDERS, (round_ + 1) * ORDERS)]
            first, last = rows[: ORDERS // 2], rows[ORDERS // 2 :]
            house.publish(raw, [*first, *first[::7]])
            until(lambda had=before: written(columns) > had)
            house.publish(raw, [*last, *rows[::7]])
            victims = house.driver.workers()
            for victim in victims:
                victim.kill()
            assert psutil.wait_procs(victims, timeout=10)[0], "somebody writes"
        house.driver.well("deliver", name=name)
        house.driver.well("stop", name=name)
        session.set_keyspace(keyspace)
        table = [row.value for row in session.execute("SELECT value FROM priced")]
    made = drawn(table)
    assert sorted(made) == list(range(ROUNDS * ORDERS))
    for directory in (columns, lines):
        assert drawn(record.value or b"" for record in read_files(directory)) == made


def written(directory: Path) -> int:
    """Count the files that are there."""
    return len(list(directory.glob("*.parquet")))


def drawn(values: Iterable[bytes]) -> dict[int, str]:
    """Return what was drawn for each order; fail if one is there twice."""
    told = [json.loads(value) for value in values]
    found = {one["id"]: one["nonce"] for one in told}
    assert len(found) == len(told)
    return found
