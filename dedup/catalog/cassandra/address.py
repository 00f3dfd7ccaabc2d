"""Where a Cassandra catalog is and how to reach it, as a URL says it.

What it is: `Address`, parsed from `cassandra://[user@]host[:port][,host...]/keyspace?...`.
What it must not know: the driver, any password.

Invariants:
    No password is accepted in a URL, and none is ever repeated in a message: of a URL that is
    refused only what stands behind its last `@` and before its `?` is shown.
    An address says everything that every process of a catalog must agree on.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from dedup.errors import InvalidUsage

SCHEME = "cassandra"
PORT_DEFAULT = 9042
#: The environment variable a password is read from, unless `password_env` names another.
PASSWORD_VARIABLE = "DELIVERY_CASSANDRA_PASSWORD"  # noqa: S105 - the name of a variable

#: What every message about a URL ends with.
FORM = (
    "write cassandra://[user@]host[:port][,host...]/keyspace, behind it optionally "
    "?consistency=serial|local_serial&dc=NAME&replication=3|DC:3,DC:3"
    "&tls=verify-full|verify-ca&cafile=PATH&password_env=VARIABLE"
)

#: Unquoted identifiers of CQL; 48 is Cassandra's limit.
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DATACENTER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::(?P<port>\d{1,5}))?"
)
_PORT_MAX = 65535
#: More copies than this is a slip of the finger.
_REPLICAS_MAX = 9


class Consistency(StrEnum):
    """Who must agree on a compare-and-append: a majority of all replicas, or of one data centre."""

    SERIAL = "serial"
    LOCAL_SERIAL = "local_serial"


class Tls(StrEnum):
    """What is checked of the servers; the words are those of PostgreSQL's `sslmode`."""

    OFF = "off"
    #: The certificate is signed by the authority of `cafile`.
    VERIFY_CA = "verify-ca"
    #: And it is made out to the address we connected to.
    VERIFY_FULL = "verify-full"


_Choice = TypeVar("_Choice", Consistency, Tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Everything a URL says."""

    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    user: str = ""
    password_env: str = PASSWORD_VARIABLE
    consistency: Consistency = Consistency.SERIAL
    datacenter: str = ""
    #: Copies per data centre; ("", n) means n in each. Empty: what the keyspace has, or, for a
    #: new keyspace, three or as many as there are nodes.
    replication: tuple[tuple[str, int], ...] = ()
    tls: Tls = Tls.OFF
    cafile: str = ""

    @property
    def url(self) -> str:
        """What messages call this catalog: hosts and keyspace, no user."""
        return f"{SCHEME}://{self.places}/{self.keyspace}"

    @property
    def places(self) -> str:
        """Where its nodes are looked for: "host:port,host:port"."""
        return ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)

    @property
    def agreement(self) -> str:
        """What all processes of a catalog must have in common: who agrees on an append."""
        if self.consistency is Consistency.SERIAL:
            return self.consistency.value
        return f"{self.consistency.value}:{self.datacenter}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidUsage: it is malformed or contradicts itself, or has a password in it.
        """
        scheme, _, rest = url.partition("://")
        if scheme != SCHEME or not rest:
            raise _refused(url, "this is no Cassandra URL")
        split = urlsplit(url)
        user, _, hosts = split.netloc.rpartition("@")
        if ":" in user or "@" in split.path:
            raise _refused(
                url,
                f"a URL ends up in logs, so no password may stand in it: set {PASSWORD_VARIABLE} "
                "instead, and change this password if the URL was logged already",
            )
        keyspace = split.path.removeprefix("/")
        if not _KEYSPACE.fullmatch(keyspace) or keyspace.startswith("system"):
            raise _refused(
                url, "the keyspace is 1 to 48 of a-z, 0-9 and _, and none of Cassandra's"
            )
        if split.fragment:
            raise _refused(url, "a fragment (#) means nothing here")
        options = _options(url, split.query)
        address = cls(
            hosts=tuple(_host(url, host) for host in hosts.split(",")),
            keyspace=keyspace,
            user=unquote(user),
            password_env=options.get("password_env") or PASSWORD_VARIABLE,
            consistency=_choice(url, Consistency, options, Consistency.SERIAL),
            datacenter=_datacenter(url, options.get("dc", "")),
            replication=_replication(url, options.get("replication", "")),
            tls=_choice(url, Tls, options, Tls.OFF),
            cafile=options.get("cafile", ""),
        )
        if address.consistency is Consistency.LOCAL_SERIAL and not address.datacenter:
            raise _refused(url, "local_serial needs dc=NAME: which data centre decides")
        if address.cafile and address.tls is Tls.OFF:
            raise _refused(url, "cafile without tls=verify-full or tls=verify-ca would do nothing")
        return address


def _options(url: str, query: str) -> dict[str, str]:
    known = {"consistency", "dc", "replication", "tls", "cafile", "password_env"}
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known or name in options:
            raise _refused(url, f"the parameter {name} is unknown or given twice")
        options[name] = value
    return options


def _host(url: str, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise _refused(url, "a host is NAME, NAME:PORT or [IPv6]:PORT")
    port = int(found["port"] or PORT_DEFAULT)
    if not 0 < port <= _PORT_MAX:
        raise _refused(url, f"a port is 1 to {_PORT_MAX}")
    return found["six"] or found["name"], port


def _choice(url: str, kind: type[_Choice], options: dict[str, str], default: _Choice) -> _Choice:
    name = kind.__name__.lower()
    try:
        return kind(options.get(name, default))
    except ValueError:
        raise _refused(url, f"{name} is one of {', '.join(kind)}") from None


def _datacenter(url: str, text: str) -> str:
    if text and not _DATACENTER.fullmatch(text):
        raise _refused(url, "dc is the name of a data centre: letters, digits, `_`, `-`, `.`")
    return text


def _replication(url: str, text: str) -> tuple[tuple[str, int], ...]:
    if not text:
        return ()
    copies: dict[str, int] = {}
    for part in text.split(","):
        datacenter, _, number = part.rpartition(":")
        good = number.isdecimal() and 1 <= int(number) <= _REPLICAS_MAX
        if not good or datacenter in copies or (not datacenter and "," in text):
            raise _refused(
                url, f"replication is a number of copies up to {_REPLICAS_MAX}, or DC:number,..."
            )
        copies[_datacenter(url, datacenter)] = int(number)
    return tuple(sorted(copies.items()))


def _refused(url: str, what: str) -> InvalidUsage:
    scheme, _, rest = url.partition("://")
    # Behind the LAST @ of all, because a password may contain `/`, `?`, `#` and `@`.
    shown = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return InvalidUsage(
        "open a catalog",
        f"{scheme}://{shown}" if rest else "a URL without `://`",
        f"{what}; nothing was opened or written: {FORM}",
    )


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return how a node has to prove who it is; None: it need not."""
    if address.tls is Tls.OFF:
        return None
    try:
        context = ssl.create_default_context(cafile=address.cafile or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidUsage(
            "open a catalog",
            address.url,
            f"cafile={address.cafile} cannot be read as certificates ({error}); nothing was "
            "opened: name a PEM file",
        ) from error
    context.check_hostname = address.tls is Tls.VERIFY_FULL
    return context
