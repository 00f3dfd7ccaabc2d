"""A node that asks for a password over TLS: who gets in, who does not, and what is never said."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.cassandra.address import PASSWORD_VARIABLE
from dedup.errors import InvalidUsage, Unavailable
from delivery.services.cassandra import Cassandra
from delivery.services.jars import Tree, jars
from delivery.services.java import find_java
from delivery.services.node import Launcher, Node, await_ready
from delivery.services.process import Lifeline
from tests.conformance.values import raw_lane

pytestmark = pytest.mark.slow

#: What a new Cassandra lets in.
USER = "cassandra"
PASSWORD = USER
KEYSTORE = "keystore.p12"
CERTIFICATE = "certificate.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCassandra(Cassandra):
    """One node with a login and TLS; its keystore and certificate are in `root`."""

    root: Path

    def config(self, index: int, directory: Path) -> dict[str, object]:
        tls = {
            "enabled": True,
            "optional": False,
            "keystore": str(self.root / KEYSTORE),
            "keystore_password": PASSWORD,
        }
        settings = Cassandra.config(self, index, directory)
        return settings | {
            "authenticator": "PasswordAuthenticator",
            "client_encryption_options": tls,
        }

    def check(self, index: int) -> None:
        """The login is there when the node has made its first user, a moment after its port."""
        certificate = self.root / CERTIFICATE
        url = f"cassandra://{USER}@{self.address(index)}/ready?tls=verify-full&cafile={certificate}"
        try:
            CassandraStore.open(url, password=lambda: PASSWORD).close()
        except InvalidUsage as error:
            raise Unavailable(error.op, error.subject, error.hint) from error


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def make_keystore(root: Path, keytool: Path) -> None:
    store = ["-alias", "node", "-keystore", str(root / KEYSTORE), "-storepass", PASSWORD]
    made = [
        "-keyalg",
        "RSA",
        "-storetype",
        "PKCS12",
        "-dname",
        "CN=node",
        "-ext",
        "san=ip:127.0.0.1",
    ]
    commands: Sequence[list[str]] = (
        ["-genkeypair", *made, *store],
        ["-exportcert", "-rfc", "-file", str(root / CERTIFICATE), *store],
    )
    for command in commands:
        subprocess.run([str(keytool), *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """Give the node's address and its certificate."""
    root = tmp_path_factory.mktemp("guarded")
    java = find_java().executable
    make_keystore(root, java.parent / "keytool")
    port, storage_port, jmx_port = free_ports(3)
    node = Node(
        cluster=GuardedCassandra(
            nodes=1, port=port, storage_port=storage_port, jmx_ports=(jmx_port,), root=root
        ),
        index=1,
        home=root,
    )
    lifeline = Lifeline(root)
    launcher = Launcher(
        java=java, jars={"cassandra": jars(Tree.CASSANDRA, report=print)}, lifeline=lifeline
    )
    try:
        for _ in await_ready([(node, node.start(launcher))]):
            pass
        yield node.address, root / CERTIFICATE
    finally:
        lifeline.close()
        running = node.process()
        if running is not None:
            running.kill()
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("tls", ["verify-full", "verify-ca"])
def test_a_password_from_the_environment_or_a_callable_opens(guarded, monkeypatch, tls, unique):
    address, certificate = guarded
    url = f"cassandra://{USER}@{address}/{unique('login')}?tls={tls}&cafile={certificate}"
    row = raw_lane()
    with closing(CassandraStore.open(url, password=lambda: PASSWORD)) as store:
        assert store.create("lane", row, b"entry")
        assert USER not in store.url.removeprefix("cassandra://")
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    with closing(CassandraStore.open(url)) as store:
        assert store.read("lane") == row


def test_a_wrong_password_is_refused_and_never_repeated(guarded, caplog, capfd):
    address, certificate = guarded
    url = f"cassandra://{USER}@{address}/shop?tls=verify-full&cafile={certificate}"
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(InvalidUsage, match="it did not happen") as no,
    ):
        CassandraStore.open(url, password=lambda: "hunter2")
    printed = capfd.readouterr()
    said = (str(no.value), repr(no.value), caplog.text, printed.out, printed.err)
    assert "hunter2" not in "".join(said)


@pytest.mark.parametrize("options", ["", "?tls=verify-full"])
def test_without_the_certificate_nothing_is_sent(guarded, options):
    address, _ = guarded
    with pytest.raises((InvalidUsage, Unavailable), match="it did not happen"):
        CassandraStore.open(f"cassandra://{USER}@{address}/shop{options}", password=lambda: "x")
