"""How far long work is, and what was done in the end.

What it is: `Progress`, `Report`, and `Teller`, which counts and tells.
What it must not know: what is counted.

Invariants:
    Counting costs a call a batch; the log hears of it every few seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Progress", "Report", "Teller"]

LOG = logging.getLogger(__name__)

#: How often the log hears how far it is.
TELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far seeding is.

    Attributes:
        records: read so far.
        total: how many there are at most; None where nobody knows.
    """

    records: int
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done.

    Attributes:
        starts: by lane the offset at which it begins.
        begun: how many lanes this call began; the others were begun by the same call before.
        ids: how many ids those lanes know, added up.
        records: how many records or rows were read for their ids.
        unnamed: those of them that name themselves nowhere; no repeat of them is known.
    """

    starts: Mapping[str, int] = field(default_factory=dict)
    begun: int = 0
    ids: int = 0
    records: int = 0
    unnamed: int = 0


class Teller:
    """Counts what was read, and tells whoever wants to know.

    Args:
        listener: is told after each batch.
    """

    def __init__(self, listener: Callable[[Progress], None] | None = None) -> None:
        self.records = 0
        self.unnamed = 0
        self.total: int | None = None
        self._listener = listener
        self._logged = time.monotonic()

    def count(self, records: int, unnamed: int) -> None:
        """Add one batch."""
        self.records += records
        self.unnamed += unnamed
        if self._listener is not None:
            self._listener(Progress(records=self.records, total=self.total))
        if time.monotonic() - self._logged >= TELL_SECONDS:
            self._logged = time.monotonic()
            of = "" if self.total is None else f" of at most {self.total}"
            LOG.info("read the ids of %d records%s", self.records, of)
