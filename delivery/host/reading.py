"""What a process's consumers have, and one wait for all of them and for what is on its way out.

What it is: `read`.
What it must not know: lanes, what becomes of the records.

Invariants:
    Nobody is waited for while somebody else has something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from delivery.kafka.port import Consumer, Fetched
from delivery.kafka.waiting import Watched, await_news
from delivery.ports import Emitter

__all__ = ["POLL_BYTES_MAX", "POLL_RECORDS_MAX", "read"]

#: What one poll returns at most.
POLL_RECORDS_MAX = 20_000
POLL_BYTES_MAX = 4 * 1024 * 1024


def read(
    consumers: Mapping[str, Consumer], emitters: Collection[Emitter], seconds: float
) -> Iterator[tuple[str, Fetched]]:
    """Yield what there is, with the name of whose it is; wait so long if it is nothing at all.

    Where everybody can be waited for at once, whatever lands matters as much as what comes in: behind
    it the next may be sent.
    """
    if not seconds or not all(isinstance(one, Watched) for one in consumers.values()):
        yield from _polled(consumers, seconds)
        return
    found = list(_polled(consumers, 0.0))
    if not found:
        together = [one for one in (*consumers.values(), *emitters) if isinstance(one, Watched)]
        await_news(together, seconds)
        found = list(_polled(consumers, 0.0))
    yield from found


def _polled(consumers: Mapping[str, Consumer], seconds: float) -> Iterator[tuple[str, Fetched]]:
    got = False
    for name, consumer in consumers.items():
        timeout = 0.0 if got else seconds / len(consumers)
        for one in consumer.poll(
            max_records=POLL_RECORDS_MAX, max_bytes=POLL_BYTES_MAX, timeout=timeout
        ):
            got = True
            yield name, one
