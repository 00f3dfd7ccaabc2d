"""A broker that is entered through TLS and logins, beside the plain way in that its health is asked by.

What it is: `Secured`, the settings of a broker with two more listeners; `secured`, which starts one
for the time of a `with` block; `Doors`, where these are and what they ask for.
What it must not know: who enters.

Invariants:
    Its key is made anew in a directory of the run; of it clients get the certificate alone, as PEM.
    Its users are in no file of the broker's but the settings of this run.
"""

from __future__ import annotations

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
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured(Kafka):
    """One broker with two listeners more: TLS alone, and TLS with logins.

    Attributes:
        tls, login: their ports.
        store: the broker's key.
    """

    tls: int
    login: int
    store: Path

    def ports(self, index: int) -> dict[int, str]:
        """What the broker listens on."""
        more = dict.fromkeys((self.tls, self.login), self.host(index))
        return Kafka.ports(self, index) | more

    def properties(self, index: int, directory: Path) -> dict[str, str]:
        """All settings of the broker."""
        plain = Kafka.properties(self, index, directory)
        host = self.host(index)
        more = f",SSL://{host}:{self.tls},SASL_SSL://{host}:{self.login}"
        map_of = "listener.security.protocol.map"
        return plain | {
            "listeners": plain["listeners"] + more,
            "advertised.listeners": plain["advertised.listeners"] + more,
            map_of: f"{plain[map_of]},SSL:SSL,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.store),
            "ssl.keystore.password": STORE_PASSWORD,
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
        plain, tls, login: what clients call `bootstrap.servers`.
        trusted: a file with its certificate.
    """

    plain: str
    tls: str
    login: str
    trusted: Path

    def through_tls(self) -> dict[str, str]:
        """The options of whoever trusts the broker."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.trusted)}

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
        port, controller, tls, login = ports.reserve(owner, 4, ["127.0.0.1"])
        store = root / "broker.p12"
        kafka = Secured(
            nodes=1,
            port=port,
            controller_port=controller,
            cluster_id=uuid.uuid4().hex[:22],
            tls=tls,
            login=login,
            store=store,
        )
        node = Node(cluster=kafka, index=1, home=root)
        launcher = Instance.launcher([node], print, lifeline)
        server = Server(node=node, launcher=launcher)
        trusted = certificate(store, launcher.java)
        for _ in await_ready([(node, node.start(launcher))]):
            pass
        _let_in(kafka.bootstrap)
        yield Doors(
            plain=kafka.bootstrap,
            tls=f"127.0.0.1:{tls}",
            login=f"127.0.0.1:{login}",
            trusted=trusted,
        )
    finally:
        lifeline.close()
        if server is not None:
            server.kill()
        ports.release(owner.instance)
        shutil.rmtree(root, ignore_errors=True)


def certificate(store: Path, java: Path) -> Path:
    """Make a key for 127.0.0.1 in a store, and return the file of its certificate."""
    name = ("-alias", "broker", "-keystore", str(store), "-storepass", STORE_PASSWORD)
    made = ("-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12", "-validity", "7")
    _keytool(java, "-genkeypair", *name, *made, "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1")
    trusted = store.with_suffix(".pem")
    _keytool(java, "-exportcert", "-rfc", *name, "-file", str(trusted))
    return trusted


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
