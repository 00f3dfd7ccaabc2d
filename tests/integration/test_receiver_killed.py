"""A receiver killed at every step of its own: each record has its effect once all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from delivery.points import SEAL_REPLY_LOST
from delivery.receiver.points import (
    CATALOG_TOLD,
    EFFECT_WRITTEN,
    IDENTITY_MINTED,
    LANES_COPIED,
    POINTS,
)
from delivery.services.kafka import Kafka
from tests.conformance.cassandra_kit import cassandra_url
from tests.integration.receiver_kit import (
    PROCESS_SECONDS_MAX,
    World,
    command,
    consume,
    once_each,
)

ROOT = Path(__file__).resolve().parents[2]
#: Each third id is sent twice.
IDS = [one for number in range(240) for one in ([number, number - number % 3][:: 1 + number % 2])]
#: Where a new group decides where its lanes are kept, passed once for each lane or group.
DECIDING = (IDENTITY_MINTED, CATALOG_TOLD, LANES_COPIED)


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def world(
    request: pytest.FixtureRequest, kafka: Kafka, unique: Callable[[str], str], tmp_path: Path
) -> World:
    """A topic, and a catalog in a file or on a node of Cassandra's."""
    catalog = ""
    if request.param == "cassandra":
        catalog = cassandra_url(request.getfixturevalue("cassandra"), unique("killed"))
    world = World(kafka.bootstrap, unique("killed"), tmp_path, catalog).make()
    world.send(IDS)
    return world


def run(world: World, way: str, point: str = "", time: int = 1) -> int:
    """Consume to the end in another process, or to its death; return how it ended."""
    ended = subprocess.run(
        command(world, way, "bounded", point, str(time)),
        cwd=ROOT,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
        stdout=sys.stderr,
    )
    return ended.returncode


@pytest.mark.parametrize("point", DECIDING)
def test_killed_while_a_new_group_decides_where_its_lanes_are(world: World, point: str) -> None:
    assert run(world, "once", point) == -signal.SIGKILL
    assert not world.effects()
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(IDS)
    world.prove()


def test_killed_at_every_step_of_a_bundle(world: World) -> None:
    assert run(world, "once", CATALOG_TOLD, 2) == -signal.SIGKILL
    for time, point in enumerate([p for p in POINTS if p not in DECIDING]):
        assert run(world, "once", point, 1 + time % 2) == -signal.SIGKILL
        assert set(world.effects().values()) <= {1}
    assert run(world, "once") == 0
    assert world.effects() == once_each(IDS)
    assert consume(world, world.receiver(bounded=True)) == 0
    world.prove()


def test_an_effect_before_its_seal_may_happen_twice_and_none_is_lost(world: World) -> None:
    """The promise of `done`: at least once, and once where nobody dies in between."""
    assert run(world, "done", EFFECT_WRITTEN, 2) == -signal.SIGKILL
    assert run(world, "done", SEAL_REPLY_LOST, 2) == -signal.SIGKILL
    assert run(world, "done") == 0
    effects = world.effects()
    assert set(effects) == set(once_each(IDS))
    # One death between an effect and its seal doubled one bundle; the other came after a seal.
    doubled = [name for name, times in effects.items() if times > 1]
    assert 0 < len(doubled) <= 40
    assert max(effects.values()) == 2
