"""`delivery audit`: whether Kafka holds what the catalog promises, once each.

What it is: words around `delivery.operate.auditing.audit`. What it must not know: what is checked.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dedup.errors import Unavailable
from delivery.cli.durations import DURATION
from delivery.cli.kafka import kafka_options, settings_in, ways_in
from delivery.cli.output import Output, verb
from delivery.cli.tables import number

if TYPE_CHECKING:
    from delivery.checker import Finding
    from delivery.operate.auditing import Audited

_FOUND_SOMETHING = 1


@click.command(
    epilog="Example: `delivery audit sqlite:shop.db --kafka localhost:9092` proves every stage, "
    "`delivery audit sqlite:shop.db --kafka localhost:9092 --stage price --id-from header:id` one."
)
@click.argument("url")
@kafka_options
@click.option("--stage", help="Only this stage, or pipeline/stage.")
@click.option(
    "--id-from",
    "ways",
    multiple=True,
    metavar="[STAGE=]WAY",
    help="How publishers name their records, as the stage says it: header:NAME, key, value, "
    "json:FIELD. Found out from the ids that were decided if it is left out.",
)
@click.option(
    "--window",
    type=DURATION,
    help="The stages' window, if ids were let go by `delivery catalog compact --window`.",
)
@click.option("--finished", is_flag=True, help="Everything must be sealed and delivered by now.")
@click.option("--all", "everything", is_flag=True, help="Print all findings, not only the first.")
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    stage: str | None,
    ways: tuple[str, ...],
    window: int | None,
    finished: bool,
    everything: bool,
) -> None:
    """Prove that every input has exactly one effect and every output a sealed origin.

    Reads the raw topics and the raw catalog at URL beside live jobs, with a checker that shares no
    code with what it checks. It takes the topics into memory, about 2 kB a record. Exits with 0 if
    everything is proved, with 1 if something is wrong, with 3 if nothing is wrong but a lane cannot
    be proved, because a part of its topics was deleted.
    """
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.auditing import Terms, audit  # noqa: PLC0415  see above
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    terms = Terms(ways=ways_in(ways), window_ms=window, finished=finished)
    began = time.monotonic()
    with opened(url) as catalog, open_client(kafka, settings_in(kafka_config), client) as cluster:
        lanes = chosen(catalog, stage)
        found = audit(catalog, Cluster(cluster, out.step), lanes, terms, out.progress)
        where = catalog.store.url
    seconds = time.monotonic() - began
    lines = _findings(found, window, everything=everything)
    lines += [f"not proved: {lane}: {why}" for lane, why in found.unproved.items()]
    lines.append(
        f"{number(len(found.proved))} lanes, {number(found.inputs)} inputs, "
        f"{number(found.records)} records in {seconds:.1f} s"
    )
    lines.append(_VERDICTS[found.verdict])
    out.result("\n".join(lines), {"catalog": where, "seconds": seconds} | found.document())
    if found.findings:
        raise click.exceptions.Exit(_FOUND_SOMETHING)
    if found.verdict != "exact":
        raise click.exceptions.Exit(Unavailable.exit_code)


_VERDICTS = {
    "exact": "exact: every input has one effect, every output a sealed origin",
    "broken": "BROKEN: stop the stages that the findings name, keep a copy of catalog and topics, and "
    "look at a record with `delivery explain`",
    "unproved": "nothing is wrong with what could be looked at; not all could be proved",
}


def _findings(found: Audited, window: int | None, *, everything: bool) -> list[str]:
    shown = found.findings if everything else found.findings[:1]
    lines = [str(finding) for finding in shown]
    if len(found.findings) > len(shown):
        lines.append(f"and {len(found.findings) - len(shown)} more findings; --all prints them")
    if window is None and found.findings and all(_may_be_let_go(one) for one in found.findings):
        lines.append(
            "if ids were let go by `delivery catalog compact --window`, say --window here too"
        )
    return lines


def _may_be_let_go(finding: Finding) -> bool:
    return finding.kind.name == "NOT_DECIDED"
