"""`delivery audit`: whether Kafka holds what the catalog promises, once each.

What it is: words around `delivery.operate.auditing.audit`. What it must not know: what is checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dedup.errors import InvalidUsage, Unavailable
from delivery.cli.durations import BY_STAGE, DURATION
from delivery.cli.kafka import kafka_options, settings_in, ways_in
from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import number

if TYPE_CHECKING:
    from dedup.catalog.catalog import Catalog
    from delivery.checker import Finding
    from delivery.operate.auditing import Audited
    from delivery.operate.logs import Cluster

_FOUND_SOMETHING = 1
_SECOND_MS = 1000
#: Servers that do not answer so often in a row are not busy, they are gone.
_FAILURES_MAX = 5


@click.command(
    epilog="Example: `delivery audit sqlite:shop.db --kafka localhost:9092` proves every stage, "
    "`delivery audit sqlite:shop.db --kafka localhost:9092 --stage price --id-from header:id` one, "
    "`--follow --state shop.proved` proves what comes, all the time, "
    "`--since 26h --until 2h` one day, `--offsets orders/0/17..42` what became of some inputs."
)
@click.argument("url")
@kafka_options
@click.option("--stage", help="Only this stage, or pipeline/stage.")
@click.option(
    "--id-from",
    "ways",
    multiple=True,
    metavar="[STAGE=]WAY",
    help="How publishers name their records where seals do not say it, as the stage did: "
    "header:NAME, key, value, json:FIELD. Found out from the ids that were decided if left out.",
)
@click.option(
    "--window",
    "windows",
    type=BY_STAGE,
    multiple=True,
    help="The stages' window, or that of one of them, in place of what each seal says: what repeats later may take effect "
    "again. Where neither says one such repeats are noted, and none is called right.",
)
@click.option("--finished", is_flag=True, help="Everything must be sealed and delivered by now.")
@click.option("--all", "everything", is_flag=True, help="Print all findings, not only the first.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that remembers what was proved: the next audit looks at what came since. It holds "
    "digests: 24 bytes an input of the last two windows, 56 an output that its topic still has.",
)
@click.option(
    "--since",
    type=DURATION,
    help="Only what was sealed so long ago or later: 2h. What was before is believed.",
)
@click.option(
    "--until",
    type=DURATION,
    help="Only what was sealed longer ago than that. What came after is believed.",
)
@click.option(
    "--offsets",
    multiple=True,
    metavar="TOPIC/P/FROM..TO",
    help="Only the seals that read these inputs, the last one included: orders/0/17..42. FROM or TO "
    "may be left out. What was before and after is believed.",
)
@click.option(
    "--follow", "-f", is_flag=True, help="Go on until interrupted, or something is wrong."
)
@click.option(
    "--every", type=DURATION, default=10_000, show_default="10s", help="With --follow: how often."
)
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    everything: bool,
    state: Path | None,
    follow: bool,
    every: int,
    databases: tuple[str, ...],
    **terms: Any,
) -> None:
    """Prove that every input has exactly one effect and every output a sealed origin.

    Reads the raw topics and the raw catalog at URL beside live jobs, with a checker that shares no
    code with what it checks, and keeps digests of records, not the records. Lanes that a receiver
    keeps in a database are read there. Exits with 0 if everything is proved, with 1 if something is
    wrong, with 3 if nothing is wrong but a lane cannot be proved, because a part of its topics was
    deleted or its database is not here.
    """
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import opened  # noqa: PLC0415  see above
    from delivery.operate.reach import offsets_in  # noqa: PLC0415  see above

    terms["offsets"] = tuple(map(offsets_in, terms["offsets"]))
    _refuse(state, terms, follow=follow)
    with (
        opened(url) as catalog,
        open_client(kafka, settings_in(kafka_config), client, out.progress) as cluster,
    ):
        auditor = _Auditor(
            out, catalog, Cluster(cluster, out.step), state, terms, databases=databases
        )
        if not follow:
            auditor.once(everything=everything)
            return
        pause, failures = threading.Event(), 0
        while True:
            try:
                auditor.round()
            except Unavailable as error:
                failures += 1
                if failures == _FAILURES_MAX:
                    raise
                out.progress(f"it does not answer, and is asked again: {error}")
            else:
                failures = 0
            pause.wait(every / _SECOND_MS)


def _refuse(state: Path | None, terms: Mapping[str, Any], *, follow: bool) -> None:
    """Refuse ranges where there can be none."""
    given = [f"--{name}" for name in ("since", "until", "offsets") if terms[name] not in (None, ())]
    if state is not None and given:
        raise InvalidUsage(
            "audit a catalog",
            f"--state {' '.join(given)}",
            "what is only believed is not remembered as proved; nothing was done: leave one out",
        )
    ended = terms["until"] is not None or any(one.last is not None for one in terms["offsets"])
    if follow and ended:
        raise InvalidUsage(
            "audit a catalog",
            f"--follow {' '.join(given)}",
            "a range that has ended holds the same seals each time; nothing was done: leave its end "
            "or --follow out",
        )


class _Auditor:
    """Audits of one catalog, each of which goes on where the last one ended."""

    def __init__(
        self,
        out: Output,
        catalog: Catalog,
        cluster: Cluster,
        state: Path | None,
        terms: Mapping[str, Any],
        *,
        databases: Sequence[str],
    ) -> None:
        from delivery.operate.proved import load  # noqa: PLC0415  keeps --help light
        from delivery.operate.proving import Proved  # noqa: PLC0415  see above

        self._out, self._catalog, self._cluster = out, catalog, cluster
        self._state, self._terms, self._databases = state, terms, databases
        self._url = catalog.store.url
        self._proved = load(state, self._url) if state is not None else Proved()

    def once(self, *, everything: bool) -> None:
        """Audit once and print all about it."""
        found, seconds = self._audit()
        text = "\n".join(
            _lines(found, seconds, windows=bool(self._terms["windows"]), everything=everything)
        )
        self._out.result(text, self._document(found, seconds))
        if found.findings:
            raise click.exceptions.Exit(_FOUND_SOMETHING)
        if found.verdict != "exact":
            raise click.exceptions.Exit(Unavailable.exit_code)

    def round(self) -> None:
        """Audit what came since, and print a line of it."""
        found, seconds = self._audit()
        words = (
            f"{found.verdict}: {number(len(found.proved))} lanes, {number(found.inputs)} new inputs "
            f"in {seconds:.1f} s"
        )
        lines = [words, *_unproved(found)]
        lines += _findings(found, windows=bool(self._terms["windows"]), everything=False)
        self._out.line("\n".join(lines), self._document(found, seconds))
        if found.findings:
            raise click.exceptions.Exit(_FOUND_SOMETHING)

    def _audit(self) -> tuple[Audited, float]:
        from delivery.operate.auditing import Terms, audit  # noqa: PLC0415  keeps --help light
        from delivery.operate.databases import with_databases  # noqa: PLC0415  see above
        from delivery.operate.opening import chosen  # noqa: PLC0415  see above
        from delivery.operate.proved import save  # noqa: PLC0415  see above

        now_ms = int(time.time() * _SECOND_MS)
        since, until = self._terms["since"], self._terms["until"]
        terms = Terms(
            ways=ways_in(self._terms["ways"]),
            windows=dict(self._terms["windows"]),
            finished=self._terms["finished"],
            since_ms=None if since is None else now_ms - since,
            until_ms=None if until is None else now_ms - until,
            offsets=self._terms["offsets"],
        )
        began = time.monotonic()
        self._cluster.forget()
        # Anew each time: a receiver may have begun in its database since.
        with with_databases(self._catalog, self._databases) as (catalog, kept):
            for stage in filter(None, terms.windows):
                chosen(catalog, stage)  # one that is misspelt would be left without a window
            found = audit(
                catalog,
                self._cluster,
                chosen(catalog, self._terms["stage"]),
                terms,
                self._out.step,
                proved=self._proved,
                kept=kept,
            )
        if not found.findings and not terms.ranged:
            # What is the same needs no file written, which may be a gigabyte.
            if self._state is not None and found.next != self._proved:
                save(self._state, self._url, found.next)
            self._proved = found.next
        return found, time.monotonic() - began

    def _document(self, found: Audited, seconds: float) -> dict[str, Any]:
        return {"catalog": self._url, "seconds": seconds} | found.document()


def _lines(found: Audited, seconds: float, *, windows: bool, everything: bool) -> list[str]:
    lines = _findings(found, windows=windows, everything=everything)
    lines += _unproved(found)
    lines += [f"believed: {lane}: {why}" for lane, why in found.given_up.items()]
    lines += _ranges(found)
    lines.append(
        f"{number(len(found.proved))} lanes, {number(found.inputs)} inputs, "
        f"{number(found.records)} records in {seconds:.1f} s"
    )
    verdict = found.verdict
    if verdict == "exact" and (found.ranges or found.given_up):
        verdict = _EXACT_IN_RANGE if found.ranges else _EXACT_SINCE
    return [*lines, _VERDICTS[verdict]]


_EXACT_IN_RANGE = "exact in its range"
_EXACT_SINCE = "exact since"
_VERDICTS = {
    "exact": "exact: every input has one effect, every output a sealed origin",
    _EXACT_IN_RANGE: "exact: in this range every input has one effect, every output a sealed origin; "
    "what was before and after is believed",
    _EXACT_SINCE: "exact: every input that is there has one effect, every output a sealed origin; what "
    "was read of topics that are gone for good is believed",
    "broken": "BROKEN: stop the stages that the findings name, keep a copy of catalog and topics, and "
    "look at a record with `delivery explain`",
    "unproved": "nothing is wrong with what could be looked at; not all could be proved",
}


def _findings(found: Audited, *, windows: bool, everything: bool) -> list[str]:
    shown = found.findings if everything else found.findings[:1]
    lines = [str(finding) for finding in shown]
    if len(found.findings) > len(shown):
        lines.append(f"and {len(found.findings) - len(shown)} more findings; --all prints them")
    if not windows and found.findings and all(_may_be_let_go(one) for one in found.findings):
        lines.append(
            "if the seals of these lanes say no window, and their ids were let go by `delivery catalog "
            "compact`, say --window"
        )
    return lines


def _ranges(found: Audited) -> list[str]:
    lines = []
    for one in found.ranges:
        seals = "no seals" if one["last"] is None else f"seals {one['first']}..{one['last']}"
        places = ", ".join(
            f"{at['topic']}/{at['partition']} from {at['start']} to below {at['end']}"
            for at in one["offsets"]
            if at["start"] < at["end"]
        )
        lines.append(f"{one['lane']}: {seals}" + (f", {places}" if places else ""))
    return lines


def _unproved(found: Audited) -> list[str]:
    lines = [f"not proved: {lane}: {why}" for lane, why in found.unproved.items()]
    lines += [f"late repeat: {note}" for note in found.notes[:1]]
    if found.notes:
        lines.append(
            f"{number(len(found.notes))} late repeats of which the seals say no window; say their "
            "stages' --window, and it is known which are right"
        )
    return lines


def _may_be_let_go(finding: Finding) -> bool:
    return finding.kind.name == "NOT_DECIDED"
