"""What the verbs that watch share: which Kafka, if any, and how often.

What it is: options, and `watched`, which opens catalog and Kafka for a verb.
What it must not know: what is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delivery.cli.kafka import settings_in

if TYPE_CHECKING:
    from dedup.catalog.catalog import Catalog
    from delivery.kafka.port import Client

__all__ = ["Places", "places", "watching_options"]


@dataclass(frozen=True, slots=True)
class Places:
    """An open catalog, and Kafka where it was named."""

    catalog: Catalog
    client: Client | None


def watching_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command URL, `--kafka`, `--kafka-config` and `--client`; Kafka may be left out."""
    for option in (
        click.option("--client", help="confluent or kafka-python; whichever is there by default."),
        click.option(
            "--kafka-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file of Kafka's client options, key=value in lines, for TLS and logins.",
        ),
        click.option(
            "--kafka",
            metavar="HOST:PORT[,…]",
            help="The brokers. Without them only what the catalog knows is said.",
        ),
        click.argument("url"),
    ):
        function = option(function)
    return function


@contextmanager
def places(
    url: str, kafka: str | None, kafka_config: Path | None, client: str | None
) -> Iterator[Places]:
    """Open what a verb looks at, and close it behind the body."""
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    with ExitStack() as stack:
        catalog = stack.enter_context(opened(url))
        cluster = (
            stack.enter_context(open_client(kafka, settings_in(kafka_config), client))
            if kafka
            else None
        )
        yield Places(catalog, cluster)
