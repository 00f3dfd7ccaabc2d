"""Every exception of the driver that is known to matter, and what it means for the data."""

from __future__ import annotations

import ssl

import pytest
from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    WriteFailure,
    WriteTimeout,
    WriteType,
)
from cassandra import Unavailable as TooFewReplicas
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage, OverloadedErrorMessage, ServerError, SyntaxException

from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.cassandra.errors import TEXT_CHARS_MAX, Access, connecting, translating
from dedup.errors import Corrupt, Indeterminate, InvalidUsage, Unavailable

#: "CAS write: unknown result"; the driver knows no class for it.
CAS_UNKNOWN = ErrorMessage(0x1700, "CAS operation result is unknown", {})
UNSENT = {
    "a": NoConnectionsAvailable(),
    "b": ConnectionShutdown("closed"),
    "c": ConnectionBusy("full"),
}

UNKNOWN = [
    WriteTimeout("x", write_type=WriteType.CAS),
    WriteTimeout("x", write_type=WriteType.SIMPLE),
    WriteFailure("x"),
    ReadTimeout("x"),
    ReadFailure("x"),
    OperationTimedOut(),
    CAS_UNKNOWN,
    OverloadedErrorMessage(0x1001, "x", {}),
    ServerError(0, "x", {}),
    ConnectionException("x"),
    ConnectionShutdown("x"),
    NoHostAvailable("x", {**UNSENT, "d": OperationTimedOut()}),
    NoHostAvailable("x", {"a": RuntimeError("what is this")}),
    RuntimeError("what is this"),
]
REFUSED = [
    AuthenticationFailed("x"),
    Unauthorized("x"),
    InvalidRequest("x"),
    SyntaxException(0x2000, "x", {}),
    ssl.SSLCertVerificationError("x"),
    NoHostAvailable("x", {"a": OperationTimedOut(), "b": AuthenticationFailed("x")}),
]


def too_few(level: int) -> TooFewReplicas:
    return TooFewReplicas("x", consistency=level, required_replicas=2, alive_replicas=1)


UNSENT_ERRORS = [NoHostAvailable("x", UNSENT), NoHostAvailable("x", [])]


def kind(error: Exception, access: Access) -> type[Exception]:
    with pytest.raises(Exception) as raised, translating("append a seal", "lane", access):  # noqa: PT011 - any kind
        raise error
    assert raised.value.__cause__ is error
    return raised.type


def name(error: object) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", UNKNOWN, ids=name)
def test_what_is_not_proved_is_unknown_for_writes_and_harmless_for_reads(error):
    assert kind(error, Access.COMPARE) is Indeterminate
    assert kind(error, Access.WRITE) is Indeterminate
    assert kind(error, Access.READ) is Unavailable


@pytest.mark.parametrize("error", REFUSED, ids=name)
def test_what_the_server_refuses_is_wrong_usage(error):
    assert [kind(error, access) for access in Access] == [InvalidUsage] * 3


@pytest.mark.parametrize("error", UNSENT_ERRORS, ids=name)
def test_what_was_never_sent_did_not_happen(error):
    assert [kind(error, access) for access in Access] == [Unavailable] * 3


@pytest.mark.parametrize("level", [ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL])
def test_too_few_replicas_for_a_promise_are_proof(level):
    assert [kind(too_few(level), access) for access in Access] == [Unavailable] * 3


@pytest.mark.parametrize("level", [ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_QUORUM])
def test_too_few_replicas_for_a_commit_are_no_proof(level):
    """The proposal may have been accepted before: somebody else will complete it."""
    assert kind(too_few(level), Access.COMPARE) is Indeterminate
    assert kind(too_few(level), Access.WRITE) is Unavailable


def test_our_own_kinds_pass():
    for error in (Corrupt("read", "head", "x"), InvalidUsage("open", "x", "y")):
        with pytest.raises(type(error)) as raised, translating("a", "b", Access.READ):
            raise error
        assert raised.value is error


def test_a_message_is_one_short_line_that_says_what_to_do():
    with pytest.raises(Indeterminate) as raised, translating("append", "lane", Access.COMPARE):
        raise RuntimeError("many\nlines" + "x" * 10_000)
    assert "\n" not in raised.value.hint
    assert len(raised.value.hint) < TEXT_CHARS_MAX + 200
    assert "read the lane, then repeat the same attempt" in raised.value.hint


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("127.0.0.1:1", "nothing takes connections at 127.0.0.1:1"),
        ("127.0.0.1:1,127.0.0.2:1", "nothing takes connections at 127.0.0.1:1,127.0.0.2:1"),
        ("nowhere.invalid", "no name of nowhere.invalid:9042 is known as a machine's"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_shortly(hosts, why):
    with pytest.raises(Unavailable) as raised:
        CassandraStore.open(f"cassandra://{hosts}/shop")
    assert str(raised.value).endswith(
        f"/shop: {why}; nothing was read or written: start it (`delivery up`), or mend the URL"
    )
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


def test_what_else_keeps_a_session_from_being_made_is_told_in_full():
    refused = NoHostAvailable("none", {"a": ConnectionRefusedError(111, "x"), "b": OSError("TLS")})
    for error in (refused, NoHostAvailable("none", ["a"]), ValueError("x")):
        with pytest.raises(type(error)), connecting("cassandra://a/shop", "a:1"):
            raise error
