"""What waits at the doors of lanes: how many records, and since when the oldest.

What it is: `Doors`, the ends of logs and their first waiting records, from Kafka; and `guessed_ms`,
what the catalog alone says of them.
What it must not know: how it is shown, the clock.

Invariants:
    What is not known is None, never 0.
    A look takes one question a topic, and one record of each partition that is behind; waiting for
    these is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from dedup.catalog.catalog import Catalog
from dedup.errors import DeliveryError
from dedup.model import LaneRow, Source, TopicId
from delivery.header import NAME, decode_header
from delivery.kafka.port import Bounds, Client, Topic

__all__ = ["Doors", "delivered_to", "guessed_ms"]

#: How long the first waiting records are waited for; of those that did not come the age is unknown.
FIRST_SECONDS_MAX = 2.0
POLL_SECONDS = 0.1
#: What one poll returns, and what is fetched ahead: of each partition one record is wanted.
POLL_RECORDS_MAX = 500
POLL_BYTES_MAX = 1024 * 1024
#: What one look reads first records of, the furthest behind first.
PARTITIONS_MAX = 256


class Doors:
    """Kafka, as far as waiting records go. One look; make another for the next.

    Args:
        client: the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        names = client.names()
        self.topics: dict[TopicId, Topic] = {
            topic.id: topic for topic in client.describe(names).values()
        }
        self._bounds: dict[TopicId, Bounds] = {}

    def ask_for(self, topics: Iterable[TopicId]) -> None:
        """Ask now for what these topics hold, so that what follows waits for nobody.

        Raises:
            Unavailable: no answer.
        """
        for identity in topics:
            self.bounds(identity)

    def topic(self, identity: TopicId) -> Topic | None:
        """Return a topic that is there."""
        return self.topics.get(identity)

    def settings_of(self, name: str) -> dict[str, str]:
        """Return the settings of a topic, as far as they may be read."""
        return self._client.settings_of(name)

    def bounds(self, identity: TopicId) -> Bounds | None:
        """Return what the log of a topic holds; None: there is no such topic."""
        topic = self.topics.get(identity)
        if topic is None:
            return None
        if identity not in self._bounds:
            self._bounds[identity] = self._client.bounds(topic.name, topic.sources)
        return self._bounds[identity]

    def low(self, source: Source) -> int | None:
        """Return the first offset that is still there."""
        found = self.bounds(source.topic)
        return None if found is None else found.low.at(source)

    def end(self, source: Source) -> int | None:
        """Return the offset behind the last record."""
        found = self.bounds(source.topic)
        return None if found is None else found.high.at(source)

    def first_ms(self, positions: Mapping[Source, int]) -> dict[Source, int]:
        """Return when the first records at or behind these positions were made, where it came.

        A record of ours says when it was minted, any other carries its timestamp.
        """
        found: dict[Source, int] = {}
        topics: dict[TopicId, dict[Source, int]] = {}
        for source, offset in list(positions.items())[:PARTITIONS_MAX]:
            at = max(offset, self.low(source) or 0)
            if at < (self.end(source) or 0):
                topics.setdefault(source.topic, {})[source] = at
        if not topics:
            return found
        consumer = self._client.consumer(buffer_bytes=POLL_BYTES_MAX)
        try:
            waiting = {source for wanted in topics.values() for source in wanted}
            for identity, wanted in topics.items():
                consumer.add(self.topics[identity].name, wanted)
            deadline = time.monotonic() + FIRST_SECONDS_MAX
            while waiting and time.monotonic() < deadline:
                for fetched in consumer.poll(
                    max_records=POLL_RECORDS_MAX, max_bytes=POLL_BYTES_MAX, timeout=POLL_SECONDS
                ):
                    source = fetched.source
                    if len(fetched.batch) and source in waiting:
                        (record,) = fetched.batch.records([0])
                        header = decode_header(record.header(NAME) or b"")
                        made = header.mark.minted_at_ms if header else record.timestamp_ms
                        found[source] = made
                    if source in found or fetched.position >= (self.end(source) or 0):
                        waiting.discard(source)
                        consumer.remove([source])
        except DeliveryError:
            # A log that was cut meanwhile, a broker that went: what has come is still true.
            return found
        finally:
            consumer.close()
        return found


def delivered_to(source: Source, rows: Iterable[LaneRow]) -> int | None:
    """Return the offset behind what lanes of the catalog have delivered to a partition."""
    found = [at for row in rows if (at := row.ack.delivered.at(source)) is not None]
    return max(found) if found else None


def guessed_ms(
    catalog: Catalog, row: LaneRow, source: Source, senders: Mapping[str, LaneRow]
) -> int | None:
    """Return when the oldest seal was minted of which something may wait, from the catalog alone.

    A lane says up to which seal of a sender everything is read. The one behind it is the oldest
    whose outputs can wait; it may have had none for this partition, so the truth may be younger.
    """
    position = row.head.frontier.at(source) or 0
    read = {(one.sender, one.topic): one.seq for one in row.head.read_seqs}
    found = []
    for lane, sender in senders.items():
        if (sender.ack.delivered.at(source) or 0) <= position:
            continue
        seq = read.get((lane, source.topic), 0) + 1
        if seq <= sender.head.ref.seq:
            seal = catalog.seal(lane, sender.head.incarnation_of(seq), seq)
            found.append(seal.minted_at_ms if seal else sender.head.minted_at_ms)
    return min(found) if found else None
