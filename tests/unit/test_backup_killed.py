"""A restore that is killed at any step is finished by the same, and its catalog opened by nobody before."""

from __future__ import annotations

import pytest

from dedup.backup import BEGUN, back_up, restore, unfinished
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store, refuse_unfinished
from dedup.catalog.store import Store
from dedup.errors import InvalidUsage
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Wire
from tests.unit.house import House
from tests.unit.test_backup import CHAIN, chain, lasting, saved


def killed(store: Store, stream: list[bytes], at: int, fault: Fault, house: House) -> bool:
    """Restore, and die at one of the store's changing calls; False if there are not so many."""
    wire = Wire({}, lambda number, _: fault if number == at else None)
    try:
        restore(Catalog(FaultyStore(store, wire)), stream, house.fresh)
    except Crashed:
        return True
    return False


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_killed_restore_is_finished_by_the_same_and_opened_by_nobody_before(
    house, tmp_path, kind, fault
):
    chain(house)
    before, stream = {lane: lasting(house.catalog(), lane) for lane in CHAIN}, saved(house)
    whole = between = 0
    for at in range(1_000):
        path = tmp_path / f"{at}.db"
        store = MemoryStore() if kind == "memory" else open_store(f"sqlite:{path}")
        if not killed(store, stream, at, fault, house):
            break
        if kind == "sqlite":
            store.close()
            store = open_store(f"sqlite:{path}", restoring=True)
        catalog = Catalog(store)
        if len(list(catalog.lanes())) < len(CHAIN) and store.find_setting(BEGUN) is not None:
            between += 1
            with pytest.raises(InvalidUsage, match="delivery catalog restore"):
                refuse_unfinished(store)
            with pytest.raises(InvalidUsage, match="another backup"):
                restore(catalog, list(back_up(other_catalog())), house.fresh)
        assert bool(list(catalog.lanes())) <= (store.find_setting(BEGUN) is not None)
        if unfinished(store) is None and list(catalog.lanes()):
            whole += 1
        else:
            assert sorted(restore(catalog, stream, house.fresh)) == sorted(CHAIN)
        assert {lane: lasting(catalog, lane) for lane in CHAIN} == before
        assert all(len(catalog.load(lane).head.past) == 1 for lane in CHAIN)
        refuse_unfinished(store)
        store.close()
    assert between > len(CHAIN)
    # Only who dies behind the last mark leaves nothing to finish.
    assert whole == (fault is Fault.CRASH_AFTER)


def other_catalog() -> Catalog:
    """Another catalog with lanes of its own."""
    other = House(MemoryStore())
    other.write("z")
    other.done()
    return other.catalog()


def test_a_process_that_opens_a_catalog_in_between_is_refused(house, tmp_path):
    chain(house)
    url = f"sqlite:{tmp_path / 'restored.db'}"
    store = open_store(url)
    assert killed(store, saved(house), 3, Fault.CRASH_BEFORE, house)
    store.close()
    with pytest.raises(InvalidUsage, match="lanes are missing"):
        open_store(url)
