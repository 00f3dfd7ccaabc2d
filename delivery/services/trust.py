"""The certificate authorities this machine trusts, in a file that Java can read.

What it is: `trust_store`. The JRE wheel brings its own list of authorities, as old as itself; it
knows none that a company or a sandbox has added to the machine, though pip, which fetched the
wheel, does.
What it must not know: what is fetched with it.

Invariants:
    The file holds exactly the authorities of the machine's own bundle; nothing is trusted that
    Python on this machine does not trust.
"""

from __future__ import annotations

import os
import ssl
import struct
from pathlib import Path

__all__ = ["TYPE", "trust_store"]

#: Java's oldest format, which every version reads, and the only one that needs no cryptography.
TYPE = "JKS"

_MAGIC, _VERSION = 0xFEEDFEED, 2
_TRUSTED_CERTIFICATE = 2

#: Where systems keep all authorities in one file, for when OpenSSL itself looks elsewhere.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)


def trust_store(path: Path) -> Path | None:
    """Write the machine's authorities to `path`; None if it has no bundle to take them from."""
    # SSL_CERT_FILE is what pip and Python go by as well; `cafile` is it, or OpenSSL's own place.
    candidates = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *BUNDLES)
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cafile=candidate)
            path.write_bytes(_encode(context.get_ca_certs(binary_form=True)))
            return path
    return None


def _encode(certificates: list[bytes]) -> bytes:
    """Return the key store. Without a password Java asks for no digest at its end."""
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(f"authority-{number}"),
            struct.pack(">Q", 0),  # when it was added: nobody asks
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
