"""`delivery doctor`: what may be wrong with this machine, and what to do about it.

What it is: words around `doctor.examine`. What it must not know: what is checked.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from delivery.cli.output import Output, directory_option, verb

#: Where Cassandra listens unless told otherwise.
_CASSANDRA_PORT = 9042

_FOUND_SOMETHING = 1


@click.command(
    epilog="Example: `delivery doctor --cassandra db.example:9042` also looks at the settings "
    "of a Cassandra of yours."
)
@directory_option
@click.option("--cassandra", metavar="HOST[:PORT]", help="A Cassandra to look at as well.")
@verb
def command(out: Output, *, directory: Path, cassandra: str | None) -> None:
    """Check Java, jars, packages, drivers, disk and servers; say what to do about each.

    Changes nothing. Exits with 1 if something is broken.
    """
    from delivery.services.doctor import Verdict, examine  # noqa: PLC0415  keeps --help light

    contact = None
    if cassandra is not None:
        host, _, port = cassandra.partition(":")
        contact = (host, int(port) if port.isdigit() else _CASSANDRA_PORT)
    findings = []
    for finding in examine(directory, contact):
        out.progress(f"{finding.check}: {finding.verdict}")
        findings.append(finding)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<7} {finding.check:<24} {finding.found}")
        if finding.advice:
            lines.append(f"{'':<8}-> {finding.advice}")
    broken = [finding for finding in findings if finding.verdict is Verdict.BROKEN]
    lines.append(f"{len(broken)} broken" if broken else "nothing is broken")
    out.result(
        "\n".join(lines),
        {"healthy": not broken, "findings": [asdict(finding) for finding in findings]},
    )
    if broken:
        raise click.exceptions.Exit(_FOUND_SOMETHING)
