"""How a verb is told which Kafka is meant, and how publishers name their records.

What it is: options shared by the verbs that read topics.
What it must not know: what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from dedup.errors import InvalidUsage

__all__ = ["kafka_options", "settings_in", "ways_in"]


def kafka_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--kafka`, `--kafka-config` and `--client`."""
    for option in (
        click.option(
            "--client", help="wire, confluent or kafka-python; what serves best by default."
        ),
        click.option(
            "--kafka-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file of Kafka's client options, key=value in lines, for TLS and logins.",
        ),
        click.option("--kafka", required=True, metavar="HOST:PORT[,…]", help="The brokers."),
    ):
        function = option(function)
    return function


def settings_in(file: Path | None) -> dict[str, str]:
    """Return the options in a file like those of Kafka's own tools.

    Raises:
        InvalidUsage: a line is none; it is not repeated, because there may be a secret in it.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text().splitlines() if file else (), 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        key, separator, value = text.partition("=")
        if not separator:
            raise InvalidUsage(
                "read Kafka's options", f"{file} line {number}", "write key=value; nothing was done"
            )
        found[key.strip()] = value.strip()
    return found


def ways_in(texts: Iterable[str]) -> dict[str, str]:
    """Return how records are named by stage, from "STAGE=WAY" or "WAY"."""
    found = {}
    for text in texts:
        stage, separator, way = text.rpartition("=")
        found[stage if separator else ""] = way
    return found
