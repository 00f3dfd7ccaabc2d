"""URLs of Cassandra catalogs: what they say, and what a refusal never repeats."""

from __future__ import annotations

import ssl

import pytest

from dedup.catalog.cassandra.address import Address, Consistency, Tls
from dedup.catalog.cassandra.session import Connection
from dedup.errors import InvalidUsage


def test_the_shortest_url():
    address = Address.parse("cassandra://localhost/shop")
    assert address == Address(hosts=(("localhost", 9042),), keyspace="shop")
    assert address.url == "cassandra://localhost:9042/shop"
    assert address.agreement == "serial"


def test_the_longest_url():
    address = Address.parse(
        "cassandra://m%65@a:1,b,[::1]:3/shop_2?consistency=local_serial&dc=eu-1&tls=verify-full"
        "&replication=us:2,eu-1:3&cafile=%2Fetc%2Fca.pem&password_env=SHOP"
    )
    assert address == Address(
        hosts=(("a", 1), ("b", 9042), ("::1", 3)),
        keyspace="shop_2",
        user="me",
        password_env="SHOP",  # noqa: S106 - the name of a variable
        consistency=Consistency.LOCAL_SERIAL,
        datacenter="eu-1",
        replication=(("eu-1", 3), ("us", 2)),
        tls=Tls.VERIFY_FULL,
        cafile="/etc/ca.pem",
    )
    assert address.url == "cassandra://a:1,b:9042,[::1]:3/shop_2"
    assert address.agreement == "local_serial:eu-1"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("cassandra:shop", "no Cassandra URL"),
        ("sqlite:shop.db", "no Cassandra URL"),
        ("cassandra://localhost", "the keyspace is"),
        ("cassandra://localhost/", "the keyspace is"),
        ("cassandra://localhost/Shop", "the keyspace is"),
        ("cassandra://localhost/system_auth", "none of Cassandra's"),
        ("cassandra://localhost/shop#x", "fragment"),
        ("cassandra://localhost:0/shop", "a port is"),
        ("cassandra://localhost:70000/shop", "a port is"),
        ("cassandra://localhost:x/shop", "a host is"),
        ("cassandra://a,,b/shop", "a host is"),
        ("cassandra:///shop", "a host is"),
        ("cassandra://localhost/shop?consistency=one", "consistency is one of serial"),
        ("cassandra://localhost/shop?consistency=local_serial", "needs dc=NAME"),
        ("cassandra://localhost/shop?dc=a'b", "dc is the name"),
        ("cassandra://localhost/shop?replication=0", "replication is"),
        ("cassandra://localhost/shop?replication=a:1,2", "replication is"),
        ("cassandra://localhost/shop?replication=a:1,a:2", "replication is"),
        ("cassandra://localhost/shop?tls=on", "tls is one of off, verify-ca, verify-full"),
        ("cassandra://localhost/shop?cafile=x", "cafile without tls"),
        ("cassandra://localhost/shop?speed=9", "parameter speed is unknown"),
        ("cassandra://localhost/shop?dc=a&dc=b", "parameter dc is unknown or given twice"),
    ],
)
def test_a_malformed_url_is_refused_with_the_form(url, words):
    with pytest.raises(InvalidUsage, match=words) as refused:
        Address.parse(url)
    assert "nothing was opened or written" in refused.value.hint
    assert "cassandra://[user@]host" in refused.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://me:hunter2@localhost/shop",
        "cassandra://me:hunter2@localhost",
        "cassandra://me:hun@hunter2@localhost/shop",
        "cassandra://me:hun/hunter2@localhost/shop",
        "cassandra://me:hun?hunter2@localhost/shop",
        "cassandra://me:hun#hunter2@localhost/shop",
        "cassandra://localhost/shop?password=hunter2",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url):
    with pytest.raises(InvalidUsage) as refused:
        Address.parse(url)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value)


def test_a_password_comes_from_the_environment_or_a_callable(monkeypatch):
    address = Address.parse("cassandra://me@localhost/shop?password_env=SHOP_PASSWORD")
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    with pytest.raises(InvalidUsage, match=r"no SHOP_PASSWORD.*password=callable"):
        Connection(address, None, 1.0)._login()
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    login = Connection(address, None, 1.0)._login()
    assert (login.username, login.password) == ("me", "hunter2")
    given = Connection(address, lambda: "hunter3", 1.0)
    assert given._login().password == "hunter3"  # noqa: S105 - the point of the test
    assert "hunter" not in repr(given) + repr(vars(given)) + repr(address)
    assert Connection(Address.parse("cassandra://localhost/shop"), None, 1.0)._login() is None


def test_tls_checks_certificates_and_by_choice_names(tmp_path):
    def context(options: str) -> ssl.SSLContext | None:
        address = Address.parse(f"cassandra://localhost/shop?{options}")
        return Connection(address, None, 1.0)._cluster().ssl_context

    assert context("") is None
    full, ca = context("tls=verify-full"), context("tls=verify-ca")
    assert full is not None
    assert ca is not None
    assert [full.verify_mode, ca.verify_mode] == [ssl.CERT_REQUIRED] * 2
    assert [full.check_hostname, ca.check_hostname] == [True, False]
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (empty, tmp_path / "absent.pem"):
        with pytest.raises(InvalidUsage, match="cannot be read as certificates"):
            context(f"tls=verify-full&cafile={path}")
