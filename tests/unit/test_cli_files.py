"""Files that verbs write: a place that takes none is refused, and what is somebody else's stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.house import House
from tests.unit.operate_kit import called
from tests.unit.watch_kit import shop

KAFKA = ("--kafka", "here:1")
NOWHERE = "/nonexistent/shop.file"


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def test_a_report_is_not_written_over_a_catalog(house: House, tmp_path: Path) -> None:
    before = (tmp_path / "shop.db").read_bytes()
    error = called("report", house.store.url, "-o", str(tmp_path / "shop.db"), code=2).stderr
    assert "is no page, and stays as it is" in error
    assert (tmp_path / "shop.db").read_bytes() == before


def test_a_report_is_written_over_another_and_over_nothing(house: House, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.touch()
    called("report", house.store.url, "-o", str(page))
    first = page.read_bytes()
    called("report", house.store.url, "-o", str(page))
    assert page.read_bytes()[:15] == first[:15] == b"<!doctype html>"


def test_an_audit_with_nowhere_to_remember_reads_nothing(house: House) -> None:
    asked = ("audit", house.store.url, *KAFKA, "--state", NOWHERE)
    result = called(*asked, code=2)
    assert "no file can be made in /nonexistent; nothing was audited" in result.stderr


def test_an_audit_that_cannot_remember_is_no_finding(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    state = str(tmp_path / "shop.proved")
    result = called("audit", house.store.url, *KAFKA, "--state", state, code=3)
    assert "No space left on device; nothing wrong was found" in result.stderr
    assert not Path(state).exists()


def test_what_an_audit_does_not_know_is_not_for_it_to_take_away(
    house: House, tmp_path: Path
) -> None:
    state = str(tmp_path / "shop.db")
    error = called("audit", house.store.url, *KAFKA, "--state", state, code=6).stderr
    assert "torn, or no file of an audit's" in error
    assert "delete it" not in error


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--log", NOWHERE, "--", "true"), "nothing was started: name another file with --log"),
        (("--", "/nonexistent/job"), "mend the command behind `--`"),
    ],
)
def test_a_job_that_cannot_be_started_is_wrong_usage(
    house: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in called("chaos", house.store.url, *KAFKA, *more, code=2).stderr
