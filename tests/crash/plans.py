"""The stored plans: for every mutant the line that kills it.

What it is: reading and writing `plans.txt`, "mutant | world | plan" on each line.
`python -m tests.crash.plans` finds every plan anew and rewrites the file; read the difference
before committing it. `python -m tests.crash.plans WORLD "PLAN"` replays one line in the product as
it is, and says what it runs into.
"""

from __future__ import annotations

import sys
from pathlib import Path

from delivery.testing.explore import MisfitError, explore, outcome
from delivery.testing.world import LaneWorld
from tests.crash.mutants import MUTANTS
from tests.crash.sabotage import Mutant, planted
from tests.crash.worlds import WORLDS

FILE = Path(__file__).with_name("plans.txt")


def stored() -> dict[str, tuple[str, str]]:
    """Return world and plan by the name of the mutant."""
    plans = {}
    for line in FILE.read_text().splitlines():
        name, world, plan = line.split(" | ")
        plans[name] = (world, plan)
    return plans


def find(mutant: Mutant) -> str | None:
    """Return a plan that kills the mutant in its world, or None if it survives."""
    with planted(mutant):
        report = explore(LaneWorld.of(WORLDS[mutant.world].scenario))
    return report.found.line if report.found else None


def main() -> None:
    """Find every plan anew."""
    lines = []
    for mutant in MUTANTS:
        plan = find(mutant)
        sys.stdout.write(f"{'killed' if plan is not None else 'SURVIVES'}: {mutant.name}\n")
        if plan is not None:
            lines.append(f"{mutant.name} | {mutant.world} | {plan}\n")
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    if sys.argv[1:]:
        try:
            told = outcome(LaneWorld.of(WORLDS[sys.argv[1]].scenario), sys.argv[2])
        except MisfitError as misfit:
            sys.exit(str(misfit))
        sys.stdout.write((told or "everything held") + "\n")
    else:
        main()
