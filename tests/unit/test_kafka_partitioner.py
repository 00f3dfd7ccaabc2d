"""Java and this library send a key to the same partition, one by one and by the thousand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as independent

from delivery.kafka.partitioner import (
    NULL_KEY_RUN,
    murmur2,
    murmur2_many,
    partition_of,
    partitions_of,
)

#: The vectors of Kafka's own UtilsTest.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

#: Short keys meet often at one length, so both ways through the vectorised code are taken.
KEYS = st.lists(
    st.one_of(st.binary(max_size=5), st.binary(min_size=6, max_size=9), st.binary(max_size=90)),
    max_size=120,
)


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_the_hash_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % (1 << 32)
    assert murmur2_many([key] * 40).tolist() == [expected % (1 << 32)] * 40


@given(KEYS)
def test_one_by_one_many_at_once_and_another_implementation_agree(keys: list[bytes]) -> None:
    expected = [independent(key) % (1 << 32) for key in keys]
    assert [murmur2(key) for key in keys] == expected
    assert murmur2_many(keys).tolist() == expected


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=12),
            st.integers(0, 1000),
            st.integers(0, 1 << 62),
        ),
        max_size=80,
    ),
    st.integers(1, 1000),
)
def test_many_records_go_where_each_of_them_goes(
    rows: list[tuple[bytes | None, int, int]], count: int
) -> None:
    placed = partitions_of(
        [key for key, _, _ in rows], [p for _, p, _ in rows], [o for _, _, o in rows], count
    )
    assert placed.tolist() == [partition_of(key, (p, o), count) for key, p, o in rows]
    assert all(0 <= partition < count for partition in placed.tolist())


def test_a_negative_hash_goes_where_java_sends_it() -> None:
    """Java clears the sign bit; taking the absolute value would send it elsewhere."""
    assert partition_of(b"21", (0, 0), 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_records_without_a_key_go_round_in_runs() -> None:
    offsets = range(NULL_KEY_RUN * 8)
    placed = partitions_of([None] * len(offsets), [1] * len(offsets), offsets, 4).tolist()
    assert placed[:NULL_KEY_RUN] == [1] * NULL_KEY_RUN
    assert placed[NULL_KEY_RUN] == 2
    assert [placed.count(partition) for partition in range(4)] == [NULL_KEY_RUN * 2] * 4
