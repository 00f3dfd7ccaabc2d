"""`delivery chaos`: the user's own job killed again and again, and then audited.

What it is: words around `delivery.operate.chaos`. What it must not know: how anybody dies.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dedup.errors import InvalidUsage, Unavailable
from delivery.cli.durations import DURATION
from delivery.cli.kafka import kafka_options, settings_in, ways_in
from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import number

if TYPE_CHECKING:
    from delivery.operate.auditing import Audited
    from delivery.operate.chaos import Chaos, Setting

_FOUND_SOMETHING = 1
_SECOND_MS = 1000
_KINDS = ("point", "worker", "executor", "job")


@click.command(
    epilog="Example: `delivery chaos sqlite:shop.db --kafka localhost:9092 --seconds 120s --kills 12 "
    "-- python shop.py` kills shop.py twelve times within two minutes and audits what came out."
)
@click.argument("url")
@click.argument("command_line", metavar="-- COMMAND…", nargs=-1, required=True)
@kafka_options
@click.option(
    "--kills", type=click.IntRange(min=1), default=10, show_default=True, help="How many."
)
@click.option(
    "--seconds",
    "length",
    type=DURATION,
    default=60_000,
    show_default="60s",
    help="Over which time they are spread.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_KINDS),
    help="What may die; all by default, as far as it is there.",
)
@click.option(
    "--point", "points", multiple=True, help="A named point of the protocol; all by default."
)
@click.option("--seed", type=int, help="Repeats the choices of a run; it is printed.")
@click.option(
    "--settle",
    type=DURATION,
    default=120_000,
    show_default="120s",
    help="How long the job may take afterwards to seal and deliver all there is.",
)
@click.option(
    "--id-from", "ways", multiple=True, metavar="[STAGE=]WAY", help="As `delivery audit` takes it."
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("chaos.log"),
    show_default=True,
    help="Where what the job says goes.",
)
@databases_option
@verb
def command(out: Output, *, url: str, command_line: tuple[str, ...], **options: Any) -> None:
    """Start COMMAND, kill it and parts of it at random, start it again, and audit URL.

    The job runs on the machine as it is, with its own topics: use a broker and a catalog that are
    there for that (`delivery up` starts some). Named points work in processes that inherit this
    one's environment (the job itself, and Spark's Python workers of `local` and `local-cluster`
    masters). Exits as `delivery audit` does.
    """
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.auditing import Terms, audit  # noqa: PLC0415  see above
    from delivery.operate.chaos import Chaos, Rest  # noqa: PLC0415  see above
    from delivery.operate.databases import with_databases  # noqa: PLC0415  see above
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    setting = _setting(command_line, options)
    out.progress(f"seed {setting.seed}; what the job says stands in {setting.log}")
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="delivery-chaos-"))
        client = stack.enter_context(
            open_client(
                options["kafka"],
                settings_in(options["kafka_config"]),
                options["client"],
                out.progress,
            )
        )
        chaos = Chaos(setting, Path(scratch), out.progress)
        stack.callback(chaos.stop)
        chaos.kill_all()
        catalog = stack.enter_context(opened(url))
        cluster = Cluster(client, out.step)
        rest = Rest(catalog, cluster)
        settled = chaos.settle(
            lambda: rest.reached(chosen(catalog)), options["settle"] / _SECOND_MS
        )
        chaos.stop()
        cluster.forget()
        terms = Terms(ways=ways_in(options["ways"]))
        files = options["databases"]
        whole, kept = stack.enter_context(with_databases(catalog, files))
        found = audit(whole, cluster, chosen(whole), terms, out.step, kept=kept)
    document = _document(setting, chaos, found, settled=settled)
    out.result(_text(document, found), document)
    if found.findings:
        raise click.exceptions.Exit(_FOUND_SOMETHING)
    if found.verdict != "exact" or not settled:
        raise click.exceptions.Exit(Unavailable.exit_code)


def _setting(command_line: tuple[str, ...], options: dict[str, Any]) -> Setting:
    from delivery.operate.chaos import Setting  # noqa: PLC0415  keeps --help light
    from delivery.points import POINTS  # noqa: PLC0415  see above

    points = options["points"] or POINTS
    if unknown := sorted(set(points) - set(POINTS)):
        raise InvalidUsage(
            "kill at a point",
            ", ".join(unknown),
            f"there is no such point; nothing was started: say one of {', '.join(POINTS)}",
        )
    seed = options["seed"]
    return Setting(
        command=command_line,
        kills=options["kills"],
        seconds=options["length"] / _SECOND_MS,
        kinds=options["kinds"] or _KINDS,
        points=points,
        seed=random.SystemRandom().randrange(1 << 32) if seed is None else seed,
        log=options["log"],
    )


def _document(setting: Setting, chaos: Chaos, found: Audited, *, settled: bool) -> dict[str, Any]:
    from delivery.operate.chaos import KINDS, told  # noqa: PLC0415  keeps --help light

    killed = Counter(kind for _, kind in chaos.died)
    kills = [{"kind": KINDS[kind], "killed": count} for kind, count in killed.items()]
    died = [{"at_ms": at_ms, "what": KINDS[kind]} for at_ms, kind in chaos.died]
    repeats = {"offered": found.repeats, "dropped": found.dropped}
    audited = {key: value for key, value in found.document().items() if key != "digests"}
    about = {"seed": setting.seed, "starts": chaos.starts, "kills": kills, "settled": settled}
    about["missed"] = chaos.missed
    return about | {"died": died} | repeats | told(found.findings) | audited


def _text(document: dict[str, Any], found: Audited) -> str:
    rows = [(f"killed: {one['kind']}", one["killed"]) for one in document["kills"]]
    if document["missed"]:
        rows.append(("not killed: nobody was there to die", document["missed"]))
    rows += [
        ("the job was started", document["starts"]),
        ("inputs", document["inputs"]),
        ("repeats offered", document["offered"]),
        ("repeats dropped", document["dropped"]),
        ("lost", document["lost"]),
        ("doubled", document["doubled"]),
        ("conflicting", document["conflicting"]),
        ("other findings", document["other"]),
    ]
    lines = [f"{what:<40} {number(count):>12}" for what, count in rows]
    lines += [str(finding) for finding in found.findings[:1]]
    lines += [f"not proved: {lane}: {why}" for lane, why in found.unproved.items()]
    lines += [f"believed: {lane}: {why}" for lane, why in found.given_up.items()]
    if not document["settled"]:
        lines.append("the job did not come to rest in time, so that nothing is said of what is due")
    lines.append(found.verdict)
    return "\n".join(lines)
