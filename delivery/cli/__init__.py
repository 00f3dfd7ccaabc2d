"""The `delivery` command: one file per verb, loaded when it is used.

What it is: `main`, the console entry, and the group that finds the verbs.
What it must not know: what a verb does. Nothing heavier than click is imported here, so that
`delivery --help` answers at once after a plain `pip install`.

Invariants:
    A verb is a module of this package named in `VERBS` whose `command` is a click command with a
    help text, an example and `--json` (`output.verb` gives it the last). A verb of several words
    is a package whose `command` is a group of the same kind.
    Exit codes: 0 done, 2 wrong usage, 3 to 6 the kind of error (`dedup.errors`), 70 an exception
    that nobody foresaw, 130 interrupted; 1 only where a verb says what it means.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

__all__ = ["VERBS", "main"]

#: Every verb, and what it is for in one line of a terminal.
VERBS = {
    "up": "Start a Kafka and a Cassandra for this directory.",
    "down": "Stop this directory's servers; their data stays.",
    "status": "Say how this directory's servers are.",
    "logs": "Print the last lines of a server's log.",
    "doctor": "Say what on this machine does not fit.",
    "stage": "List stages; rename, reset, retire, change them.",
    "catalog": "Inspect, verify, back up, restore, mend a catalog.",
    "audit": "Prove that every record counts exactly once.",
    "explain": "Tell the story of one record.",
    "replay": "Send sealed outputs once more, as they are.",
    "plan": "Say what a pipeline will be, before it runs.",
    "chaos": "Run a job, kill it at random, and prove the result.",
    "differences": "Tell which code answers differently every time.",
    "lag": "Say what waits for each stage, and for how long.",
    "guarantee": "Say whether every stage keeps its promise, or why not.",
    "top": "Show every stage live.",
    "metrics": "Serve metrics to Prometheus.",
    "report": "Write a page about the stages.",
    "advice": "Say what to change about the stages.",
    "spark-options": "Print the options with which Spark runs stages.",
}

#: How URLs of catalogs begin.
CATALOGS = ("sqlite:", "cassandra:", "memory:")

#: As sysexits.h has it. Python's own 1 would be what `delivery audit` says of wrong data.
FAULT = 70
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
        words: what each is for, in one line of a terminal.
        options: whatever a group takes.
    """

    def __init__(self, verbs: Mapping[str, str], words: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.verbs = verbs
        self.words = words

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Name the verbs, in the order a newcomer needs them."""
        return list(self.verbs)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import a verb."""
        if name not in self.verbs:
            return None
        command = importlib.import_module(self.verbs[name]).command
        assert isinstance(command, click.Command)
        command.short_help = self.words[name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that is meant; where there is none, name the one that may be."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], self.verbs, 1)
            if not close or close[0] in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None


class Root(Verbs):
    """All verbs. What is asked of a catalog's status is asked of its stages, not of servers."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that is meant."""
        if args[0] == "status" and any(one.startswith(CATALOGS) for one in args[1:]):
            args = ["guarantee", *args[1:]]
        return super().resolve_command(ctx, args)


@click.command(
    cls=Root,
    verbs={name: f"delivery.cli.{name.replace('-', '_')}" for name in VERBS},
    words=VERBS,
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
        _refuse(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("delivery: interrupted; running the same command again is safe", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  whatever it is, it must not look like a verdict
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        click.echo(f"delivery: unforeseen, and no word about the data: {what}", err=True)
        sys.exit(FAULT)


def _refuse(error: click.ClickException) -> None:
    """Say what is wrong with the line, as the line itself wants it said."""
    given = sys.argv[1:]
    ours = given[: given.index("--")] if "--" in given else given
    if "--json" not in ours:
        error.show()
        return
    from dedup.errors import InvalidUsage  # noqa: PLC0415  keeps --help light
    from delivery.cli.output import Output  # noqa: PLC0415  see above

    context = error.ctx if isinstance(error, click.UsageError) else None
    verb = "delivery" if context is None else context.command_path
    hint = f"{error.format_message()}; nothing was done: see `{verb} --help`"
    Output(as_json=True).error(InvalidUsage("read the command line", " ".join(given), hint))
