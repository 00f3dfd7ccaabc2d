"""What `make demo` runs does what it says, from any directory, and leaves nothing there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "plain_kafka_to_kafka.py"
#: Generous: it takes 15 s on two idle cores, and the machine may be busy.
SECONDS_MAX = 400.0


def test_every_order_comes_out_once(tmp_path):
    done = subprocess.run(
        [sys.executable, DEMO],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders in      5,000\n" in done.stdout
    assert "orders out     5,000   (0 missing, 0 too many)\n" in done.stdout
    assert "at-least-once" in done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
