"""What the driver tells every task of one run of a plan: whose ids to ask, and which offsets.

What it is: `Token`, which travels as a local property of Spark's: tasks of every stage and every
attempt of a job get it, however deep in the user's plan they are.
What it must not know: verdicts, Spark.

Invariants:
    It holds the head that verdicts are made against, whole: a task never asks for a newer one.
    `run` is fresh for each run of the plan; what a task reports under another is of no account.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from dedup.errors import InvalidUsage
from dedup.formats.dropped import Run, decode_dropped, dropped_chunks
from dedup.formats.lane import decode_head, encode_head
from dedup.model import Head, Source, TopicId

__all__ = ["PROPERTY", "Token"]

#: The local property.
PROPERTY = "delivery.run"
#: It goes to every task of a job.
BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One run of a plan.

    Attributes:
        run: its name.
        lane: whose ids are asked.
        head: the sealed head that they are asked of.
        topics: identity of each topic by its name.
        ranges: source → the offsets that are to be judged: what lies before is sealed.
        judged: whether rows get verdicts; otherwise `drops` alone decides, as when a sealed
            micro-batch is entered again.
        drops: offsets that take no effect, whatever their verdict.
    """

    run: str
    lane: str
    head: Head
    topics: Mapping[str, TopicId]
    ranges: Mapping[Source, tuple[int, int]]
    judged: bool = True
    drops: tuple[Run, ...] = ()

    def encode(self) -> str:
        """Return it as the text of a property.

        Raises:
            InvalidUsage: it is too large for one.
        """
        names = {topic: name for name, topic in self.topics.items()}
        text = json.dumps(
            {
                "run": self.run,
                "lane": self.lane,
                "head": _text(encode_head(self.head)),
                "topics": {name: topic.hex() for name, topic in self.topics.items()},
                "ranges": [
                    [names[source.topic], source.partition, start, end]
                    for source, (start, end) in sorted(self.ranges.items())
                ],
                "judged": self.judged,
                "drops": [_text(chunk) for chunk in dropped_chunks(list(self.drops))],
            }
        )
        if len(text) > BYTES_MAX:
            raise InvalidUsage(
                "tell tasks what to judge",
                f"{self.lane}: {len(text)} bytes",
                f"more than {BYTES_MAX} go to no task; nothing was sealed: set maxOffsetsPerTrigger "
                "lower, or endingOffsets of a bounded run nearer",
            )
        return text

    @staticmethod
    def decode(text: str) -> Token:
        """Return what `encode` wrote."""
        said = json.loads(text)
        topics = {name: TopicId(bytes.fromhex(topic)) for name, topic in said["topics"].items()}
        place = f"the head of {said['lane']} as the driver told it"
        return Token(
            run=said["run"],
            lane=said["lane"],
            head=decode_head(b64decode(said["head"]), place),
            topics=topics,
            ranges={
                Source(topics[name], partition): (start, end)
                for name, partition, start, end in said["ranges"]
            },
            judged=said["judged"],
            drops=tuple(
                run for chunk in said["drops"] for run in decode_dropped(b64decode(chunk), place)
            ),
        )


def _text(blob: bytes) -> str:
    return b64encode(blob).decode()
