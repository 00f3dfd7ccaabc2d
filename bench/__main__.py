"""`python -m bench`: run benchmarks, print a table of each, keep every figure as JSON.

What it is: the command line over `bench.harness`, and the list of all benchmarks.
What it must not know: what any of them measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import (
    answers,
    audit,
    batches,
    catalog,
    catalog_cassandra,
    dedup,
    dedup_disk,
    dedup_warm,
    filters,
    growth,
    ids,
    kafka_clients,
    lane,
    pipeline,
)
from bench.harness import RESULTS, Benchmark, Lab, run
from bench.report import VERSION, as_json, as_table, machine

BENCHMARKS: tuple[Benchmark, ...] = (
    *catalog.BENCHMARKS,
    *catalog_cassandra.BENCHMARKS,
    *lane.BENCHMARKS,
    *batches.BENCHMARKS,
    *kafka_clients.BENCHMARKS,
    *ids.BENCHMARKS,
    *filters.BENCHMARKS,
    *dedup.BENCHMARKS,
    *dedup_warm.BENCHMARKS,
    *dedup_disk.BENCHMARKS,
    *pipeline.BENCHMARKS,
    *audit.BENCHMARKS,
    *answers.BENCHMARKS,
    *growth.BENCHMARKS,
)


def main(
    arguments: list[str],
    benchmarks: tuple[Benchmark, ...] = BENCHMARKS,
    program: str = "python -m bench",
) -> int:
    """Run the benchmarks named, or all; return 0 whether or not goals were met."""
    known = {benchmark.name: benchmark for benchmark in benchmarks}
    parser = argparse.ArgumentParser(prog=program, description="Measure, in ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="one small round: does it work?")
    parser.add_argument(
        "--only",
        metavar="PART",
        action="append",
        default=[],
        help="let take part whose name has this in it, and the baseline; may be said again",
    )
    parser.add_argument("--json", metavar="PATH", help="where every figure goes; -: stdout")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(known.values())
    # With `--json -` only the JSON goes to stdout.
    tables = sys.stderr if options.json == "-" else sys.stdout
    described = machine(program)
    print(_introduced(described, quick=options.quick), file=tables, flush=True)
    outcomes = []
    with Lab(
        quick=options.quick,
        report=lambda line: print(line, file=sys.stderr, flush=True),
        only=tuple(options.only),
    ) as lab:
        for benchmark in chosen:
            outcomes.append(run(benchmark, lab))
            print(as_table(outcomes[-1]), file=tables, flush=True)
    text = json.dumps(
        {
            "version": VERSION,
            "quick": options.quick,
            "machine": described,
            "load_after": machine()["load"],
            "benchmarks": [as_json(outcome) for outcome in outcomes],
        },
        indent=2,
    )
    _keep(text, options.json, str(described["date"]))
    return 0


def _introduced(described: dict[str, object], *, quick: bool) -> str:
    lines = [f"- {name}: {value}" for name, value in described.items()]
    if quick:
        lines.append("- quick: one small round; these figures are not for the record")
    return "\n".join([*lines, ""])


def _keep(text: str, asked: str | None, date: str) -> None:
    if asked == "-":
        print(text)
        return
    RESULTS.mkdir(exist_ok=True)
    path = Path(asked) if asked else RESULTS / f"{date.replace(':', '')}.json"
    path.write_text(f"{text}\n", encoding="utf-8")
    print(
        f"every figure: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
