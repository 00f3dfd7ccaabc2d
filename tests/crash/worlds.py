"""The worlds that are explored: each the smallest in which its rules can be broken.

Lanes are explored one by one, and in pairs only where they interact. A world's number of states is
pinned beside it, so that nobody shrinks it unseen; the deep ones belong to `make crash`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delivery.checker import Kind
from delivery.protocol.state import Limits
from delivery.testing.faulty import Fault
from delivery.testing.scenario import Scenario
from tests.crash.parts import ALONE, RECEIVER, SENDER, steady, unsteady, written
from tests.crash.worlds_named import (
    COPIED,
    REKEYED,
    REKEYED_AHEAD,
    REKEYED_LAG,
    TIMED,
    TIMED_AHEAD,
    TIMED_COLLECTED,
    WINDOW,
)

#: One lane, two output partitions, repeats and a hole; whatever may fail fails once, and one
#: instruction overtakes another: two bundles are under way at once.
SOLO = Scenario(
    lanes=(SENDER,),
    topics=(("in", 1), ("mid", 2)),
    records=written("ad.ae"),
    faults=1,
    swaps=1,
)

#: Nothing is stored of what a lane makes: whoever has to send it makes it again, without the repeats,
#: whoever sealed it.
REMADE = replace(
    SOLO, lanes=(replace(SENDER, call=steady, deterministic=True, cuts=((2,), (1,), (3,))),)
)

#: The same by two processes at once: who loses a race may have to make what the other one sealed.
REMADE_ZOMBIE = replace(
    REMADE,
    lanes=(replace(SENDER, call=steady, deterministic=True, cuts=((1,), (2,))),),
    records=written("ada"),
    faults=0,
    swaps=0,
    zombies=("w/s/S",),
    limits=ALONE,
)

#: Code that was declared deterministic and is not: the second process makes something else of what
#: the first has sealed, and stops; a third one makes the same again.
UNSTEADY = replace(
    REMADE,
    lanes=(replace(SENDER, call=unsteady, deterministic=True, cuts=((1,),)),),
    records=written("ab"),
    swaps=0,
    refusals=True,
    limits=ALONE,
)

#: The second process runs changed code, and says so: it is never asked for what is owed by the first.
CHANGED = replace(
    UNSTEADY,
    lanes=(replace(UNSTEADY.lanes[0], codes=("v1", "v2", "v1")),),
    refusals=False,
)

#: The same lane run by two processes at once that cut it into other bundles.
ZOMBIE = Scenario(
    lanes=(replace(SENDER, cuts=((1,), (2,))),),
    topics=(("in", 1), ("mid", 1)),
    records=written("aa"),
    faults=1,
    zombies=("w/s/S",),
    limits=ALONE,
)

#: The same on one host: both move the same index, and what one of them sealed itself is handed to it
#: without being read back.
SHARED = replace(ZOMBIE, lanes=(replace(SENDER, cuts=((1, 2),)),), records=written("aba"), faults=0)

#: A stage lane: one frontier over two source partitions.
STAGE = Scenario(
    lanes=(replace(SENDER, partitions=(0, 1), cuts=((1,), (2,))),),
    topics=(("in", 2), ("mid", 1)),
    records=written("ab") + written("bc", partition=1),
    faults=1,
    limits=ALONE,
)

#: A sender and its receiver: read seqs, remnants, copies behind the delivered offset.
CHAIN = Scenario(
    lanes=(replace(SENDER, cuts=((1,),)), RECEIVER),
    topics=(("in", 1), ("mid", 1), ("out", 1)),
    records=written("ab"),
    faults=1,
    limits=ALONE,
)

#: The sender is run twice at once: copies of everything, in any order, while the receiver reads.
CHAIN_ZOMBIE = replace(CHAIN, faults=0, zombies=("w/s/S",), records=written("a"))

#: Two senders write one topic: a bucket of the receiver holds ids of both.
TWO_SENDERS = Scenario(
    lanes=(
        replace(SENDER, name="w/s/A", cuts=((),)),
        replace(SENDER, name="w/s/B", reads="in2", cuts=((),)),
        replace(RECEIVER, senders=("w/s/A", "w/s/B")),
    ),
    topics=(("in", 1), ("in2", 1), ("mid", 1), ("out", 1)),
    records=written("a") + written("b", topic="in2"),
    faults=1,
    kinds=frozenset({Fault.CRASH_AFTER}),
    limits=ALONE,
)

#: A collector at any moment beside a lane that two processes run: one of them may sleep through it.
COLLECTED = Scenario(
    lanes=(replace(SENDER, cuts=((1,),)),),
    topics=(("in", 1), ("mid", 1)),
    records=written("a"),
    zombies=("w/s/S",),
    collectors=("w/s/S",),
    limits=ALONE,
)

#: One process, but each of the collector's own calls may fail; an id comes again afterwards.
COLLECTOR_FAILS = replace(COLLECTED, zombies=(), faults=1, records=written("aa"))

#: Two collectors and two compactors, each at any moment: leftovers meet those who are about to
#: delete them, and those who make them again.
COMPACTED = replace(
    COLLECTED,
    zombies=(),
    records=written("a"),
    collectors=("w/s/S", "w/s/S"),
    compactors=("w/s/S", "w/s/S"),
)

#: The catalog is put back from a backup while the process of before goes on; an id comes again.
RESTORED_BESIDE = Scenario(
    lanes=(replace(SENDER, cuts=((), (1,))),),
    topics=(("in", 1), ("mid", 1)),
    records=written("aba"),
    restores=1,
    limits=ALONE,
)

#: A sender and its receiver are put back together, in good order.
RESTORED = Scenario(
    lanes=(replace(SENDER, cuts=((),)), RECEIVER),
    topics=(("in", 1), ("mid", 1), ("out", 1)),
    records=written("a"),
    restores=1,
    orderly=True,
    limits=ALONE,
)

#: One lane put back, with a host whose index remembers the history that was given up, and a crash.
RESTORED_HOSTS = Scenario(
    lanes=(replace(SENDER, cuts=((1, 3), (1, 2), ())),),
    topics=(("in", 1), ("mid", 1)),
    records=written("abcd"),
    restores=1,
    orderly=True,
    faults=1,
    kinds=frozenset({Fault.CRASH_BEFORE}),
    hosts=2,
    limits=ALONE,
)

#: Only the sender is put back; its receiver keeps its lane elsewhere, with a database of its own.
#: The promise ends here: second versions are possible. Losses are not.
RESTORED_APART = replace(
    RESTORED,
    lanes=(replace(SENDER, cuts=((1,), ())), RECEIVER),
    records=written("ab"),
    restored=("w/s/S",),
    pardoned=frozenset(
        ("w/r/R", kind)
        for kind in (
            *(Kind.ABANDONED, Kind.COUNTS, Kind.PARENT, Kind.DECIDED_TWICE),
            *(Kind.NOT_ACCOUNTED, Kind.DROPPED_WHY),
        )
    ),
)

#: A receiver whose one lane reads two partitions: a seq is read when both are past it.
WIDE = Scenario(
    lanes=(
        replace(SENDER, cuts=((3,),)),
        replace(RECEIVER, partitions=(0, 1), cuts=((1,),)),
    ),
    topics=(("in", 1), ("mid", 2), ("out", 1)),
    records=written("dab"),
    limits=ALONE,
)

#: Two receivers of one sender: what one has read says nothing about the other.
FAN_OUT = Scenario(
    lanes=(
        replace(SENDER, cuts=((2,),)),
        replace(RECEIVER, name="w/r/Q"),
        replace(RECEIVER, partitions=(1,)),
    ),
    topics=(("in", 1), ("mid", 2), ("out", 2)),
    records=written("ad"),
    limits=ALONE,
)

#: Spark's checkpoint was lost, or put back from an older copy, or is ahead of the lane.
CHECKPOINT = Scenario(
    lanes=(replace(SENDER, cuts=((1,), (2,)), positions=(0, 2, 0, None)),),
    topics=(("in", 1), ("mid", 1)),
    records=written("abc"),
    faults=1,
    refusals=True,
    limits=ALONE,
)

#: "From the end", said by two processes at different moments, with a crash between them.
LATEST = Scenario(
    lanes=(replace(SENDER, starts=(0, 2)),),
    topics=(("in", 1), ("mid", 1)),
    records=written("abc"),
    faults=1,
    limits=ALONE,
)

_ASIDE = Limits(pending_max=2)
#: Two bundles under way at once, on a host that puts emissions and acknowledgements aside: whatever
#: comes behind overtakes them.
ASIDE = replace(SOLO, swaps=0, aside=True, limits=_ASIDE)
#: The same beside a second process: an emission waits while its lane is lost to another process, and
#: that one emits and acknowledges the same.
ASIDE_ZOMBIE = replace(ZOMBIE, faults=0, aside=True, limits=_ASIDE)
#: The same while a receiver reads what comes.
ASIDE_CHAIN = replace(CHAIN, faults=0, aside=True, limits=_ASIDE)
#: The same beside a collector, who takes what somebody else acknowledged.
ASIDE_COLLECTED = replace(COLLECTED, aside=True, limits=_ASIDE)
#: The same while the catalog is put back from a backup.
ASIDE_BESIDE = replace(RESTORED_BESIDE, aside=True, limits=_ASIDE)

#: Small chunks ride in the seal, as they do where users run it, and collectors fail.
INLINE_FAILS = replace(COLLECTOR_FAILS, inline=True)
#: Small chunks ride in the seal while the catalog is put back.
INLINE_BESIDE = replace(RESTORED_BESIDE, inline=True)

#: Two processes at once on one frontier over two partitions.
STAGE_ZOMBIE = replace(STAGE, faults=0, zombies=("w/s/S",))
#: Two processes at once, each on another checkpoint that was lost or put back.
CHECKPOINT_ZOMBIE = replace(CHECKPOINT, faults=0, zombies=("w/s/S",))
#: Two processes at once say "from the end", each at another moment.
LATEST_ZOMBIE = replace(LATEST, faults=0, zombies=("w/s/S",))

#: What `make crash` adds: two faults beside a zombie, a collector and a sleeper that wakes after it.
DEEP_ZOMBIE = replace(ZOMBIE, faults=2)
DEEP_OVERLAP = replace(ZOMBIE, swaps=1, limits=Limits())
DEEP_SOLO = replace(SOLO, faults=2, swaps=2)
DEEP_CHAIN = replace(CHAIN, zombies=("w/s/S",), records=written("a"), faults=1)
DEEP_RECEIVERS = replace(CHAIN_ZOMBIE, zombies=("w/r/R",), faults=1)
DEEP_COLLECTED = replace(COLLECTED, records=written("aa"))
#: Everything at once: two faults of any kind, a second process that may sleep for as long as it likes and wake up
#: behind the collector, and the collector at any moment.
DEEP_SLEEPER = replace(COLLECTED, faults=2)
DEEP_COLLECTOR = replace(COLLECTOR_FAILS, faults=2, collectors=("w/s/S", "w/s/S"))
DEEP_COMPACTED = replace(COMPACTED, records=written("aa"))
DEEP_RESTORED = replace(RESTORED, faults=1)
DEEP_BESIDE = replace(RESTORED_BESIDE, faults=1)
DEEP_ASIDE = replace(ASIDE, faults=2)
#: A sender whose host puts emissions aside is run twice at once, while its receiver reads.
DEEP_ASIDE_CHAIN = replace(CHAIN_ZOMBIE, aside=True, limits=_ASIDE)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A world, the number of its states, and whether only `make crash` explores it."""

    scenario: Scenario
    states: int
    deep: bool = False


