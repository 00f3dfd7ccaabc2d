"""What lies in topics and catalogs after a trial, as it was found.

What it is: topics read whole, what came out of each input, what the seals say of themselves.
What it must not know: what is right.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from connectors.kafka import KafkaReader
from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Store
from dedup.model import Counts, Source
from delivery.checker import Log
from delivery.header import NAME, decode_header
from delivery.kafka.port import Client
from delivery.records import Record


def logs_of(client: Client, name: str) -> dict[Source, Log]:
    """Read a topic whole."""
    reader = KafkaReader(client, name)
    bounds = reader.log()
    records: dict[Source, list[Record]] = {source: [] for source, _ in bounds.high}
    for fetched in reader.read(bounds.low, bounds.high):
        records[fetched.source] += fetched.batch
    ends = dict(bounds.high)
    return {source: Log(found, ends[source]) for source, found in records.items()}


def counts_of(store: Store, lanes: Sequence[str]) -> Counts:
    """Add up what the seals of some lanes say became of their records."""
    catalog = Catalog(store)
    total: dict[str, int] = defaultdict(int)
    for lane in lanes:
        row = catalog.load(lane)
        assert row is not None, f"{lane} never was"
        for seq in range(1, row.head.ref.seq + 1):
            seal = catalog.seal(lane, row.head.ref.incarnation, seq)
            assert seal is not None, f"{lane} has no seal {seq}"
            for name, number in asdict(seal.counts).items():
                total[name] += number
    return Counts(**total)


@dataclass(slots=True)
class Outcome:
    """What came out of one input: identity and content of each copy, and what they tell."""

    copies: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    told: set[int | None] = field(default_factory=set)
    #: What the call said that nobody says twice.
    nonces: set[str | None] = field(default_factory=set)


def versions_of(*topics: dict[Source, Log]) -> dict[str, Outcome]:
    """Return what came out, by the name of the input it was made of."""
    versions: dict[str, Outcome] = defaultdict(Outcome)
    for record in (record for found in topics for log in found.values() for record in log.records):
        assert record is not None, "nothing compacts these topics"
        worn = dict(record.headers)
        header = decode_header(worn[NAME])
        assert header is not None, "every output carries a header of ours"
        # A dead letter wears what its record wore; of several headers of a name the last counts.
        dead = "delivery-error" in worn
        body = {} if dead else json.loads(record.value or b"")
        outcome = versions[worn["id"].decode() if dead else body["id"]]
        outcome.copies.append((header.id, record.value))
        outcome.told.add(body.get("n"))
        outcome.nonces.add(body.get("nonce"))
    return versions
