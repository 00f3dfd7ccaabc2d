"""Programs that end with the test that started them, however that ends.

What it is: `Lifelines`, which holds the other ends; `hold`, which a program calls first.
What it must not know: what the programs do.
"""

from __future__ import annotations

import os
import subprocess
import threading

#: How a program ends whose test is gone.
ALONE = 99


class Lifelines:
    """The processes that tests started and that may still run."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Hold a process whose standard input is a pipe of ours."""
        self._running.append(process)

    def cut(self) -> None:
        """Kill all that still run. May be called at any time."""
        while self._running:
            process = self._running.pop()
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


LIFELINES = Lifelines()


def hold() -> None:
    """End this process when nobody holds its standard input any more."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(ALONE)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