WORLDS = {
    "solo": Pinned(SOLO, 800),
    "remade": Pinned(REMADE, 856),
    "remade-zombie": Pinned(REMADE_ZOMBIE, 7_552),
    "unsteady": Pinned(UNSTEADY, 284),
    "changed": Pinned(CHANGED, 284),
    "zombie": Pinned(ZOMBIE, 44_631),
    "shared": Pinned(SHARED, 20_732),
    "stage": Pinned(STAGE, 298),
    "chain": Pinned(CHAIN, 11_917),
    "chain-zombie": Pinned(CHAIN_ZOMBIE, 11_496),
    "two-senders": Pinned(TWO_SENDERS, 32_356, deep=True),
    "wide": Pinned(WIDE, 95),
    "fan-out": Pinned(FAN_OUT, 395),
    "copied": Pinned(COPIED, 104),
    "rekeyed": Pinned(REKEYED, 1_494),
    "rekeyed-lag": Pinned(REKEYED_LAG, 16_439),
    "rekeyed-ahead": Pinned(REKEYED_AHEAD, 16_199, deep=True),
    "window": Pinned(WINDOW, 721),
    "timed": Pinned(TIMED, 1_076),
    "timed-ahead": Pinned(TIMED_AHEAD, 452),
    "timed-collected": Pinned(TIMED_COLLECTED, 3_170),
    "checkpoint": Pinned(CHECKPOINT, 324),
    "latest": Pinned(LATEST, 302),
    "collected": Pinned(COLLECTED, 8_398),
    "collector-fails": Pinned(COLLECTOR_FAILS, 3_812),
    "compacted": Pinned(COMPACTED, 1_750),
    "restored": Pinned(RESTORED, 1_035),
    "restored-beside": Pinned(RESTORED_BESIDE, 629),
    "restored-hosts": Pinned(RESTORED_HOSTS, 4_101),
    "restored-apart": Pinned(RESTORED_APART, 46_546, deep=True),
    "aside": Pinned(ASIDE, 632),
    "aside-zombie": Pinned(ASIDE_ZOMBIE, 7_971),
    "aside-chain": Pinned(ASIDE_CHAIN, 638),
    "aside-collected": Pinned(ASIDE_COLLECTED, 8_560),
    "aside-beside": Pinned(ASIDE_BESIDE, 3_194),
    "inline-fails": Pinned(INLINE_FAILS, 2_187),
    "inline-beside": Pinned(INLINE_BESIDE, 593),
    "stage-zombie": Pinned(STAGE_ZOMBIE, 1_761),
    "checkpoint-zombie": Pinned(CHECKPOINT_ZOMBIE, 158),
    "latest-zombie": Pinned(LATEST_ZOMBIE, 3_617),
    "deep-solo": Pinned(DEEP_SOLO, 28_326, deep=True),
    "deep-overlap": Pinned(DEEP_OVERLAP, 137_088, deep=True),
    "deep-zombie": Pinned(DEEP_ZOMBIE, 620_003, deep=True),
    "deep-chain": Pinned(DEEP_CHAIN, 507_252, deep=True),
    "deep-receivers": Pinned(DEEP_RECEIVERS, 148_833, deep=True),
    "deep-collected": Pinned(DEEP_COLLECTED, 217_722, deep=True),
    "deep-sleeper": Pinned(DEEP_SLEEPER, 2_551_547, deep=True),
    "deep-collector": Pinned(DEEP_COLLECTOR, 931_467, deep=True),
    "deep-compacted": Pinned(DEEP_COMPACTED, 31_608, deep=True),
    "deep-restored": Pinned(DEEP_RESTORED, 50_189, deep=True),
    "deep-beside": Pinned(DEEP_BESIDE, 22_576, deep=True),
    "deep-aside": Pinned(DEEP_ASIDE, 16_095, deep=True),
    "deep-aside-chain": Pinned(DEEP_ASIDE_CHAIN, 25_936, deep=True),
}
