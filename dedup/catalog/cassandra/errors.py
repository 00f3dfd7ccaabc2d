"""What an exception of the driver means for the data: the one place that translates them.

What it is: `translating`, a context around every call of the driver, and `connecting`, one around
the making of a session, which says in a line that nobody is there.
What it must not know: what was asked for; only whether it read, wrote, or compared and wrote.

Invariants:
    A write is `Unavailable` only if its exception is on the short list of those that prove that
    it did not happen. Everything else, the unknown included, is `Indeterminate`.
    A read changes nothing, so whatever stops it is `Unavailable`.
    What the server refuses to understand or permit is `InvalidUsage`: it did not happen, and
    will not when tried again.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DependencyException,
    InvalidRequest,
    Unauthorized,
    UnresolvableContactPoints,
)
from cassandra import Unavailable as TooFewReplicas
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ConfigurationException, SyntaxException

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage, Unavailable

#: How much of a driver's text a message repeats.
TEXT_CHARS_MAX = 300


class Access(Enum):
    """What a statement does, as far as its failures are concerned."""

    #: Reads, or opens a connection: nothing can have changed.
    READ = auto()
    #: Writes without a condition: repeating it is harmless.
    WRITE = auto()
    #: Compares and writes: Paxos.
    COMPARE = auto()


#: The server understood enough to say no.
_REFUSED = (
    AuthenticationFailed,
    ConfigurationException,
    DependencyException,
    InvalidRequest,
    ssl.SSLCertVerificationError,
    SyntaxException,
    Unauthorized,
)
#: Why a host was passed over BEFORE the request was handed to one of its connections.
_PASSED_OVER = (ConnectionBusy, ConnectionException, NoConnectionsAvailable)
#: What a machine says where nobody listens, or that is not there.
_NOBODY = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_SERIAL = (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL)


@contextmanager
def translating(op: str, subject: str, access: Access) -> Iterator[None]:
    """Turn whatever the driver raises inside into one of our kinds."""
    try:
        yield
    except DeliveryError:
        raise
    except Exception as error:
        kind = _kind(error, access)
        raise kind(op, subject, _hint(kind, error)) from error


@contextmanager
def connecting(url: str, hosts: str) -> Iterator[None]:
    """Tell shortly of a cluster that is not there: what the driver says of it adds nothing.

    Args:
        url: the catalog's.
        hosts: where it was looked for.
    """
    try:
        yield
    except UnresolvableContactPoints:
        what = f"no name of {hosts} is known as a machine's"
    except NoHostAvailable as error:
        inner = _inner(error)
        if not inner or any(getattr(one, "errno", None) not in _NOBODY for one in inner):
            raise
        what = f"nothing takes connections at {hosts}"
    else:
        return
    raise Unavailable(
        "reach Cassandra",
        url,
        f"{what}; nothing was read or written: start it (`delivery up`), or mend the URL",
    ) from None


def _kind(error: Exception, access: Access) -> type[DeliveryError]:
    inner = _inner(error)
    if any(isinstance(one, _REFUSED) for one in inner):
        return InvalidUsage
    if access is Access.READ or _did_not_happen(error, inner, access):
        return Unavailable
    return Indeterminate


def _inner(error: Exception) -> tuple[object, ...]:
    """Return what went wrong at each node, or the error itself."""
    if not isinstance(error, NoHostAvailable):
        return (error,)
    # A list of addresses, without errors, if a session found no node that it may use.
    return tuple(error.errors.values()) if isinstance(error.errors, dict) else ()


def _did_not_happen(error: Exception, inner: tuple[object, ...], access: Access) -> bool:
    """Tell whether an exception proves that a write did not happen.

    SUBTLE: too few live replicas is proof for a plain write, and for Paxos only while it asks for
    a promise, which is when the answer names a serial level. With the level of the commit it may
    come from AFTER the proposal was accepted.
    SUBTLE: NoHostAvailable is proof because our retry policy never sends a request twice: the
    hosts it lists are those that were passed over. Any other reason in the list is no proof.
    """
    if isinstance(error, TooFewReplicas):
        return access is Access.WRITE or error.consistency in _SERIAL
    return isinstance(error, NoHostAvailable) and all(
        isinstance(one, _PASSED_OVER) for one in inner
    )


def _hint(kind: type[DeliveryError], error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")[:TEXT_CHARS_MAX]
    if kind is InvalidUsage:
        return (
            f"Cassandra refuses it ({text}); it did not happen: correct the URL, the user's "
            "permissions or the keyspace, then run again"
        )
    if kind is Unavailable:
        return f"{text}; it did not happen: try again when enough nodes answer (`nodetool status`)"
    return (
        f"{text}; it may have happened, and may yet: read the lane, then repeat the same attempt, "
        "when enough nodes answer (`nodetool status`)"
    )
