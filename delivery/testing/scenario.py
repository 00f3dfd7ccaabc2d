"""What is in a world of the explorer, and how much may go wrong in it.

What it is: frozen descriptions; `delivery.testing.world` makes them happen.
What it must not know: how anything happens.

Invariants:
    A scenario is finite: every fault, zombie, collector and restore is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from delivery.checker import Kind
from delivery.naming import IdFrom
from delivery.protocol.state import Limits
from delivery.records import Output, Record
from delivery.testing.faulty import Fault
from delivery.timing import TimeFrom

#: What time it is in every world. Lanes' own numbers move, the clock decides nothing.
NOW_MS = 600_000_000

#: User code of a world: gets something new every time it is called, and the record.
UserCode = Callable[[bytes, Record], list[Output]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """One lane of a world, and how its processes cut its input into bundles."""

    name: str
    reads: str
    writes: str
    partitions: tuple[int, ...] = (0,)
    #: Per generation of processes: the offsets at which it cuts. The last one serves all later.
    cuts: tuple[tuple[int, ...], ...] = ((),)
    call: UserCode
    id_from: IdFrom
    senders: tuple[str, ...] = ()
    keep_ids: bool = False
    #: How its records say when they were made, if that is trusted, and where it puts aside what comes
    #: too late by it.
    time_from: TimeFrom | None = None
    dead_letters: str | None = None
    #: Its seals keep recipes in place of rows.
    deterministic: bool = False
    #: Per generation: the version of its code. The last one serves all later.
    codes: tuple[str, ...] = ("v1",)
    #: Per generation: its clock; the last one serves all later, none is the world's.
    clocks_ms: tuple[int, ...] = ()
    #: Per generation: where the lane starts if it never was. The last one serves all later.
    starts: tuple[int, ...] = (0,)
    #: Per generation: where the reader itself stands, as after a checkpoint that was lost or put
    #: back; None: at the lane's frontier, wherever that is.
    positions: tuple[int | None, ...] = (None,)

    @property
    def edges(self) -> tuple[str, ...]:
        """The topics it writes, dead letters last."""
        return (self.writes, *filter(None, (self.dead_letters,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is in a world, and how much may go wrong."""

    lanes: tuple[LaneSpec, ...]
    topics: tuple[tuple[str, int], ...]
    #: Input records, in the order of their offsets; None leaves an offset out.
    records: tuple[tuple[str, int, Record | None], ...]
    faults: int = 0
    kinds: frozenset[Fault] = frozenset(Fault)
    #: Lanes on which second processes may start while the first still runs.
    zombies: tuple[str, ...] = ()
    #: How often an instruction may overtake the one before it.
    swaps: int = 0
    #: Whether processes put emissions and acknowledgements aside, as hosts do that wait for company:
    #: each is performed at any later moment, and whatever comes behind it need not wait.
    aside: bool = False
    #: Lanes on which a collector may start, once each time they are named.
    collectors: tuple[str, ...] = ()
    #: Lanes on which a compactor may start, likewise.
    compactors: tuple[str, ...] = ()
    restores: int = 0
    #: Lanes that a restore puts back; None: all of them.
    restored: tuple[str, ...] | None = None
    #: Whether everything is stopped before a restore, as it ought to be.
    orderly: bool = False
    #: Hosts that the generations of processes take turns on; each has id indexes of its own.
    hosts: int = 1
    #: Whether small chunks may ride in the seal, where no collector and no other attempt meets them.
    inline: bool = False
    #: Whether a process may rightly refuse to go on.
    refusals: bool = False
    #: What the promise does not exclude here: findings of these kinds on these lanes.
    pardoned: frozenset[tuple[str, Kind]] = frozenset()
    window_ms: int = 1_000
    #: When lanes send their records, by offset, as Kafka stamps them; the last serves all later.
    sent_at_ms: tuple[int, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def fed(self) -> frozenset[str]:
        """The topics that a lane of this world writes: they grow while it runs."""
        return frozenset(topic for spec in self.lanes for topic in spec.edges)
