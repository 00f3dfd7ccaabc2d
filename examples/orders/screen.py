"""The screen at the end, and the lines on the way to it.

What it is: `Teller`, which says something at least every two seconds, and `screen`.
What it must not know: Kafka, processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from orders.contender import Contender
from orders.outcome import Outcome

#: Longer silence looks like a hang.
SILENCE_SECONDS_MAX = 2.0
WORD, NUMBER = 34, 16


class Teller:
    """Says what goes on, with the seconds since the beginning; says it again if nobody speaks."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._describe: Callable[[], str] = lambda: "setting up"
        self._said_at = self.began
        self._over = threading.Event()
        self._turn = threading.Lock()
        threading.Thread(target=self._fill, daemon=True).start()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def __call__(self, line: str) -> None:
        """Say something now."""
        with self._turn:
            self._said_at = time.monotonic()
            print(f"{self.seconds:5.0f} s  {line}", flush=True)

    def now(self, what: str | Callable[[], str]) -> None:
        """Say what goes on from here, now and whenever it is quiet."""
        self._describe = what if callable(what) else lambda: what
        self(self._describe())

    def end(self) -> None:
        """Say nothing more."""
        self._over.set()

    def _fill(self) -> None:
        while not self._over.wait(SILENCE_SECONDS_MAX / 10):
            if time.monotonic() - self._said_at > SILENCE_SECONDS_MAX * 0.8:
                self(self._describe())


def screen(
    sent: tuple[int, int], results: Sequence[tuple[Contender, Outcome]], more: Iterable[str]
) -> Iterable[str]:
    """Yield the lines of the last screen.

    Args:
        sent: orders, and repeats of them.
        results: who ran, and what came out.
        more: what else is to be said.
    """
    rows: list[tuple[str, Callable[[Contender, Outcome], int]]] = [
        ("Python workers killed -9", lambda who, _: who.workers_killed),
        ("drivers killed -9", lambda who, _: who.drivers_killed),
        ("drivers that ended by themselves", lambda who, _: who.ended),
        ("", lambda _, __: 0),
        ("effects out (invoices)", lambda _, what: what.effects),
        ("identical copies, dropped by id", lambda _, what: what.repeats),
        ("orders lost", lambda _, what: what.lost),
        ("orders doubled", lambda _, what: what.doubled),
        ("  of those, published only once", lambda _, what: what.doubled_once),
        ("orders in conflicting versions", lambda _, what: what.conflicting),
    ]
    yield ""
    yield f"  {'orders in':<{WORD}}{sent[0]:>{NUMBER},}"
    yield f"  {'repeated by the publisher':<{WORD}}{sent[1]:>{NUMBER},}"
    yield ""
    yield f"  {'':<{WORD}}" + "".join(f"{who.name:>{NUMBER}}" for who, _ in results)
    for word, number in rows:
        numbers = "".join(f"{number(who, what):>{NUMBER},}" for who, what in results)
        yield f"  {word:<{WORD}}{numbers}" if word else ""
    yield ""
    yield from (f"  {line}" for line in more)
