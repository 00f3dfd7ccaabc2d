"""kill -9 of a filter's writer, at every step and at any moment.

What it is: writers in processes of their own (this file, run), killed by themselves at a named
step or by the test at a random moment, and what is found afterwards.
What it must not know: how a lane rebuilds.

Allowed after a kill: no file, the file from before, a filter that is behind. Never allowed: a
filter that denies an id its tag promises, an exception, a lock or a leftover that stops the next
writer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.filters import ENGINES, Filter, create_filter, files, open_filter
from dedup.filters.header import Header, encode_header, slot_of
from dedup.formats.segment import Bucket, Origin
from dedup.model import HeadRef
from tests.crash.conftest import TakeDown

WHOSE: dict[str, Any] = {"lane": "shop/price/0", "bucket": Bucket(Origin.INTERNAL, 2_970_000)}
WAIT_SECONDS = 60
#: Ids a tag moves past, and the filter's size, by engine: a batch takes a millisecond or so.
BATCH_IDS = {"blocked": 20_000, "pybloom-live": 400}
CAPACITY = {"blocked": 500_000, "pybloom-live": 10_000}
#: What no writer gets to before it is killed.
ENDLESS = 1_000_000
LINES_MAX = 12

engines = pytest.mark.parametrize("engine", sorted(ENGINES))


def batch(engine: str, seq: int) -> Ids:
    """The ids that the tag of `seq` promises on top of those before it."""
    return np.random.default_rng(seq).integers(0, 2**64, (BATCH_IDS[engine], 2), dtype=np.uint64)


def tag(seq: int) -> HeadRef:
    # No byte in common with another one at the end: what is torn there differs from what was.
    return HeadRef(b"incarnation-----", seq, bytes([seq % 256]) * 16)


def reopened(path: Path, engine: str, *, writable: bool = False) -> Filter | None:
    return open_filter(path, engine=engine, writable=writable, **WHOSE)


def denied(one: Filter, engine: str, checked: range) -> list[int]:
    """The seqs of which the filter denies an id."""
    return [seq for seq in checked if not one.maybe(batch(engine, seq)).all()]


# Steps --------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_around(name: str, *, after: bool) -> None:
    """Let a function of the module die before or after it does its work."""
    inner = getattr(files, name)

    def dying(*arguments: Any) -> Any:
        if after:
            inner(*arguments)
        die()

    setattr(files, name, dying)


def dying_in_the_header(share: float) -> None:
    """Let the process die when it has written part of a header; 1 is all of it."""

    def dying(page: files._Page, header: Header) -> None:
        encoded = encode_header(header)
        written = encoded[: int(share * len(encoded))]
        at = slot_of(header)
        page.mapping[at : at + len(written)] = written
        die()

    files._Page.write = dying  # type: ignore[method-assign]


TORN = {f"header {share}": share for share in (0, 0.1, 0.5, 0.95, 1)}
STEPS: dict[str, Callable[[], None]] = {
    "before reserving": lambda: dying_around("_reserve", after=False),
    "after reserving": lambda: dying_around("_reserve", after=True),
    "before renaming": lambda: dying_around("_put_in_place", after=False),
    "after renaming": lambda: dying_around("_put_in_place", after=True),
    **{name: (lambda share=share: dying_in_the_header(share)) for name, share in TORN.items()},
}


def create_and_die(path: Path, engine: str, step: str) -> None:
    STEPS[step]()
    create_filter(path, CAPACITY[engine], engine=engine, **WHOSE)


def tag_and_die(path: Path, engine: str, step: str) -> None:
    """Add the ids of seq 3 to a filter that is exact for 2, and die while saying so."""
    one = reopened(path, engine, writable=True)
    assert one is not None, "the filter is there"
    one.add(batch(engine, 3))
    STEPS[step]()
    one.set_tag(tag(3))


def write_on(path: Path, engine: str, _: str) -> None:
    """Add batch after batch, and say each once its tag is set."""
    one = reopened(path, engine, writable=True)
    if one is None:
        one = create_filter(path, CAPACITY[engine], engine=engine, **WHOSE)
    start = 0 if one.tag is None else one.tag.seq + 1
    for seq in range(start, ENDLESS):
        one.add(batch(engine, seq))
        one.set_tag(tag(seq))
        os.write(1, f"{seq}\n".encode())


def command(does: Callable[..., None], path: Path, engine: str, step: str = "") -> list[str]:
    return [sys.executable, __file__, does.__name__, str(path), engine, step]


def killed(does: Callable[..., None], path: Path, engine: str, step: str) -> None:
    """Run a process that dies at a step."""
    ended = subprocess.run(
        command(does, path, engine, step), check=False, timeout=WAIT_SECONDS, capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def usable(path: Path, engine: str) -> None:
    """The next writer makes a filter, and nothing else is left."""
    one = create_filter(path, CAPACITY[engine], engine=engine, **WHOSE)
    one.add(batch(engine, 9))
    one.set_tag(tag(9))
    one.close()
    found = reopened(path, engine)
    assert found is not None
    assert found.tag == tag(9)
    assert denied(found, engine, range(9, 10)) == []
    found.close()
    assert list(path.parent.iterdir()) == [path]


def put(path: Path, engine: str) -> None:
    """Leave a filter that is exact for 2."""
    one = create_filter(path, CAPACITY[engine], engine=engine, **WHOSE)
    for seq in range(3):
        one.add(batch(engine, seq))
        one.set_tag(tag(seq))
    one.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_creator_killed_at_a_step_leaves_nothing_or_a_filter_without_a_tag(tmp_path, step):
    path = tmp_path / "filter"
    killed(create_and_die, path, "blocked", step)
    found = reopened(path, "blocked")
    assert (found is not None) == (step == "after renaming")
    if found is not None:
        assert found.tag is None
        found.close()
    usable(path, "blocked")


@pytest.mark.parametrize("step", STEPS)
def test_a_rebuild_killed_at_a_step_leaves_the_old_filter_or_the_new(tmp_path, step):
    path = tmp_path / "filter"
    put(path, "blocked")
    killed(create_and_die, path, "blocked", step)
    found = reopened(path, "blocked")
    assert found is not None
    if step == "after renaming":
        assert found.tag is None
    else:
        assert found.tag == tag(2)
        assert denied(found, "blocked", range(3)) == []
    found.close()
    usable(path, "blocked")


@engines
@pytest.mark.parametrize("step", TORN)
def test_a_writer_killed_while_it_moves_the_tag_leaves_the_old_tag_or_the_new(
    tmp_path, engine, step
):
    path = tmp_path / "filter"
    put(path, engine)
    killed(tag_and_die, path, engine, step)
    found = reopened(path, engine)
    assert found is not None
    assert found.tag == tag(3 if TORN[step] == 1 else 2)
    assert denied(found, engine, range(4)) == [], "bits before tag: those of 3 are there as well"
    found.close()
    # The next writer goes on, over the torn slot.
    writer = reopened(path, engine, writable=True)
    for seq in (3, 4, 5):
        writer.add(batch(engine, seq))
        writer.set_tag(tag(seq))
        again = reopened(path, engine)
        assert again.tag == tag(seq)
        again.close()
    writer.close()
    usable(path, engine)


# Any moment ---------------------------------------------------------------------------------------


@contextmanager
def writer(path: Path, engine: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command(write_on, path, engine), stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)
        assert process.stdout is not None, "it was asked for"
        process.stdout.close()


def kill_rounds(path: Path, engine: str, rounds: int, rng: random.Random) -> None:
    """Watch a writer as a reader in another process, kill it, check, let the next one go on."""
    last = -1
    for _ in range(rounds):
        with writer(path, engine) as process:
            # Its first line comes when there is a file; then this process reads beside it.
            said = int(process.stdout.readline())
            assert said == last + 1, "it went on behind the last tag"
            reader = reopened(path, engine)
            assert reader is not None
            for _ in range(rng.randint(0, LINES_MAX)):
                said = int(process.stdout.readline())
                promised = reader.tag.seq
                assert promised >= said, "the tag was set before it was said"
                assert denied(reader, engine, range(max(0, promised - 3), promised + 1)) == []
            process.kill()
            process.wait(WAIT_SECONDS)
            assert reader.tag.seq >= said, "what was said is kept"
            reader.close()
        found = reopened(path, engine)
        assert found is not None
        last = found.tag.seq
        assert last >= said
        assert denied(found, engine, range(last + 1)) == []
        found.close()


@engines
def test_kill_9_at_any_moment_loses_no_id_that_a_tag_promised(tmp_path, engine):
    kill_rounds(tmp_path / "filter", engine, 3, random.Random())


@pytest.mark.slow
@engines
def test_kill_9_at_any_moment_again_and_again(tmp_path, engine, take_down: TakeDown):
    rng = random.Random()
    for number in range(12):
        kill_rounds(tmp_path / f"filter {number}", engine, 5, rng)
    take_down(kind="killed", outcome="passed")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
