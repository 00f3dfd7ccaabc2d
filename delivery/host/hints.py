"""What monitors of consumer groups are told of a stage that has no consumer of its own.

What it is: `Hints`.
What it must not know: lanes, seals, who asks a group for its lag.

Invariants:
    Nothing depends on it: it never fails, and where it is refused it holds nobody up again soon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from delivery.kafka.port import Client

__all__ = ["Hints"]

LOG = logging.getLogger(__name__)

#: A cluster that refuses, or is slow to answer, is asked again after that.
QUIET_SECONDS = 60.0


class Hints:
    """Tells Kafka how far a stage is, under a group's name.

    Args:
        client: the cluster.
        group: which no consumer joins.
    """

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._quiet_until = 0.0
        self._failed = False

    def tell(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets behind what is sealed, by partition."""
        if not offsets or time.monotonic() < self._quiet_until:
            return
        why = "the cluster refused"
        try:
            if self._client.commit(self._group, topic, offsets):
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch is sealed
            why = type(error).__name__  # its text may hold what nobody should read
        self._quiet_until = time.monotonic() + QUIET_SECONDS
        if not self._failed:
            self._failed = True
            LOG.warning(
                "offsets of group %s are not shown to monitors (%s); nothing else depends on them",
                self._group,
                why,
            )
