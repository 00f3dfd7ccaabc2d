"""What the tests of a stage's life share: hands over a house, and a store that dies at any write.

What it is: `hands`, `Mortal`, `killed_everywhere`.
What it must not know: any single verb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from delivery.life.undertaking import Hands
from delivery.operate.logs import Cluster
from sinks.memory import MemoryEmitter
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient

#: Calls of a store after which something is different.
WRITES = (
    *("append", "create", "reincarnate", "acknowledge", "raise_collected", "delete_entries"),
    *("put", "delete", "replace_list", "forget_losers"),
)
#: No verb here writes so often.
WRITES_MAX = 200


class DiedError(BaseException):
    """The process is gone: nobody may catch this."""


class Mortal:
    """A store that dies with its process before or after one of its writes."""

    def __init__(self, store: Any, number: int, *, after: bool) -> None:
        self._store = store
        self._left = number
        self._after = after
        self.died = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._mortal(found) if name in WRITES else found

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                self.died = True
                raise DiedError
            answer = call(*arguments, **named)
            if self._left == 0:
                self.died = True
                raise DiedError
            return answer

        return write


def hands(house: House, store: Any = None, client: MemoryClient | None = None) -> Hands:
    """Return what verbs work with in a house."""
    return Hands(
        catalog=Catalog(store or house.store, inline_bytes_max=house.inline_bytes_max),
        cluster=Cluster(client or MemoryClient(house.broker)),
        sink=lambda names: MemoryEmitter(house.broker, names),
        fresh=house.fresh,
    )


def killed_everywhere(
    furnish: Callable[[House], None], verb: Callable[[Hands], object]
) -> Iterator[House]:
    """Kill a verb before and after each of its writes, run it again, and yield each house."""
    for after in (False, True):
        for number in range(1, WRITES_MAX):
            house = House(MemoryStore(), inline_bytes_max=0)
            furnish(house)
            mortal = Mortal(house.store, number, after=after)
            try:
                verb(hands(house, mortal))
            except DiedError:
                verb(hands(house))
            if not mortal.died:
                break
            yield house
        else:
            raise AssertionError("it writes for ever")
