"""`delivery metrics`: an endpoint for Prometheus beside any pipeline, from its catalog.

What it is: words around `delivery.watch.collector` and `delivery.watch.endpoint`.
What it must not know: what is measured.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delivery.cli.kafka import settings_in
from delivery.cli.output import Output, verb
from delivery.cli.watching import watching_options

if TYPE_CHECKING:
    from delivery.watch.collector import Collector

_PORT = 9464


@click.command(
    epilog="Example: `delivery metrics sqlite:shop.db --kafka localhost:9092 --port 9464`, and "
    "Prometheus scrapes that port; `delivery metrics sqlite:shop.db --once` prints them."
)
@watching_options
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, help="9464; 0: a free one.")
@click.option("--host", default="127.0.0.1", help="127.0.0.1; 0.0.0.0: whoever can reach it.")
@click.option("--once", is_flag=True, help="Print the metrics once, and serve nothing.")
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    port: int,
    host: str,
    once: bool,
) -> None:
    """Serve metrics of the catalog at URL to Prometheus until it is interrupted.

    A pipeline serves the same by itself with Delivery(..., metrics=9464); this is for receivers
    that came and went, for several pipelines in one catalog, for a driver that is down. Counters
    of records begin with the first look. What each metric says: docs/metrics.md.
    """
    from dedup.catalog.open import open_catalog  # noqa: PLC0415  keeps --help light
    from delivery.kafka.opening import open_client  # noqa: PLC0415  see above
    from delivery.operate.opening import opened  # noqa: PLC0415  see above
    from delivery.watch.collector import Collector  # noqa: PLC0415  see above

    with opened(url) as catalog:
        where = catalog.store.url  # a mistyped URL ends here, and not in metrics that say "down"
    brokers = partial(open_client, kafka, settings_in(kafka_config), client) if kafka else None
    collector = Collector(
        partial(open_catalog, url, create=False), brokers, lambda: time.time_ns() // 1_000_000
    )
    try:
        if once:
            found = collector.look()
            document = {"catalog": where, "metrics": found.document()}
            out.result(found.text().rstrip(), document, as_is=True)
        else:
            _serve(out, collector, (host, port), where)
    finally:
        collector.close()


def _serve(out: Output, collector: Collector, address: tuple[str, int], where: str) -> None:
    """Answer until somebody interrupts, which is how it is meant to end."""
    from delivery.watch.endpoint import Endpoint  # noqa: PLC0415  keeps --help light

    endpoint = Endpoint(address, lambda: collector.look().text())
    try:
        out.line(f"metrics of {where} on {endpoint.url}", {"catalog": where, "url": endpoint.url})
        threading.Event().wait()
    except KeyboardInterrupt:
        out.progress("stopped")
    finally:
        endpoint.close()
