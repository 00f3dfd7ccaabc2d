"""`make crash`: all slow tests, in two runs at once; then docs/proof.md.

What it is: a program. What only thinks has what is left of the machine by what works with servers,
which is timed: sleepers wake, and killed processes are waited for.
What it must not know: what any test does; what is written of it.

Invariants:
    Every slow test is in one of the two runs.
    It ends when both have ended, and ends them when it is ended.
"""

from __future__ import annotations

import subprocess
import sys

from tests.crash import proof

SLOW = (sys.executable, "-m", "pytest", "-m", "slow")
#: What starts no server. It takes the longest.
THINKING = ("tests/crash", "tests/property")
SAID = proof.MEASURED.with_name("crash-thinking.log")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> str | None:
    """Run both; return what is wrong, if anything is."""
    proof.MEASURED.parent.mkdir(exist_ok=True)
    proof.MEASURED.unlink(missing_ok=True)
    _say(f"{' '.join(THINKING)}: beside the others, into {SAID.relative_to(proof.ROOT)}")
    with SAID.open("w") as said:
        command = ["nice", "-n", "19", *SLOW, *THINKING]
        thinking = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        with_servers = subprocess.call([*SLOW, *(f"--ignore={path}" for path in THINKING)])
        _say(f"{' '.join(THINKING)}: waiting for them")
        alone = thinking.wait()
    finally:
        thinking.terminate()
        thinking.wait()
    _say(SAID.read_text().strip().rsplit("\n", 1)[-1])
    if with_servers or alone:
        return (
            f"not all is proved; nothing was written: see above and {SAID.relative_to(proof.ROOT)}"
        )
    proof.main()
    return None


if __name__ == "__main__":
    sys.exit(main())
