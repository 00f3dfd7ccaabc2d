"""A catalog's file is copied, the pipeline runs on, the copy is put back: nothing counts twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.open import open_catalog, open_store
from dedup.errors import InvalidUsage
from delivery.header import NAME, decode_header
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.services.kafka import Kafka
from tests.integration.lost_kit import PARTITIONS, Shop, traffic
from tests.unit.house import rows
from tests.unit.operate_kit import called


@pytest.fixture
def shop(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path):
    with open_client(kafka.bootstrap) as client:
        made = Shop(client, kafka.bootstrap, tmp_path, unique("shop"))
        made.create()
        yield made


def held(shop: Shop) -> object:
    """Every row of the catalog, and how far the topics go."""
    with closing(open_store(f"sqlite:{shop.file(0)}")) as store:
        stored = rows(store)
    ends = [
        shop.client.bounds(name, shop.client.describe([name])[name].sources).high
        for name in (shop.priced, shop.shipped)
    ]
    return stored, ends


def counted(shop: Shop, topic: str) -> dict[int, set[bytes]]:
    """Return by order the ids of what a receiver in this catalog takes: no history given up."""
    catalog = open_catalog(f"sqlite:{shop.file(0)}")
    found: dict[int, set[bytes]] = {}
    with closing(catalog.store):
        for record in shop.bench().records(topic):
            header = decode_header(record.header(NAME) or b"")
            row = catalog.load(header.mark.sender)
            if header.mark.seq <= (row.head.last_kept(header.mark.incarnation) or -1):
                found.setdefault(record.json()["n"], set()).add(header.id)
    return found


def test_a_copy_of_the_file_that_was_put_back_is_refused_until_it_is_accepted(shop, tmp_path):
    traffic(shop, 1, 100)
    shop.run()
    copy = tmp_path / "copy.db"
    shutil.copy(shop.file(0), copy)
    traffic(shop, 100, 200)
    shop.run()
    shop.run()  # nothing is to do, and nothing in the way
    shop.lose(0)
    shutil.copy(copy, shop.file(0))
    before = held(shop)
    with pytest.raises(InvalidUsage, match="an older copy of the catalog was put back"):
        shop.run()
    # So does each process that runs lanes, whatever was looked at before it began.
    with closing(Worker(shop.plan(0, 1))) as worker:
        for spec in shop.specs():
            with pytest.raises(InvalidUsage, match="an older copy of the catalog was put back"):
                worker.open(spec, range(PARTITIONS), {})
    assert held(shop) == before
    called("catalog", "accept", f"sqlite:{shop.file(0)}", "--yes")
    shop.run()
    # Raw readers see two versions of what ran again. In this catalog each order counts once.
    assert len(shop.doubled(shop.shipped)) > 50
    for topic in (shop.priced, shop.shipped):
        assert {n: len(ids) for n, ids in counted(shop, topic).items() if len(ids) != 1} == {}
        assert counted(shop, topic).keys() == shop.effects(topic).keys()
    assert shop.missing(shop.shipped) == set()
