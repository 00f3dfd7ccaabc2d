"""`delivery catalog repair`: a host's index made anew, or a lost catalog rebuilt from the topics.

What it is: words around `delivery.operate.repair`. What it must not know: how it is done.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, table, wide

if TYPE_CHECKING:
    from delivery.operate.repair.found import Lane, Lost
    from delivery.operate.repair.host import Examined

_FOUND_SOMETHING = 1


@click.command(
    epilog="Example: `delivery catalog repair sqlite:shop.db --home index` examines the index of this "
    "host, `delivery catalog repair sqlite:shop.db --pipeline shop.py --yes` rebuilds a lost catalog."
)
@click.argument("url")
@click.option(
    "--home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Examine the index that this host keeps in this directory (Delivery(home=...)).",
)
@click.option(
    "--pipeline",
    metavar="FILE.py[:NAME]",
    help="Rebuild the lanes that the catalog lacks, of the pipeline that this file declares.",
)
@click.option("--stage", help="With --home: only this stage, or pipeline/stage.")
@click.option(
    "--began-late",
    "late",
    multiple=True,
    metavar="STAGE",
    help="With --pipeline: this stage did not begin at the earliest record; inputs before its first "
    "output are taken for done.",
)
@click.option(
    "--skip-without-output",
    "skip",
    multiple=True,
    metavar="STAGE",
    help="With --pipeline: inputs of this stage that have no output are taken for done instead of "
    "running again.",
)
@click.option("--yes", is_flag=True, help="Do it; without it, this only says what it would do.")
@verb
def command(
    out: Output,
    *,
    url: str,
    home: Path | None,
    pipeline: str | None,
    stage: str | None,
    late: tuple[str, ...],
    skip: tuple[str, ...],
    yes: bool,
) -> None:
    """Repair what can be had back. A dry run by default.

    With --home: hold the filters and runs of this host against the catalog at URL, say what is
    wrong, and make it anew from the segments. It may run beside live jobs.

    With --pipeline: rebuild lanes that the catalog at URL has lost, all of them or some, from the
    headers in the output topics, and say exactly what cannot be known. Stop every stage and receiver
    of the pipeline FIRST: whoever still has the lost catalog open cannot be stopped by this.
    """
    if (home is None) == (pipeline is None):
        raise InvalidUsage(
            "repair a catalog",
            url,
            "nothing was done: say --home DIRECTORY for this host's index, or --pipeline FILE.py for "
            "a catalog that was lost",
        )
    if home is not None:
        _host(out, url, home, stage, yes=yes)
    elif pipeline is not None:
        _lost(out, url, pipeline, (late, skip), yes=yes)


def _host(out: Output, url: str, home: Path, stage: str | None, *, yes: bool) -> None:
    from dedup.local import Home  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above
    from delivery.operate.repair.host import examine, rebuild  # noqa: PLC0415  see above

    rebuilt: list[str] = []
    with opened(url) as catalog:
        where, place = catalog.store.url, Home(home)
        found: list[Examined] = []
        lanes = chosen(catalog, stage)
        for lane in lanes:
            out.step(f"examine {lane}", len(found), len(lanes))
            found.append(examine(catalog, place, lane))
        bad = [one for one in found if one.repairable]
        after: list[Examined] = []
        for one in bad if yes else ():
            out.step(f"rebuild {one.lane}", len(after), len(bad))
            after.append(rebuild(catalog, place, one))
            rebuilt.append(one.lane)
    lines = [_host_line(one) for one in found]
    still = [one for one in after if one.repairable]
    if yes:
        lines.append(f"{number(len(rebuilt))} of {number(len(found))} lanes were made anew")
        lines += [f"still not right: {_host_line(one)}" for one in still]
    elif bad:
        lines.append(f"{number(len(bad))} lanes would be made anew; --yes does it")
    else:
        lines.append("nothing is to be repaired")
    document: dict[str, Any] = {"lanes": [one.document() for one in found], "rebuilt": rebuilt}
    out.result("\n".join(lines), {"catalog": where, "home": str(home), "done": yes} | document)
    if still or (bad and not yes):
        raise click.exceptions.Exit(_FOUND_SOMETHING)


def _host_line(one: Examined) -> str:
    told = [
        f"{number(count)} {words}"
        for count, words in (
            (one.missing, "decided ids are missing: repeats of them were let through"),
            (one.foreign, "ids were never decided: records of them were dropped"),
            (one.unfiltered, "ids are denied by their filter: repeats of them were let through"),
            (one.broken, "files are gone or torn"),
        )
        if count
    ]
    upto = f", {number(one.ids)} ids up to seq {number(one.seq)}" if one.seq >= 0 else ""
    return f"{one.lane}: {one.state}{upto}" + "".join(f"; {text}" for text in told)


def _lost(
    out: Output,
    url: str,
    pipeline: str,
    named: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    yes: bool,
) -> None:
    from dedup.catalog.open import open_catalog, without_user  # noqa: PLC0415  keeps --help light
    from delivery.kafka.opening import open_client  # noqa: PLC0415  see above
    from delivery.operate.declared import declared  # noqa: PLC0415  see above
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import present  # noqa: PLC0415  see above
    from delivery.operate.repair.found import Terms  # noqa: PLC0415  see above
    from delivery.operate.repair.lost import perform, refuse_unknown, survey  # noqa: PLC0415  see above

    late, skip = named
    plan = declared(pipeline).plan
    refuse_unknown(plan.stages, (*late, *skip))
    terms = Terms(late=frozenset(late), skip=frozenset(skip))
    there = present(url)
    catalog = there or open_catalog(url if yes else "memory:")
    with (
        closing(catalog.store),
        open_client(plan.kafka, plan.options, plan.client, out.progress) as client,
    ):
        found = survey(catalog, Cluster(client, out.step), plan.stages, terms, out.step)
        if yes:
            perform(catalog, found)
    lines = _lost_lines(found)
    count = number(len(found.lanes))
    if yes:
        lines.append(f"{count} lanes were rebuilt; start the stages again, and audit them")
    elif found.lanes:
        lines.append(f"{count} lanes can be rebuilt; --yes does it, once every stage is stopped")
    else:
        lines.append("there is nothing to rebuild")
    document = {"catalog": without_user(url), "done": yes} | found.document()
    out.result("\n".join(lines), document)


_TITLES = ("lane", "frontier", "outputs", "ids", "run again", "taken", "behind")


def _lost_lines(found: Lost) -> list[str]:
    rows = [
        (
            one.lane,
            number(one.frontier),
            number(one.outputs),
            number(one.ids),
            number(one.again),
            number(one.taken),
            number(one.behind),
        )
        for one in found.lanes
    ]
    lines = table(_TITLES, rows, wide()) if rows else []
    for one in found.lanes:
        lines += [f"{one.lane}: {text}" for text in _unknowns(one)]
    lines += [f"{lane}: the catalog has it; it stays as it is" for lane in found.present]
    lines += [
        f"{lane}: it left no output; it begins as if it never ran, and what its inputs did besides "
        "outputs is done again"
        for lane in found.silent
    ]
    lines += [
        f"{stage}: nothing can be known, because {why}; it begins as if it never ran, so its inputs "
        "may have a second effect, unless its progress is kept in a database of yours"
        for stage, why in found.unknown.items()
    ]
    if found.lanes:
        lines.append(
            "receivers and wrapped jobs that are not stages of this pipeline left nothing in topics: "
            "their progress cannot be rebuilt"
        )
    return lines


def _unknowns(lane: Lane) -> list[str]:
    """Say what cannot be known of a lane."""
    told = []
    if lane.again:
        told.append(
            f"{number(lane.again)} inputs below offset {lane.end} have no output (offsets "
            f"{_ranges(lane)}): nobody can tell whether the code made nothing of them, or made "
            "something that was sealed and never emitted; they run again"
        )
    if lane.taken:
        told.append(
            f"{number(lane.taken)} inputs without output are taken for done: if outputs of them were "
            "sealed and never emitted, those are lost"
        )
    if lane.behind:
        told.append(
            f"{number(lane.behind)} offsets from {max(lane.end, lane.frontier)} on show no output: "
            "if they were sealed, what was sealed is given up, and they run"
        )
    if lane.last:
        told.append(
            f"an input of which one output arrived counts as done: if it made several, and others were "
            f"still on their way ({number(lane.last)} inputs have outputs of the last seal seen), those "
            "are lost"
        )
    if lane.gone:
        told.append(
            f"{number(lane.gone)} inputs that have outputs are no longer in the log: their ids are "
            "not known, so a repeat by their publisher counts as new"
        )
    if lane.skipped:
        told.append(
            f"{number(lane.skipped)} offsets behind the last output are gone from the log: whatever "
            "of them was not processed is lost"
        )
    if lane.abandoned:
        told.append(
            f"{number(lane.abandoned)} outputs belong to a history that a restore gave up, as far as "
            "their seqs tell; receivers drop them"
        )
    if lane.unfinished:
        told.append("a repair was killed here; this one finishes it")
    return told


def _ranges(lane: Lane) -> str:
    words = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in lane.stretches)
    named = sum(b - a + 1 for a, b in lane.stretches)
    return words + (", and more" if named < lane.again else "")
