"""The compiled library: made where it can be, used only if it is of its source, and never beside memory.

That it answers as arrays do is what the suites of hashes, filters, overlays and runs are run twice for;
here is what only comparing shows.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dedup.arrays import Ids, sorted_unique
from dedup.compiled import kernels, making
from dedup.compiled.kernels import Mapped, load
from dedup.filters.blocked import BlockedBits, patterns
from dedup.formats.segment import Bucket, Origin
from dedup.local.group import EXTERNAL, Group, Held, Lens
from dedup.local.overlay import LINE_MAX, Lines
from dedup.local.stats import Counters
from dedup.model import Incarnation
from dedup.runs import Run, write_run
from dedup.xxh3_vectors import VECTOR_BYTES_MAX, secret
from tests.unit.filters_kit import KEY, random_ids


@pytest.fixture
def compiled():
    """The kernels: where there is a compiler, set-up has made them."""
    found = kernels.kernels()
    assert found is not None, kernels.why_not()
    return found


def put(path: Path, ids: Ids) -> Run:
    """Write a run of one seal."""
    origins = ((Incarnation(b"1" * 16), 1),)
    index = np.zeros(len(ids), dtype=np.int64)
    return write_run(
        path, "lane", Bucket(Origin.EXTERNAL, 7), ids, origins=origins, origin_of=index
    )


@pytest.fixture
def sources(tmp_path, monkeypatch) -> Path:
    """A directory to make a library in."""
    source = tmp_path / making.SOURCE.name
    source.write_bytes(making.SOURCE.read_bytes())
    monkeypatch.setattr(making, "SOURCE", source)
    monkeypatch.setattr(making, "LIBRARY", tmp_path / making.LIBRARY.name)
    return tmp_path


def test_a_library_is_made_and_used(sources, monkeypatch):
    monkeypatch.setenv("CC", os.environ.get("CC", "cc") + " -Wall -Wextra -Werror")
    assert making.make() is None
    assert sorted(path.name for path in sources.iterdir()) == sorted(
        [making.SOURCE.name, making.LIBRARY.name]
    )
    found, why_not = load(making.LIBRARY, making.SOURCE)
    assert (found is not None, why_not) == (True, None)


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("/nowhere/cc", "No such file"),
        ("false", "ended with 1"),
        ("echo", "No such file"),
        ("cc 'of my own", "No closing quotation"),
        ("cc -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", "words are little-endian"),
    ],
)
def test_without_a_compiler_it_says_why(sources, monkeypatch, compiler, why):
    making.LIBRARY.write_bytes(b"an older one")
    monkeypatch.setenv("CC", compiler)
    told = making.make()
    assert told is not None
    assert compiler in told
    assert why in told
    assert [path.name for path in sources.iterdir()] == [making.SOURCE.name]
    assert load(making.LIBRARY, making.SOURCE)[0] is None


def test_what_a_compiler_says_may_be_of_any_encoding(sources, monkeypatch):
    shouting = sources / "shouting"
    shouting.write_text("#!/bin/sh\nprintf '\\377 no' >&2; exit 1\n")
    shouting.chmod(0o755)
    monkeypatch.setenv("CC", str(shouting))
    assert str(making.make()).endswith("ended with 1: \N{REPLACEMENT CHARACTER} no")


def test_sources_that_cannot_be_written_are_no_error(sources, monkeypatch):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "replace", refuse)
    assert os.strerror(errno.EROFS) in str(making.make())
    assert not making.LIBRARY.exists()
    assert sources.exists()


@pytest.mark.usefixtures("sources")
def test_an_older_library_stays_until_the_new_one_is_whole(monkeypatch):
    making.LIBRARY.write_bytes(b"an older one")
    compile_ = subprocess.run

    def look(*arguments: object, **more: object) -> object:
        assert making.LIBRARY.read_bytes() == b"an older one"
        return compile_(*arguments, **more)

    monkeypatch.setattr(subprocess, "run", look)
    assert making.make() is None
    assert making.LIBRARY.read_bytes() != b"an older one"


@pytest.mark.usefixtures("sources")
def test_a_library_of_another_source_is_not_used():
    assert making.make() is None
    making.SOURCE.write_text(making.SOURCE.read_text() + "\n/* changed */\n")
    assert load(making.LIBRARY, making.SOURCE) == (None, "the library was made from another source")


@pytest.mark.usefixtures("sources")
def test_what_is_no_library_is_not_used():
    making.LIBRARY.write_bytes(b"torn")
    found, why_not = load(making.LIBRARY, making.SOURCE)
    assert found is None
    assert str(why_not).startswith("the library cannot be used here")


@pytest.mark.usefixtures("sources")
def test_a_library_that_lacks_a_function_is_not_used():
    making.SOURCE.write_text("unsigned long source_hash(void) { return SOURCE_HASH; }\n")
    assert making.make() is None
    found, why_not = load(making.LIBRARY, making.SOURCE)
    assert found is None
    assert "hash_rows" in str(why_not)


@pytest.mark.parametrize("says", ["no", "0", "off", "False"])
def test_it_can_be_switched_off(says):
    code = "from dedup.compiled.kernels import kernels, why_not; print(kernels(), why_not())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DELIVERY_COMPILED": says},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "None DELIVERY_COMPILED says so"


def test_without_assertions_there_is_nothing_to_keep_it_inside_its_memory():
    code = "from dedup.compiled.kernels import kernels, why_not; print(kernels(), why_not())"
    command = [sys.executable, "-O", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("None python -O")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("alike", [False, True], ids=["random", "chosen"])
@pytest.mark.usefixtures("compiled")
def test_filters_get_the_very_same_bits(key, alike):
    ids = random_ids(5_000, seed=1)
    if alike:
        ids[:, 0] %= 7
        ids[:, 1] >>= np.uint64(60)
    memories = bytearray(64 * 400), bytearray(64 * 400)
    one, other = (BlockedBits(memoryview(memory), key) for memory in memories)
    one.add(ids)
    strangers = random_ids(20_000, seed=2)
    told = one.maybe(strangers)
    with kernels.without():
        other.add(ids)
        assert memories[0] == memories[1]
        assert (other.maybe(strangers) == told).all()


@pytest.mark.usefixtures("compiled")
def test_of_a_queue_that_is_too_long_it_says_so_as_arrays_do():
    lines = Lines()
    ids = random_ids(3 * LINE_MAX, seed=3)
    ids[:, 0] >>= np.uint64(40)
    lines.add(ids)
    known, unsure = lines.ask(ids)
    with kernels.without():
        told = lines.ask(ids)
    assert (known == told[0]).all()
    assert (unsure == told[1]).all()
    assert 0 < len(unsure) < len(ids)


def test_runs_are_asked_in_the_order_in_which_arrays_ask_them(tmp_path):
    parts = [sorted_unique(random_ids(500, seed=seed)) for seed in range(4)]
    questions = [parts[at][first : first + 90] for at in (2, 2, 0, 3, 1, 1) for first in (0, 50)]
    told = []
    for way in (nullcontext, kernels.without):
        runs = [put(tmp_path / str(at), ids) for at, ids in enumerate(parts)]
        group = Group(EXTERNAL, 1, None)
        group.runs += [Held(run, tmp_path, 1) for run in runs]
        counters = Counters()
        with way():
            assert all(group.ask(ids, Lens(), counters).all() for ids in questions)
        told.append((counters, [held.hits for held in group.runs]))
    assert told[0] == told[1]


def test_a_run_opens_where_its_words_are_not_the_machine_s(tmp_path, monkeypatch):
    """As on a big-endian machine, which has arrays only."""
    ids = sorted_unique(random_ids(1_000, seed=6))
    read = Run._array

    def swapped(run: Run, dtype: object, at: int, size: int) -> object:
        found = read(run, dtype, at, size)
        return found if found.dtype.names else found.astype(found.dtype.newbyteorder())

    monkeypatch.setattr(Run, "_array", swapped)
    with kernels.without():
        assert (put(tmp_path / "run", ids).find(ids) == np.arange(len(ids))).all()


def test_whatever_stands_in_a_run_it_stays_inside(compiled):
    """A torn run is thrown away before; should one ever be asked, it tells nonsense and no more."""
    generator = np.random.default_rng(4)
    for kind, top in ((np.uint32, 2**32), (np.uint64, 2**64)):
        for count in (0, 1, 50):
            ids = random_ids(count, seed=count)
            prefixes = generator.integers(0, top, 2**4 + 1, dtype=kind)
            prefixes[::3] = generator.integers(0, count + 1, len(prefixes[::3]))
            run, asked = Mapped(ids, prefixes), random_ids(1_000, seed=5)
            rows = compiled.run_find(run, asked)
            known, _, had = compiled.runs_hold([run, run], asked)
            assert ((rows >= -1) & (rows < count)).all()
            assert (known == (rows >= 0)).all()
            assert had == [int(known.sum()), 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda k: k.filter_add(np.zeros(8, np.uint32), np.zeros(1, np.uint64), None, random_ids(1)),
        lambda k: k.filter_maybe(
            np.zeros(16, np.uint64)[::2], random_ids(1)[0], None, random_ids(1)
        ),
        lambda k: k.hash_rows(np.zeros((4, 4), np.uint16), secret()),
        lambda k: k.hash_rows(np.zeros((4, 8), np.uint8)[:, ::2], secret()),
        lambda k: k.hash_spans(np.zeros(4, np.uint8), np.array([0, 5]), VECTOR_BYTES_MAX, secret()),
        lambda k: k.hash_spans(np.zeros(4, np.uint8), np.array([3, 1]), VECTOR_BYTES_MAX, secret()),
        lambda k: k.hash_spans(
            np.zeros(4, np.uint8), np.array([-1, 1]), VECTOR_BYTES_MAX, secret()
        ),
        lambda k: k.lines_add(np.zeros(3, np.int32), np.zeros(1, np.int32), random_ids(1), 0),
        lambda k: k.lines_add(np.zeros(4, np.int32), np.zeros(2, np.int32), random_ids(1)[0], 0),
        lambda k: k.lines_ask(
            np.zeros(4, np.int32), np.zeros(2, np.int32), random_ids(1), 1, random_ids(1)
        ),
        lambda k: k.filter_maybe(np.zeros(8, np.uint64), patterns(), None, random_ids(4)[:, :1]),
        lambda k: k.filter_maybe(np.zeros(8, np.uint64), patterns(), None, random_ids(4)[0]),
        lambda k: k.filter_maybe(np.zeros(8, np.uint64), patterns()[:-1], None, random_ids(1)),
        lambda k: k.filter_maybe(np.zeros(8, np.uint64), patterns(), patterns()[:4], random_ids(1)),
        lambda k: k.filter_maybe(np.zeros(12, np.uint64), patterns(), None, random_ids(1)),
        lambda k: k.filter_maybe(np.zeros(0, np.uint64), patterns(), None, random_ids(1)),
        lambda k: k.filter_maybe(
            np.frombuffer(bytes(65), np.uint64, 8, 1), patterns(), None, random_ids(1)
        ),
        lambda k: k.hash_rows(np.zeros((4, VECTOR_BYTES_MAX + 1), np.uint8), secret()),
        lambda k: k.hash_rows(np.zeros((4, 4), np.uint8), secret()[:-1]),
        lambda k: k.hash_spans(np.zeros(4, np.uint8), np.array([0, 4]), 400, secret()),
        lambda _: Mapped(random_ids(4), np.zeros(1, np.uint32)),
        lambda _: Mapped(random_ids(4)[:, :1].copy(), np.zeros(5, np.uint32)),
        lambda _: Mapped(random_ids(4), np.zeros(4, np.uint32)),
        lambda _: Mapped(random_ids(4), np.zeros(5, np.uint16)),
    ],
)
def test_memory_of_another_shape_is_refused(compiled, wrong):
    with pytest.raises(AssertionError):
        wrong(compiled)


def test_a_reader_s_filter_is_not_written(compiled):
    bits = np.zeros(8, np.uint64)
    bits.flags.writeable = False
    with pytest.raises(AssertionError, match="a reader changes nothing"):
        compiled.filter_add(bits, np.zeros(4096, np.uint64), None, random_ids(1))
