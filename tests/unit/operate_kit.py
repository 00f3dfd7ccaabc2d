"""What the tests of the operator's verbs share: a catalog in a file, made by the real runner.

What it is: fixtures' parts: a house over SQLite, the verbs called in this process, their documents.
What it must not know: any single verb.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob, Store
from delivery.cli import delivery as group
from tests.unit.house import LANE, House

#: A second stage, which reads what the first one writes.
SECOND = "shop/ship/0"


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
