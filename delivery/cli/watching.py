"""What the verbs that watch share: which Kafka, if any, and how often.

What it is: options; `places`, which opens catalog and Kafka for a verb; `observed`, which looks at
all that can still be read.
What it must not know: what is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delivery.cli.durations import DURATION
from delivery.cli.kafka import settings_in
from delivery.cli.output import Output

if TYPE_CHECKING:
    from dedup.catalog.catalog import Catalog
    from delivery.kafka.port import Client
    from delivery.watch.observed import Observed

__all__ = ["GUARANTEES", "Places", "observed", "observing_options", "places", "watching_options"]

#: What a stage's guarantee is called where people read it.
GUARANTEES = {"exact": "PROTECTED", "degraded": "DEGRADED", "unknown": "UNKNOWN"}


@dataclass(frozen=True, slots=True)
class Places:
    """An open catalog, and Kafka where it was named."""

    catalog: Catalog
    client: Client | None


def watching_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command URL, `--kafka`, `--kafka-config` and `--client`; Kafka may be left out."""
    for option in (
        click.option(
            "--client", help="wire, confluent or kafka-python; what serves best by default."
        ),
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


def home_option(filters: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--home`; `filters` says what becomes of those of this host."""
    return click.option(
        "--home",
        envvar="DELIVERY_HOME",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"This host's directory of indexes, as stages have it, if it is not its own: {filters}.",
    )


def observing_options(filters: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--since` and `--home`; `filters` says what becomes of those of this host."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        since = click.option(
            "--since", type=DURATION, help="Only what was sealed in the last 24h, say; else all."
        )
        return since(home_option(filters)(function))

    return decorate


def observed(
    out: Output,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    *,
    since: int | None,
    home: Path | None,
) -> Observed:
    """Look at everything that can still be read of a catalog's stages."""
    from dedup.local.home import home_of  # noqa: PLC0415  keeps --help light
    from delivery.watch.observed import observe  # noqa: PLC0415  see above

    # As stages that are told nothing find it.
    own = home_of(None if home is None else str(home))
    now_ms = time.time_ns() // 1_000_000
    with places(out, url, kafka, kafka_config, client) as at:
        return observe(
            at.catalog,
            at.client,
            now_ms,
            since_ms=now_ms - since if since else 0,
            home=None if own is None else own.root,
            report=out.step,
        )


@contextmanager
def places(
    out: Output, url: str, kafka: str | None, kafka_config: Path | None, client: str | None
) -> Iterator[Places]:
    """Open what a verb looks at, and close it behind the body."""
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    with ExitStack() as stack:
        catalog = stack.enter_context(opened(url))
        cluster = (
            stack.enter_context(open_client(kafka, settings_in(kafka_config), client, out.progress))
            if kafka
            else None
        )
        yield Places(catalog, cluster)
