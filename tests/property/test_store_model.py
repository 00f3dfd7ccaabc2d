"""A store against a model of dicts and sets: any order of calls, from two objects on the same rows."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from dedup.catalog.memory import MemoryStore, Tables
from dedup.catalog.sqlite import SqliteStore
from dedup.catalog.store import Blob, RawAck, RawLane, Store
from dedup.model import Attempt, HeadRef, Incarnation, Slot

LANES = st.sampled_from(("shop/price/0", "shop/price/00"))
KINDS = st.sampled_from(Blob)
OBJECTS = st.integers(0, 1)
SEQS = st.integers(0, 6)
#: Few identities, so that wrong guesses are near misses.
IDENTITIES = st.integers(1, 3).map(lambda n: bytes([n]) * 16)
REFS = st.builds(HeadRef, IDENTITIES, SEQS, IDENTITIES)
BYTES = st.binary(max_size=30)
FEW = st.integers(1, 2).map(lambda n: bytes([n]) * 16)
SLOTS = st.builds(Slot, LANES, FEW, st.integers(2, 4), FEW)


@dataclass(kw_only=True)
class Model:
    """What the rows must be."""

    lanes: dict[str, RawLane] = field(default_factory=dict)
    entries: dict[tuple[str, Incarnation, int], bytes] = field(default_factory=dict)
    #: Chunks that everybody must see.
    public: dict[tuple[Blob, Slot], list[bytes]] = field(default_factory=dict)
    #: Chunks that the object they were put through must see, and others with its next row.
    private: tuple[dict[tuple[Blob, Slot], list[bytes]], ...]
    #: Chunks that one object held back while they were deleted through the other.
    doubtful: dict[tuple[Blob, Slot], list[bytes]] = field(default_factory=dict)
    lists: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    losers: dict[Slot, bytes] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def publish(self, at: int) -> None:
        """Make what was put through one object public."""
        self.public |= self.private[at]
        self.private[at].clear()

    def delete(self, at: int, key: tuple[Blob, Slot]) -> None:
        """Delete chunks through one object, which need not know what the other holds back."""
        self.public.pop(key, None)
        self.private[at].pop(key, None)
        if key in self.private[1 - at]:
            self.doubtful[key] = self.private[1 - at].pop(key)


class StoreMachine(stateful.RuleBasedStateMachine):
    """Calls every method of the port and compares what is returned and what is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="delivery-model-"))
        self.tables = Tables()
        self.stores = [self.open(), self.open()]
        self.model = Model(private=({}, {}))

    def open(self) -> Store:
        """Open one more object on the same rows."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Close what is open."""
        for store in self.stores:
            store.close()
        shutil.rmtree(self.directory)

    @stateful.rule(at=OBJECTS, lane=LANES, ref=REFS, entry=st.none() | BYTES, blob=BYTES)
    def create(self, at, lane, ref, entry, blob):
        row = RawLane(ref, blob, RawAck(ref.incarnation, 0, blob), 0)
        created = lane not in self.model.lanes
        assert self.stores[at].create(lane, row, entry) == created
        if created:
            self.model.lanes[lane] = row
            if entry is not None:
                self.model.entries[lane, ref.incarnation, ref.seq] = entry
            self.model.publish(at)

    @stateful.rule(at=OBJECTS, lane=LANES, guess=st.none() | REFS, name=IDENTITIES, entry=BYTES)
    def append(self, at, lane, guess, name, entry):
        row = self.model.lanes.get(lane)
        expected = guess or (row.ref if row else HeadRef(Incarnation(name), 0, Attempt(name)))
        ref = replace(expected, seq=expected.seq + 1, attempt=name)
        moved = row is not None and row.ref == expected
        if moved and (lane, ref.incarnation, ref.seq) in self.model.entries:
            return  # an entry where none may stand: planted by an import, and refused elsewhere
        done = self.stores[at].append(lane, expected, ref, b"head" + name, entry)
        assert done == moved
        if moved:
            self.model.lanes[lane] = replace(row, ref=ref, head=b"head" + name)
            self.model.entries[lane, ref.incarnation, ref.seq] = entry
            self.model.publish(at)

    @stateful.rule(at=OBJECTS, lane=LANES, guess=st.none() | REFS, ref=REFS, collected=SEQS)
    def reincarnate(self, at, lane, guess, ref, collected):
        row = self.model.lanes.get(lane)
        expected = guess or (row.ref if row else ref)
        fresh = RawLane(ref, b"reborn", RawAck(ref.incarnation, 0, b"ack"), collected)
        fenced = row is not None and row.ref == expected
        assert self.stores[at].reincarnate(lane, expected, fresh) == fenced
        if fenced:
            self.model.lanes[lane] = fresh

    @stateful.rule(
        at=OBJECTS, lane=LANES, guess=st.none() | st.tuples(IDENTITIES, SEQS), seq=SEQS, blob=BYTES
    )
    def acknowledge(self, at, lane, guess, seq, blob):
        row = self.model.lanes.get(lane)
        found = (row.ack.incarnation, row.ack.seq) if row else None
        incarnation, expected = guess or found or (Incarnation(bytes(16)), 0)
        ack = RawAck(incarnation, seq, blob)
        moved = found == (incarnation, expected)
        done = self.stores[at].acknowledge(lane, RawAck(incarnation, expected, b"?"), ack)
        assert done == moved
        if moved:
            self.model.lanes[lane] = replace(row, ack=ack)

    @stateful.rule(at=OBJECTS, lane=LANES, guess=st.none() | st.tuples(IDENTITIES, SEQS), seq=SEQS)
    def raise_collected(self, at, lane, guess, seq):
        row = self.model.lanes.get(lane)
        found = (row.ref.incarnation, row.collected) if row else None
        incarnation, expected = guess or found or (Incarnation(bytes(16)), 0)
        raised = found == (incarnation, expected)
        assert self.stores[at].raise_collected(lane, incarnation, expected, seq) == raised
        if raised:
            self.model.lanes[lane] = replace(row, collected=seq)

    @stateful.rule(
        at=OBJECTS, lane=LANES, owner=IDENTITIES, span=st.tuples(SEQS, SEQS), head=IDENTITIES
    )
    def delete_entries(self, at, lane, owner, span, head):
        first, last = span
        row = self.model.lanes.get(lane)
        deleted = row is not None and row.ref.incarnation == head
        assert self.stores[at].delete_entries(lane, owner, first, last, head=head) == deleted
        if deleted:
            for seq in range(first, last + 1):
                self.model.entries.pop((lane, owner, seq), None)

    @stateful.rule(at=OBJECTS, lane=LANES, owner=IDENTITIES, seqs=st.sets(SEQS), entry=BYTES)
    def import_entries(self, at, lane, owner, seqs, entry):
        entries = [(seq, entry) for seq in sorted(seqs)]
        known = lane in self.model.lanes
        assert self.stores[at].import_entries(lane, owner, entries) == known
        if known:
            self.model.entries |= {(lane, owner, seq): entry for seq in seqs}

    @stateful.rule(at=OBJECTS, kind=KINDS, slot=SLOTS)
    def put(self, at, kind, slot):
        """What is stored under a slot is a function of the slot: its attempt is made once."""
        chunks = [repr((kind, slot, ordinal)).encode() for ordinal in range(slot.seq)]
        self.stores[at].put(kind, slot, chunks)
        self.model.private[at][kind, slot] = chunks

    @stateful.rule(at=OBJECTS, kind=KINDS, slots=st.lists(SLOTS, max_size=3))
    def delete(self, at, kind, slots):
        self.stores[at].delete(kind, slots)
        for slot in slots:
            self.model.delete(at, (kind, slot))

    @stateful.rule(at=OBJECTS, lane=LANES, guess=st.none() | SEQS, blob=BYTES)
    def replace_list(self, at, lane, guess, blob):
        current = self.model.lists.get(lane)
        expected = guess if guess is not None else (current[0] if current else None)
        replaced = expected == (current[0] if current else None)
        version = (expected or 0) + 1
        assert self.stores[at].replace_list(lane, expected, version, blob) == replaced
        if replaced:
            self.model.lists[lane] = (version, blob)
            self.model.publish(at)

    @stateful.rule(at=OBJECTS, lane=LANES, ref=REFS, digest=BYTES)
    def note_loser(self, at, lane, ref, digest):
        slot = Slot(lane, ref.incarnation, ref.seq, ref.attempt)
        self.stores[at].note_loser(slot, digest)
        self.model.losers[slot] = digest

    @stateful.rule(at=OBJECTS, lane=LANES, last=SEQS)
    def forget_losers(self, at, lane, last):
        self.stores[at].forget_losers(lane, last)
        for slot in [it for it in self.model.losers if it.lane == lane and it.seq <= last]:
            del self.model.losers[slot]

    @stateful.rule(at=OBJECTS, name=st.sampled_from("ab"), value=st.sampled_from(("", "x", "y")))
    def setting(self, at, name, value):
        assert self.stores[at].find_setting(name) == self.model.settings.get(name)
        assert self.stores[at].setting(name, value) == self.model.settings.setdefault(name, value)

    @stateful.rule(at=OBJECTS)
    def crash(self, at):
        """Close one object and open another: what was held back may be gone, nothing else."""
        self.stores[at].close()
        self.stores[at] = self.open()
        for kind, slot in set(self.model.private[at]) - set(self.model.public):
            # Whatever is left of them is of no interest to anybody; take it away for good.
            self.stores[at].delete(kind, [slot])
            self.model.delete(at, (kind, slot))
        self.model.private[at].clear()

    @stateful.invariant()
    def rows_are_the_models(self):
        for at, store in enumerate(self.stores):
            assert list(store.lanes()) == sorted(self.model.lanes)
            for lane in ("shop/price/0", "shop/price/00"):
                assert store.read(lane) == self.model.lanes.get(lane)
                assert store.read_list(lane) == self.model.lists.get(lane)
                assert dict(store.losers(lane)) == {
                    slot: digest for slot, digest in self.model.losers.items() if slot.lane == lane
                }
                self.entries_are_the_models(store, lane)
                self.chunks_are_the_models(store, at, lane)

    def entries_are_the_models(self, store, lane):
        for number in range(1, 4):
            owner = Incarnation(bytes([number]) * 16)
            assert store.entries(lane, owner, 1, 5) == [
                (seq, self.model.entries[lane, owner, seq])
                for seq in range(1, 6)
                if (lane, owner, seq) in self.model.entries
            ]

    def chunks_are_the_models(self, store, at, lane):
        """Everything public and its own is seen; what is another's may be."""
        must = self.model.public | self.model.private[at]
        may = must | self.model.private[1 - at] | self.model.doubtful
        for kind in Blob:
            listed = list(store.slots(kind, lane))
            found = {slot: store.get(kind, slot) for slot in listed}
            assert len(listed) == len(found)
            wanted = {
                slot: kept for (it, slot), kept in must.items() if (it, slot.lane) == (kind, lane)
            }
            assert {slot: found.get(slot) for slot in wanted} == wanted
            assert all(may[kind, slot] == chunks for slot, chunks in found.items())
            assert set(store.slots(kind, lane, last=3)) == {it for it in found if it.seq <= 3}


class MemoryMachine(StoreMachine):
    def open(self) -> Store:
        return MemoryStore(self.tables)


class SqliteMachine(StoreMachine):
    def open(self) -> Store:
        return SqliteStore(self.directory / "catalog.db")


_SETTINGS = settings(
    deadline=None, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(_SETTINGS, max_examples=40)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(_SETTINGS, max_examples=15)
