"""Why a broker that is there lets nobody in: asked once more, in the open, when a client got no answer.

What it is: `refusal`, which knocks as the options say, TLS and login included, and says at which door
it ends and which option that is about.
What it must not know: client libraries, which do not tell; what is read or written.

Invariants:
    It explains, and decides nothing: who was let in is never asked, and what is not recognised is "".
    It sends what the options say to the addresses that they say, and to nobody else; a password goes
    where TLS was asked for only once that stands.
    No value of an option is in what it says.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Mapping

from delivery.kafka.options import Options
from delivery.kafka.reaching import addresses

__all__ = ["refusal"]

#: How long one answer may take: whoever needs longer is slow, and may let us in.
KNOCK_SECONDS = 3.0
#: No answer to a login is longer.
_ANSWER_BYTES_MAX = 64 * 1024
#: What an answer begins with: the number of its request.
_HEADER_BYTES = 4
_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 0)
_UNSUPPORTED_MECHANISM, _NO_LOGIN_HERE = 33, 34
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_MEND_LOGIN = "mend sasl.username or sasl.password"
_NO_TLS = "nobody there speaks TLS: mend the port, or say security.protocol without SSL"
_TLS = "it ends whatever is not TLS: mend the port, or say security.protocol=SSL or SASL_SSL"
_LOGIN = (
    "it asks for a login: say security.protocol=SASL_SSL (or SASL_PLAINTEXT) and the sasl.* options"
)
_HUNG_UP = (
    "it hangs up behind TLS: mend the port (or does it ask for a certificate of yours, "
    "ssl.certificate.location?)"
)
_NO_LOGIN = "it asks for no login: mend the port, or say security.protocol without SASL"


class _Refused(Exception):
    """What a broker says no to."""


def refusal(options: Options) -> str:
    """Return why the first broker that is there lets nobody in by these options; "": not known."""
    given = options.given
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    for host, port in addresses(options.bootstrap):
        try:
            with socket.create_connection((host, port), KNOCK_SECONDS) as line:
                if protocol.endswith("SSL"):
                    with _through_tls(line, host, given) as inner:
                        _enter(inner, protocol, given)
                else:
                    _enter(line, protocol, given)
        except _Refused as why:
            return options.redacted(f"a broker is there, and lets nobody in: {why}")
        except (OSError, ValueError, struct.error):
            continue  # a broker that is away, or says what we do not know
    return ""


def _through_tls(line: socket.socket, host: str, given: Mapping[str, str]) -> ssl.SSLSocket:
    try:
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"],
                given.get("ssl.key.location"),
                given.get("ssl.key.password", ""),
            )
    except (OSError, ValueError) as error:
        raise _Refused(
            f"a file that an ssl.* option names cannot be read ({error.strerror or error}): mend it"
            if isinstance(error, OSError)
            else f"an ssl.* option cannot be used: {error}"
        ) from None
    checked = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    context.check_hostname = checked not in {"", "none"}
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(line, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise _Refused(
            f"its certificate is not trusted ({error.verify_message}): let ssl.ca.location name the "
            "PEM file of the authority that signed it, and the address be one that it is made for"
        ) from None
    except (ssl.SSLEOFError, ConnectionError):
        raise _Refused(_NO_TLS) from None
    except ssl.SSLError as error:
        if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}:
            raise _Refused(_NO_TLS) from None
        raise _Refused(_failed(error)) from None


def _failed(error: ssl.SSLError) -> str:
    return (
        f"TLS fails ({error.reason}): mend the ssl.* options (does it ask for a certificate of "
        "yours, ssl.certificate.location?)"
    )


def _enter(line: socket.socket, protocol: str, given: Mapping[str, str]) -> None:
    wants_login = protocol.startswith("SASL")
    said = given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI"))
    mechanism = said.upper() if wants_login else "PLAIN"
    answer = _greeted(line, protocol, mechanism)
    (code,) = struct.unpack_from(">h", answer)
    if not wants_login:
        if code in {0, _UNSUPPORTED_MECHANISM}:
            raise _Refused(_LOGIN)
        return
    if code == _NO_LOGIN_HERE:
        raise _Refused(_NO_LOGIN)
    if code == _UNSUPPORTED_MECHANISM:
        raise _Refused(
            f"it does not take sasl.mechanism={mechanism}, but {', '.join(_texts(answer[2:]))}"
        )
    if {"sasl.username", "sasl.password"} <= given.keys():
        user, password = given["sasl.username"], given["sasl.password"]
        if mechanism == "PLAIN":
            _prove(line, f"\0{user}\0{password}".encode())
        elif mechanism in _HASHES:
            _scram(line, user, password, _HASHES[mechanism])


def _greeted(line: socket.socket, protocol: str, mechanism: str) -> bytes:
    """Ask for a way to log in; return the answer."""
    try:
        return _ask(line, _HANDSHAKE, _text(mechanism))
    except ConnectionError:
        behind_tls = _NO_LOGIN if protocol.startswith("SASL") else _HUNG_UP
        raise _Refused(behind_tls if protocol.endswith("SSL") else _TLS) from None
    except ssl.SSLError as error:
        # SUBTLE: since TLS 1.3 a client believes that it is in before its certificate is looked at.
        if "ALERT" not in (error.reason or ""):
            raise
        raise _Refused(_failed(error)) from None


def _scram(line: socket.socket, user: str, password: str, name: str) -> None:
    """Log in as RFC 5802 says; whether the broker knows the password as well is not looked at."""
    nonce = secrets.token_urlsafe(18)
    plain = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={plain},r={nonce}"
    server = _prove(line, f"n,,{first}".encode()).decode()
    fields = dict(part.split("=", 1) for part in server.split(","))
    salted = hashlib.pbkdf2_hmac(
        name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    key = hmac.digest(salted, b"Client Key", name)
    last = f"c=biws,r={fields['r']}"
    signed = hmac.digest(hashlib.new(name, key).digest(), f"{first},{server},{last}".encode(), name)
    proof = bytes(a ^ b for a, b in zip(key, signed, strict=True))
    final = _prove(line, f"{last},p={base64.b64encode(proof).decode()}".encode())
    if final.startswith(b"e="):
        raise _Refused(f"the login is refused: {_MEND_LOGIN}")


def _prove(line: socket.socket, said: bytes) -> bytes:
    """Send one message of a login; return what it is answered with."""
    try:
        answer = _ask(line, _AUTHENTICATE, struct.pack(">i", len(said)) + said)
    except ConnectionError:
        raise _Refused(f"the login is refused: {_MEND_LOGIN}") from None
    code, length = struct.unpack_from(">hh", answer)
    if code:
        raise _Refused(f"the login is refused: {_MEND_LOGIN}")
    begin = 4 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, begin)
    return answer[begin + 4 : begin + 4 + max(size, 0)]


def _ask(line: socket.socket, what: tuple[int, int], body: bytes) -> bytes:
    """Send a request of Kafka's protocol; return the answer behind its header."""
    request = struct.pack(">hhi", *what, 1) + _text("delivery") + body
    line.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _exactly(line, 4))
    if not _HEADER_BYTES <= size <= _ANSWER_BYTES_MAX:
        raise ConnectionError("no answer of Kafka's")  # such as the alert of who wants TLS
    return _exactly(line, size)[_HEADER_BYTES:]


def _exactly(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = line.recv(count - len(found))
        if not more:
            raise ConnectionError("it hung up")
        found += more
    return found


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _texts(data: bytes) -> list[str]:
    (count,), at, found = struct.unpack_from(">i", data), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, at)
        found.append(data[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return found
