"""What a pipeline's stages may go through, as users and the command line ask for it.

What it is: `Life`, one method for each, over a catalog and a Kafka that are opened for it.
What it must not know: how anything is done, terminals.

Invariants:
    Nothing is done unless `perform=True` is said; what would be done is said the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dedup.errors import Unavailable
from delivery.host.adapters import open_topics
from delivery.host.starting import REKEYED_PARTITIONS
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.life.accept import accept_topic
from delivery.life.change import Change
from delivery.life.dedup import To, change_dedup
from delivery.life.leave import leave
from delivery.life.rename import rename
from delivery.life.reset import Begin, reset
from delivery.life.retire import retire
from delivery.life.undertaking import Hands
from delivery.life.versions import Version, versions
from delivery.operate.logs import Cluster
from delivery.operate.opening import opened
from delivery.operate.reporting import Report, silent
from delivery.points import At, nowhere

__all__ = ["Life"]


class Life:
    """The lives of the stages of a catalog.

    Args:
        catalog: its URL.
        kafka: "host:port,host:port".
        options: any option of Kafka's.
        client: which client library; None: whichever is there.
        report: is told what is being done.
        at: is told each place at which a test may let the process die.
    """

    def __init__(
        self,
        catalog: str,
        kafka: str,
        options: Mapping[str, Any] | None = None,
        client: str | None = None,
        *,
        report: Report = silent,
        at: At = nowhere,
    ) -> None:
        self._catalog = catalog
        self._kafka = kafka
        self._options = dict(options or {})
        self._client = client
        self._report = report
        self._at = at

    def __repr__(self) -> str:
        # Options and the catalog's URL may hold a password.
        return "Life()"

    def rename(self, stage: str, to: str, *, perform: bool = False) -> Change:
        """Let a stage go on under another name; see `delivery.life.rename`."""
        with self._hands() as (hands, _):
            return rename(hands, stage, to, perform=perform)

    def reset(
        self, stage: str, begin: Begin, *, forget_ids: bool = False, perform: bool = False
    ) -> Change:
        """Let a stage go on elsewhere than it stands; see `delivery.life.reset`."""
        with self._hands() as (hands, _):
            return reset(hands, stage, begin, forget_ids=forget_ids, perform=perform)

    def retire(self, stage: str, *, perform: bool = False) -> Change:
        """End a stage for good; see `delivery.life.retire`."""
        with self._hands() as (hands, _):
            return retire(hands, stage, perform=perform)

    def accept_topic(
        self, topic: str, *, writers: Collection[str] = (), perform: bool = False
    ) -> Change:
        """Take a topic that was deleted and created again for what it is; see `delivery.life.accept`."""
        with self._hands() as (hands, _):
            return accept_topic(hands, topic, writers=writers, perform=perform)

    def change_dedup(
        self,
        stage: str,
        to: To,
        *,
        dead_letters: bool = False,
        duplicates: bool = False,
        perform: bool = False,
    ) -> Change:
        """Let a stage deduplicate otherwise; see `delivery.life.dedup`.

        Args:
            stage: "stage" or "pipeline/stage".
            to: "partition" or "topic", as its declaration says from now on.
            dead_letters: whether it is declared with dead letters; what re-keys for it has the same.
            duplicates: whether it is declared with a topic of duplicates; likewise.
            perform: whether it is done.
        """
        with self._hands() as (hands, client):

            def make(name: str) -> Topic:
                return client.create(name, TopicSettings(partitions=REKEYED_PARTITIONS))

            asked = {"duplicates": duplicates, "dead-letters": dead_letters}
            aside = [name for name, wanted in asked.items() if wanted]
            return change_dedup(hands, stage, to, make, aside=aside, perform=perform)

    def leave(self, stage: str, *, group: str | None = None, perform: bool = False) -> Change:
        """Let a job without this library go on where a stage stands; see `delivery.life.leave`.

        Args:
            stage: "stage" or "pipeline/stage".
            group: a consumer group whose offsets are set to there; it has no members now.
            perform: whether it is done.

        Raises:
            Unavailable: the stage is left, and the group's offsets could not be set: say it again.
        """
        with self._hands() as (hands, client):
            change = leave(hands, stage, perform=perform)
            if group is not None and perform:
                self._commit(client, group, change)
            return change

    def versions(self, stage: str) -> list[Version]:
        """Say which version of a stage's code sealed what; see `delivery.life.versions`."""
        with opened(self._catalog) as catalog:
            return versions(catalog, stage)

    # Inside -----------------------------------------------------------------------------------

    @contextmanager
    def _hands(self) -> Iterator[tuple[Hands, Client]]:
        with (
            opened(self._catalog) as catalog,
            open_client(self._kafka, self._options, self._client) as client,
        ):
            hands = Hands(
                catalog=catalog,
                cluster=Cluster(client, self._report),
                sink=lambda names: open_topics(client, names),
                fresh=lambda: uuid.uuid4().bytes,
                report=self._report,
                at=self._at,
            )
            yield hands, client

    def _commit(self, client: Client, group: str, change: Change) -> None:
        for name, offsets in change.offsets.items():
            if not client.commit(group, name, offsets):
                raise Unavailable(
                    "set the offsets of a consumer group",
                    f"{group}, topic {name}",
                    "the stage is left, but these offsets were not set: let no member of the group "
                    "run, and say the same again; or begin with the offsets that it prints",
                )
