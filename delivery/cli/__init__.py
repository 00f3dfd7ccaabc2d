"""The `delivery` command: one file per verb, loaded when it is used.

What it is: `main`, the console entry, and the group that finds the verbs.
What it must not know: what a verb does. Nothing heavier than click is imported here, so that
`delivery --help` answers at once after a plain `pip install`.

Invariants:
    A verb is a module of this package named in `VERBS` whose `command` is a click command with a
    help text, an example and `--json` (`output.verb` gives it the last). A verb of several words
    is a package whose `command` is a group of the same kind.
    Exit codes: 0 done, 2 wrong usage, 3 to 6 the kind of error (`dedup.errors`), 130 interrupted;
    1 only where a verb says what it means.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["VERBS", "main"]

VERBS = (
    *("up", "down", "status", "logs", "doctor"),
    *("stage", "catalog", "audit", "explain", "replay", "plan", "chaos", "differences"),
    *("lag", "guarantee", "top", "metrics", "report", "advice"),
    "spark-options",
)

INTERRUPTED = 130

_HELP = """Exactly-once delivery for PySpark and Kafka.

Every verb explains itself with --help and takes --json. Completion for your shell:

\b
  bash: eval "$(_DELIVERY_COMPLETE=bash_source delivery)"
  zsh:  eval "$(_DELIVERY_COMPLETE=zsh_source delivery)"
  fish: _DELIVERY_COMPLETE=fish_source delivery | source
"""

_EPILOG = """Example: `delivery up` starts Kafka and Cassandra for this directory, `delivery status`
says how they are, `delivery down` stops them."""


class Verbs(click.Group):
    """A group whose commands are modules, imported by name; `verbs` says which.

    Args:
        verbs: the modules by the names of the verbs.
        options: whatever a group takes.
    """

    def __init__(self, verbs: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.verbs = verbs

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Name the verbs, in the order a newcomer needs them."""
        return list(self.verbs)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import a verb."""
        if name not in self.verbs:
            return None
        command = importlib.import_module(self.verbs[name]).command
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=Verbs,
    verbs={name: f"delivery.cli.{name.replace('-', '_')}" for name in VERBS},
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="exactly-once-delivery", prog_name="delivery")
def delivery() -> None:
    """Exist, so that click has something to hang the verbs on."""


def main() -> None:
    """Run the command line."""
    if sys.flags.optimize:
        click.echo(
            "delivery: refuse to run: python -O switches off the assertions that guard your "
            "data; nothing was done; run it without -O (and without PYTHONOPTIMIZE)",
            err=True,
        )
        sys.exit(2)
    try:
        sys.exit(delivery.main(prog_name="delivery", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("delivery: interrupted; running the same command again is safe", err=True)
        sys.exit(INTERRUPTED)
