"""What the tests of the operator's verbs share: a catalog in a file, made by the real runner.

What it is: fixtures' parts: a house over SQLite, the verbs called in this process, their documents.
What it must not know: any single verb.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob, Store
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, Seal
from delivery.cli import delivery as group
from delivery.receiver.keeping import Keeping
from tests.unit.house import LANE, House

#: A second stage, which reads what the first one writes.
SECOND = "shop/ship/0"
#: A receiver of the same, which keeps its lane in its user's database.
BILLING = "shop/billing/out-0"


@contextmanager
def housed(path: Path, furnish: Callable[[House], None] = lambda _: None) -> Iterator[House]:
    """A house whose catalog is a file; it is furnished in memory, without a wait for the disk."""
    house = House(MemoryStore())
    furnish(house)
    store = open_store(f"sqlite:{path}")
    with store.group():
        copied(house.store, store)
    house.store = store
    try:
        yield house
    finally:
        store.close()


def copied(source: Store, target: Store) -> None:
    """Write all rows of one store into an empty other one."""
    for lane in source.lanes():
        row = source.read(lane)
        assert row is not None
        assert target.create(lane, row, None)
        entries = source.entries(lane, row.ref.incarnation, 0, row.ref.seq)
        assert target.import_entries(lane, row.ref.incarnation, entries)
        for kind in Blob:
            for slot in source.slots(kind, lane):
                target.put(kind, slot, source.get(kind, slot))
        listed = source.read_list(lane)
        if listed is not None:
            assert target.replace_list(lane, None, *listed)
        for slot, digest in source.losers(lane):
            target.note_loser(slot, digest)
    target.flush()


def chained(house: House, rounds: int = 3) -> None:
    """Run two stages: ten records a round, of which the last repeats one of the first round."""
    house.broker.create("end")
    for number in range(rounds):
        house.write(*(f"r{number}-{at}" for at in range(9)), "r0-0")
        house.done(house.runner(), cut=5)
        house.done(
            house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)),
            topic="out",
            cut=5,
        )


def begun_elsewhere(house: House, offset: int) -> None:
    """Let a catalog remember where a lane began that is kept in a database which is not here."""
    source = house.source("out")
    ref = HeadRef(Incarnation(b"i" * 16), 0, Attempt(b"a" * 16))
    head = Head(
        ref=ref,
        frontier=Frontier.of([(source, offset)]),
        topics=(("out", source.topic),),
        state=b"database\x01" + bytes(16) + b"/gone/billing.db",
    )
    begun = Seal(ref=ref, start=head.frontier, end=head.frontier, minted_at_ms=1, lane_time_ms=0)
    assert house.catalog().create(BILLING, head, begun)


def billed(house: House, database: Path) -> None:
    """Let a receiver read what the first stage wrote, five records a bundle."""
    database.touch()
    with closing(Keeping(house.catalog(), "shop/billing/")) as keeping:
        if not keeping.find([BILLING]):
            keeping.decide_database(str(database))
        runner = house.runner(
            BILLING,
            reads="out",
            writes=(),
            senders=(LANE,),
            call=lambda _: None,
            store=keeping.catalog.store,
        )
        house.done(runner, topic="out", cut=5)


def again(house: House, place: int = 0) -> int:
    """Emit a record of the first stage again, as a crash would; return where it lands."""
    return house.broker.append(house.source("out"), house.sent()[place])


def read_on(house: House) -> None:
    house.done(
        house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out", cut=5
    )


def called(*arguments: str, code: int = 0) -> Result:
    """Call the command line as a shell would, and hold it to its exit code."""
    result = CliRunner().invoke(group, list(arguments))
    assert result.exit_code == code, f"{result.output}\n{result.stderr}\n{result.exception!r}"
    return result


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Call a verb and return its one document."""
    found = json.loads(called(*arguments, "--json", code=code).stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[House]:
    """Two stages in a file called shop.db."""
    with housed(tmp_path / "shop.db", chained) as house:
        yield house


@pytest.fixture
def url(tmp_path: Path, shop: House) -> str:
    """The URL of that file."""
    assert shop.store.url.endswith("shop.db")
    return f"sqlite:{tmp_path / 'shop.db'}"
