"""A broker that is entered through TLS and logins, beside the plain way in that its health is asked by.

What it is: `Secured`, the settings of a broker with three more listeners; `secured`, which starts one
for the time of a `with` block; `Doors`, where these are and what they ask for.
What it must not know: who enters.

Invariants:
    Its key is made anew in a directory of the run; of it clients get the certificate alone, as PEM.
    The client's key is made there too; of it the broker gets the certificate alone.
    Its users are in no file of the broker's but the settings of this run.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from delivery.services import ports
from delivery.services.ephemeral import Server
from delivery.services.instance import Instance
from delivery.services.kafka import Kafka
from delivery.services.node import Node, await_ready
from delivery.services.ports import Owner
from delivery.services.process import Lifeline, Process

__all__ = ["SCRAM", "USER", "Doors", "certificate", "secured"]

USER, PASSWORD = "alice", "a-long-secret"
SCRAM = "SCRAM-SHA-256"
#: Of key stores in a directory that is gone with the run.
STORE_PASSWORD = "changeit"  # noqa: S105 - nobody outside this run has the key
#: So long an answer of the broker's or of Java may take.
ANSWER_SECONDS_MAX = 60.0
SCRAM_ITERATIONS = 4096
#: In a store of Java's own kind: how a key is locked, and what stands before it.
_LOCKED = bytes.fromhex("2b060104012a021101010500")
_BEFORE_ALIAS = 16
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured(Kafka):
    """One broker with three listeners more: TLS alone, with logins, and with clients' certificates.

    Attributes:
        tls, login, mutual: their ports.
        store: the broker's key.
        clients: the certificate of who may come in through the last.
    """

    tls: int
    login: int
    mutual: int
    store: Path
    clients: Path

    def ports(self, index: int) -> dict[int, str]:
        """What the broker listens on."""
        more = dict.fromkeys((self.tls, self.login, self.mutual), self.host(index))
        return Kafka.ports(self, index) | more

    def properties(self, index: int, directory: Path) -> dict[str, str]:
        """All settings of the broker."""
        plain = Kafka.properties(self, index, directory)
        host = self.host(index)
        more = f",SSL://{host}:{self.tls},SASL_SSL://{host}:{self.login}"
        more += f",MUTUAL://{host}:{self.mutual}"
        map_of = "listener.security.protocol.map"
        return plain | {
            "listeners": plain["listeners"] + more,
            "advertised.listeners": plain["advertised.listeners"] + more,
            map_of: f"{plain[map_of]},SSL:SSL,SASL_SSL:SASL_SSL,MUTUAL:SSL",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.store),
            "ssl.keystore.password": STORE_PASSWORD,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": str(self.clients),
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            f"listener.name.sasl_ssl.{SCRAM.lower()}.sasl.jaas.config": (
                f"{_LOGIN}.scram.ScramLoginModule required;"
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """The ways into a running broker.

    Attributes:
        plain, tls, login, mutual: what clients call `bootstrap.servers`.
        trusted: a file with its certificate.
        own: one with a client's key and certificate.
    """

    plain: str
    tls: str
    login: str
    mutual: str
    trusted: Path
    own: Path

    def through_tls(self) -> dict[str, str]:
        """The options of whoever trusts the broker."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.trusted)}

    def with_certificate(self) -> dict[str, str]:
        """The options of whoever shows a certificate as well."""
        both = dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), str(self.own))
        return self.through_tls() | both

    def with_login(self, mechanism: str = SCRAM, password: str = PASSWORD) -> dict[str, str]:
        """The options of whoever has a login as well."""
        return self.through_tls() | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
        }


@contextmanager
def secured() -> Iterator[Doors]:
    """Run a broker for the time of a `with` block, or until this process dies."""
    root = Path(tempfile.mkdtemp(prefix="delivery-"))
    lifeline = Lifeline(root)
    owner = Owner(
        instance=uuid.uuid4().hex,
        state=str(root / "state.json"),
        process=Process.current(),
        ephemeral=True,
    )
    server = None
    try:
        port, controller, tls, login, mutual = ports.reserve(owner, 5, ["127.0.0.1"])
        store, clients = root / "broker.p12", root / "client.jks"
        kafka = Secured(
            nodes=1,
            port=port,
            controller_port=controller,
            cluster_id=uuid.uuid4().hex[:22],
            tls=tls,
            login=login,
            mutual=mutual,
            store=store,
            clients=clients.with_suffix(".pem"),
        )
        node = Node(cluster=kafka, index=1, home=root)
        launcher = Instance.launcher([node], print, lifeline)
        server = Server(node=node, launcher=launcher)
        trusted = certificate(store, launcher.java)
        own = root / "own.pem"
        shown = certificate(clients, launcher.java, "JKS").read_text()
        own.write_text(private_key(clients) + shown)
        for _ in await_ready([(node, node.start(launcher))]):
            pass
        _let_in(kafka.bootstrap)
        yield Doors(
            plain=kafka.bootstrap,
            tls=f"127.0.0.1:{tls}",
            login=f"127.0.0.1:{login}",
            mutual=f"127.0.0.1:{mutual}",
            trusted=trusted,
            own=own,
        )
    finally:
        lifeline.close()
        if server is not None:
            server.kill()
        ports.release(owner.instance)
        shutil.rmtree(root, ignore_errors=True)


def certificate(store: Path, java: Path, kind: str = "PKCS12") -> Path:
    """Make a key for 127.0.0.1 in a store, and return the file of its certificate."""
    name = ("-alias", "broker", "-keystore", str(store), "-storepass", STORE_PASSWORD)
    made = ("-keyalg", "EC", "-groupname", "secp256r1", "-storetype", kind, "-validity", "7")
    _keytool(java, "-genkeypair", *name, *made, "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1")
    trusted = store.with_suffix(".pem")
    _keytool(java, "-exportcert", "-rfc", *name, "-file", str(trusted))
    return trusted


def private_key(store: Path) -> str:
    """Return the only key of a store of the kind JKS as PEM, which its own program does not give out."""
    data = store.read_bytes()
    at = _BEFORE_ALIAS + 2 + int.from_bytes(data[_BEFORE_ALIAS : _BEFORE_ALIAS + 2]) + 8
    entry = data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4])]
    # An octet string: its tag, its length, a salt, the key under a stream of hashes, and a digest.
    locked = entry.partition(_LOCKED)[2]
    locked = locked[2 + max(0, locked[1] - 0x80) :]
    link, key, password = locked[:20], b"", STORE_PASSWORD.encode("utf-16-be")
    for first in range(20, len(locked) - 20, 20):
        link = hashlib.sha1(password + link).digest()  # noqa: S324 - so does Java
        key += bytes(a ^ b for a, b in zip(locked[first : first + 20], link, strict=False))
    key = key[: len(locked) - 40]
    assert hashlib.sha1(password + key).digest() == locked[-20:]  # noqa: S324 - see above
    text = base64.encodebytes(key).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{text}-----END PRIVATE KEY-----\n"


def _keytool(java: Path, *words: str) -> None:
    """Run the program that comes with every Java, also where none of its own lies beside it."""
    tool = "java.base/sun.security.tools.keytool.Main"
    subprocess.run(
        [str(java), "-m", tool, *words],
        check=True,
        capture_output=True,
        timeout=ANSWER_SECONDS_MAX,
    )


def _let_in(bootstrap: str) -> None:
    """Give the user a password for SCRAM; the one for PLAIN stands in the broker's settings."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, SCRAM_ITERATIONS)
    asked = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.alter_user_scram_credentials([asked]).values():
        answer.result(ANSWER_SECONDS_MAX)
