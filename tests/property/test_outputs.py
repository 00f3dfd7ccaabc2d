"""Stored outputs and record headers: what was stored is what is emitted, by whomever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.errors import Corrupt
from dedup.model import HeadRef
from delivery.batch import Row, Rows
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.outputs import (
    Origin,
    content_digest,
    decode_outputs,
    emissions,
    encode_outputs,
)
from delivery.protocol.senders import Mark
from delivery.records import Output

IDENTITIES = st.binary(min_size=16, max_size=16)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
UINT64 = st.integers(0, 2**64 - 1)
LANES = st.text(min_size=1, max_size=60)
BYTES = st.none() | st.binary(max_size=300)

ORIGINS = st.builds(
    Origin, lane=LANES, ref=st.builds(HeadRef, IDENTITIES, UINT64, IDENTITIES), minted_at_ms=UINT64
)
ROWS = st.lists(
    st.builds(
        Row,
        output=st.builds(
            Output,
            value=BYTES,
            key=BYTES,
            headers=st.lists(
                st.tuples(st.text(max_size=10), st.binary(max_size=20)), max_size=3
            ).map(tuple),
            edge=st.integers(0, 2**16 - 1),
        ),
        partition=INT32,
        parent=st.tuples(INT32, INT64),
        kept_id=st.none() | IDENTITIES,
    ),
    max_size=6,
)
HEADERS = st.builds(
    Header,
    IDENTITIES,
    st.builds(Mark, LANES, IDENTITIES, UINT64, UINT64, kept=st.booleans()),
    st.tuples(INT32, INT64),
)
modest = settings(deadline=None, max_examples=50)


@modest
@given(origin=ORIGINS, rows=ROWS)
def test_what_was_stored_is_what_the_attempt_itself_would_send(origin, rows):
    chunks = encode_outputs(origin, Rows.of(rows))
    assert list(decode_outputs(chunks, "here")) == list(emissions(origin, Rows.of(rows)))
    assert bool(chunks) == bool(rows)


@modest
@given(origin=ORIGINS, rows=ROWS.filter(bool), data=st.data())
def test_any_changed_byte_and_any_cut_is_corrupt(origin, rows, data):
    (chunk,) = encode_outputs(origin, Rows.of(rows))
    at = data.draw(st.integers(0, len(chunk) - 1))
    changed = bytearray(chunk)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        list(decode_outputs([bytes(changed)], "here"))
    with pytest.raises(Corrupt):
        list(decode_outputs([chunk[:at] or b"X"], "here"))


@modest
@given(origin=ORIGINS, rows=ROWS.filter(bool))
def test_every_emission_says_whose_it_is_and_none_shares_an_id(origin, rows):
    sent = list(emissions(origin, Rows.of(rows)))
    for row, emission in zip(rows, sent, strict=True):
        ours = [value for name, value in emission.headers if name == NAME]
        header = decode_header(ours[-1])
        assert header is not None
        assert (header.id, header.parent) == (emission.id, row.parent)
        assert header.mark.sender == origin.lane
        assert header.mark.kept == (row.kept_id is not None)
    minted = [emission.id for row, emission in zip(rows, sent, strict=True) if row.kept_id is None]
    assert len(set(minted)) == len(minted)


@modest
@given(rows=ROWS, others=ROWS)
def test_what_two_attempts_made_is_compared_by_what_it_says(rows, others):
    assert content_digest(Rows.of(rows)) == content_digest(Rows.of(rows))
    same = content_digest(Rows.of(rows)) == content_digest(Rows.of(others))
    assert same == (rows == others)


@modest
@given(header=HEADERS)
def test_a_header_comes_back(header):
    assert decode_header(encode_header(header)) == header


@modest
@given(value=st.binary(max_size=120))
def test_bytes_that_are_no_header_are_nothing_or_come_back(value):
    header = decode_header(value)
    assert header is None or encode_header(header) == value
