"""Catalog URLs: what opens, what is refused, and what a message may never repeat."""

from __future__ import annotations

import pytest

from dedup.catalog import Catalog, open_catalog
from dedup.catalog.open import open_store, without_user
from dedup.errors import InvalidUsage
from delivery import Delivery
from tests.conformance.values import first


def test_a_memory_catalog_is_new_each_time(lane):
    one, other = open_catalog("memory:"), open_catalog("memory:")
    assert isinstance(one, Catalog)
    assert one.create(lane, *first())
    assert other.load(lane) is None


def test_a_relative_path_is_of_the_working_directory(tmp_path, monkeypatch, lane):
    monkeypatch.chdir(tmp_path)
    relative = open_catalog("sqlite:shop.db")
    absolute = open_catalog(f"sqlite:{tmp_path}/shop.db")
    head, seal = first()
    assert relative.create(lane, head, seal)
    assert absolute.load(lane).head == head
    assert relative.store.url == absolute.store.url == f"sqlite:{tmp_path}/shop.db"
    relative.store.close()
    absolute.store.close()


@pytest.mark.parametrize(
    "name", ["a?b.db", "a#b.db", "a b%20.db", "ü日.db", "it's.db", 'say "x".db', "file:x.db"]
)
def test_any_file_name_is_a_file_name(tmp_path, name):
    store = open_store(f"sqlite:{tmp_path}/{name}")
    assert (tmp_path / name).is_file()
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "sqlite",
        "shop.db",
        "memory:shop",
        "sqlite:",
        "sqlite:///shop.db",
        "sqlite://shop.db",
        "sqlite::memory:",
        "sqlite:a\0b",
        "postgres://localhost/shop",
        "SQLITE:shop.db",
        "cassandra:",
        "cassandra:shop",
        "cassandra://",
        "cassandra://localhost",
        "cassandra://localhost:9042/",
        "cassandra://localhost:9042/9shop",
        "cassandra://localhost:9042/sh-op",
        "cassandra://localhost:9042/" + "s" * 49,
        "cassandra://localhost:port/shop",
        "cassandra:///shop",
        "cassandra://a:1,,b:2/shop",
        "cassandra://a:1/shop/more",
    ],
)
def test_a_malformed_url_is_refused_with_a_right_one(url):
    with pytest.raises(InvalidUsage) as refused:
        open_store(url)
    assert "nothing was opened" in str(refused.value)
    assert any(right in str(refused.value) for right in ("memory:", "sqlite:", "cassandra://["))


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("shop.db", "did you mean sqlite:shop.db?"),
        ("/var/lib/shop.db", "did you mean sqlite:/var/lib/shop.db?"),
        ("sqlit:shop.db", "did you mean sqlite:shop.db?"),
        ("cassandr://me:secret@here/shop", "did you mean cassandra://…@here/shop?"),
        ("postgres://here/shop", ""),
        ("", ""),
    ],
)
def test_a_slip_of_the_fingers_is_told_what_was_meant(url, meant):
    with pytest.raises(InvalidUsage) as refused:
        Delivery(catalog=url, kafka="localhost:9092")
    said = str(refused.value)
    assert meant in said
    assert ("did you mean" in said) == bool(meant)
    assert "secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://me:secret@localhost:9042/shop",
        "cassandra://me:se/cret@localhost:9042/shop",
        "cassandra://me:secret@localhost",
        "cassandra:me:secret@localhost",
        "postgres://me:secret@localhost/shop",
        "sqlite://me:secret@shop.db",
        "memory:me:secret@",
    ],
)
def test_no_message_repeats_a_password(url):
    with pytest.raises(InvalidUsage) as refused:
        open_store(url)
    assert "secret" not in f"{refused.value!r} {refused.value}"
    assert "cret@" not in f"{refused.value!r} {refused.value}"


def test_what_stands_before_the_at_is_left_out():
    assert without_user("cassandra://me:pa@ss@host/shop") == "cassandra://…@host/shop"
    assert without_user("cassandra://host/shop") == "cassandra://host/shop"
    assert without_user("anything") == "anything"


def test_a_directory_or_none_is_refused(tmp_path):
    with pytest.raises(InvalidUsage, match="is a directory"):
        open_store(f"sqlite:{tmp_path}")
    with pytest.raises(InvalidUsage, match="create it first"):
        open_store(f"sqlite:{tmp_path}/absent/shop.db")
    assert list(tmp_path.iterdir()) == []


def test_whoever_only_looks_makes_no_catalog(tmp_path):
    path = tmp_path / "shop.db"
    with pytest.raises(InvalidUsage, match="there is no catalog at"):
        open_store(f"sqlite:{path}", create=False)
    assert list(tmp_path.iterdir()) == []
    path.touch()
    with pytest.raises(InvalidUsage, match="there is no catalog at"):
        open_store(f"sqlite:{path}", create=False)
    with pytest.raises(InvalidUsage, match="no other can look at it"):
        open_store("memory:", create=False)
    open_store(f"sqlite:{path}").close()
    store = open_store(f"sqlite:{path}", create=False)
    assert list(store.lanes()) == []
    store.close()
