"""`make soak`: everything that can die dies, again and again, at random; then the evidence is judged.

What it is: a program. Three stages run on Spark, and beside it in a plain worker, over the same
lanes; records come in all the while; what dies is started again, Spark's driver in one engine or the
other. SOAK_SECONDS says how long, SOAK_SEED repeats a run's choices, SOAK_CATALOG=cassandra takes a
node of Cassandra's, SOAK_ENGINE=resident or microbatch only the one.
What it must not know: what is right; `tests/acceptance/kit.py` says.

Invariants:
    The seed is printed first. What the operating system makes of a choice is not in it.
    A run with fewer than `KILLS_MIN` kills, or without a repeat, fails; so does one of which an
    operator would be told otherwise than it was.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from dedup.errors import Indeterminate, Unavailable
from delivery.kafka.opening import open_client
from delivery.operate.dying import EXECUTOR, PYTHON_WORKER, Kills, kill_one
from delivery.points import POINTS
from delivery.services.ephemeral import Services, ephemeral
from tests.acceptance.kit import Effects, Trial, Worker, judge, publish, shares, untold
from tests.acceptance.lifeline import LIFELINES
from tests.acceptance.pricing import Pipeline
from tests.acceptance.worker import AWAY

SECONDS = 600
KILLS_MIN = 30
#: Of a shorter run fewer are asked for: one in so many seconds.
SECONDS_A_KILL = 20
#: Kills that are planned; they take their time, and some only stand still.
KILLS_TRIED = 48
RECORDS_PER_SECOND = 40
BUNDLE_ROWS = 100
#: How long a worker stands still.
PAUSE_SECONDS = 4.0
#: Nobody dies of that.
PAUSE = "worker that stood still"
#: How long somebody may take to come past a point, and all to come to the end.
POINT_SECONDS_MAX = 60.0
END_SECONDS_MAX = 600.0
MASTER = "local-cluster[2,1,1024]"
ENGINES = ("resident", "microbatch")


class Soak:
    """One run."""

    def __init__(
        self,
        services: Services,
        trial: Trial,
        seed: int,
        seconds: float,
        engines: Sequence[str] = ENGINES,
    ) -> None:
        self._services = services
        self._trial = trial
        self._chance = random.Random(seed)
        self._seconds = seconds
        # In turn, from a chosen one on: no choice of who dies hangs on how often a driver did.
        first = self._chance.randrange(len(engines))
        self._engines = cycle([*engines[first:], *engines[:first]])
        self._points = Kills(trial.directory / "kills")
        self._worker = self._start_worker()
        self._driver = self._start_driver()
        self.kills: Counter[str] = Counter()

    def _start_worker(self) -> Worker:
        return self._trial.start("worker", self._points.kill_at)

    def _start_driver(self) -> Worker:
        engine = next(self._engines)
        _say(f"        a driver starts, {engine}")
        return self._trial.drive(engine, MASTER, self._points.kill_at)

    # The run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Send and kill for as long as it was told; then let everything come to its end."""
        sender = threading.Thread(target=self._send, name="publisher", daemon=True)
        sender.start()
        began = time.monotonic()
        for number in range(KILLS_TRIED):
            spread = self._chance.uniform(0.5, 1.0)
            moment = began + (number + spread) * self._seconds / KILLS_TRIED
            while time.monotonic() < moment:
                self._revive()
                time.sleep(0.1)
            # Of some kinds nobody is there to die just now: then another dies.
            kinds = self._chance.sample(self._kinds, len(self._kinds))
            name = next(name for name, kill in kinds if kill(self))
            self.kills[name] += 1
            _say(f"{time.monotonic() - began:5.0f} s  {name}")
        sender.join()
        self._end()

    def _send(self) -> None:
        """Send all records in time, as a publisher does that sends again what was not answered."""
        parts = shares(self._trial.traffic.rows, max(1, int(self._seconds)))
        began = time.monotonic()
        with open_client(self._trial.pipeline.kafka) as client:
            for number, part in enumerate(parts):
                while True:
                    try:
                        publish(client, self._trial.pipeline.raw, part)
                        break
                    except (Indeterminate, Unavailable) as error:
                        _say(f"        the publisher sends again: {error.op}")
                time.sleep(max(0.0, began + number + 1 - time.monotonic()))

    def _revive(self) -> None:
        """Start again who died; only who died of a kill, or of a server that was away, may."""
        if self._ended(self._worker):
            self._worker = self._start_worker()
        if self._ended(self._driver):
            self._driver = self._start_driver()

    def _ended(self, party: Worker) -> bool:
        code = party.process.poll()
        if code is None:
            return False
        told = party.said.read_text()[-4000:]
        assert code in {AWAY, -signal.SIGKILL}, f"it ended with {code}: {told}"
        return True

    def _end(self) -> None:
        """Say that no more comes in, and wait until nobody has anything left to do."""
        self._trial.complete.touch()
        deadline = time.monotonic() + END_SECONDS_MAX
        waiting = {"worker", "driver"}
        while waiting:
            assert time.monotonic() < deadline, f"no end in {END_SECONDS_MAX} s: {waiting}"
            if self._worker.process.poll() == 0:
                waiting.discard("worker")
            elif self._ended(self._worker):
                self._worker = self._start_worker()
            if self._driver.process.poll() == 0:
                waiting.discard("driver")
            elif self._ended(self._driver):
                self._driver = self._start_driver()
            time.sleep(0.1)

    # What dies --------------------------------------------------------------------------------

    def _kill_worker(self) -> bool:
        self._worker.kill()
        return True

    def _kill_driver(self) -> bool:
        self._driver.kill()
        return True

    def _kill_task(self) -> bool:
        return self._kill_below(PYTHON_WORKER)

    def _kill_executor(self) -> bool:
        return self._kill_below(EXECUTOR)

    def _kill_below(self, what: str) -> bool:
        """Kill one of the driver's processes; False if it has none of that kind just now."""
        return kill_one(self._driver.process.pid, what, self._chance)

    def _kill_at_point(self) -> bool:
        point = self._chance.choice(POINTS)
        self._points.arm(point)
        deadline = time.monotonic() + POINT_SECONDS_MAX
        while not self._points.happened(point):
            if time.monotonic() > deadline:
                self._points.disarm(point)
                return self._points.happened(point)
            self._revive()
            time.sleep(0.05)
        return True

    def _kill_broker(self) -> bool:
        self._services.servers["kafka-1"].restart()
        return True

    def _kill_node(self) -> bool:
        if "cassandra-1" not in self._services.servers:
            return False
        self._services.servers["cassandra-1"].restart()
        return True

    def _pause_worker(self) -> bool:
        """Let the worker stand still while others go on; it wakes up as a zombie."""
        if self._worker.process.poll() is not None:
            return False
        self._worker.process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        self._worker.process.send_signal(signal.SIGCONT)
        return True

    _kinds: tuple[tuple[str, Callable[[Soak], bool]], ...] = (
        ("worker", _kill_worker),
        ("worker at a point", _kill_at_point),
        ("worker at a point", _kill_at_point),
        ("Spark's Python worker", _kill_task),
        ("Spark's Python worker", _kill_task),
        ("Spark's executor", _kill_executor),
        ("Spark's driver", _kill_driver),
        ("broker", _kill_broker),
        ("node of the catalog", _kill_node),
        (PAUSE, _pause_worker),
    )


def killed(kills: Counter[str]) -> int:
    """Return how many died."""
    return kills.total() - kills[PAUSE]


def verdict(shown: Effects, kills: Counter[str], seconds: float) -> str | None:
    """Say why a run failed; None: it proved what it is for."""
    wrong = {
        "effects lost": shown.lost,
        "effects doubled": shown.doubled,
        "effects conflicting": shown.conflicting,
        "findings": len(shown.findings),
    }
    said = [f"{what}: {count}" for what, count in wrong.items() if count]
    if not shown.offered:
        said.append("no repeat was offered, so nothing was proved")
    least = min(KILLS_MIN, seconds / SECONDS_A_KILL)
    if killed(kills) < least:
        said.append(f"{killed(kills)} were killed, of {least:.0f} at least")
    return "; ".join(said) or None


def table(kills: Counter[str], shown: Effects) -> str:
    """Return what a run came to."""
    rows = [(kind, count) for kind, count in sorted(kills.items())]
    rows += [
        ("kills", killed(kills)),
        ("records sent", shown.inputs),
        ("of them repeats", shown.offered),
        ("repeats dropped, our own included", shown.dropped),
        ("effects", shown.distinct - shown.lost),
        ("copies of them in the output topics", shown.copies),
        ("effects lost", shown.lost),
        ("effects doubled", shown.doubled),
        ("effects conflicting", shown.conflicting),
        ("findings of the checker and of the verbs", len(shown.findings)),
    ]
    return "\n".join(f"{what:<40} {number:>9,}" for what, number in rows)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run, judge, and print the table."""
    seconds = float(os.environ.get("SOAK_SECONDS", SECONDS))
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    cassandra = os.environ.get("SOAK_CATALOG", "sqlite") == "cassandra"
    only = os.environ.get("SOAK_ENGINE")
    _say(f"SOAK_SEED={seed} SOAK_SECONDS={seconds:.0f}")
    # That brokers go away is what this is about; what matters of it is said below.
    logging.getLogger("delivery").setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as directory,
        ephemeral(kafka=1, cassandra=int(cassandra), report=_say) as services,
    ):
        catalog = f"sqlite:{directory}/catalog.db"
        if cassandra:
            node = services.cassandra
            catalog = f"cassandra://{node.contact_points[0]}:{node.port}/soak"
        pipeline = Pipeline(
            name="soak",
            kafka=services.kafka.bootstrap,
            catalog=catalog,
            home=f"{directory}/home",
            bundle_rows=BUNDLE_ROWS,
            rekeyed=True,
        )
        count = int(seconds * RECORDS_PER_SECOND)
        trial = Trial.of(pipeline, Path(directory), seed=seed, count=count)
        # A publisher that sends again doubles what has no name, and should.
        trial.traffic.rows = [row for row in trial.traffic.rows if row.headers]
        del trial.traffic.firsts["placed"]
        soak = Soak(services, trial, seed, seconds, (only,) if only else ENGINES)
        try:
            soak.run()
            shown = judge(trial)
            # What an operator is told of it is judged like everything else.
            shown = replace(shown, findings=(*shown.findings, *untold(trial)))
        finally:
            LIFELINES.cut()
    _say(table(soak.kills, shown))
    _say("\n".join(shown.findings))
    failed = verdict(shown, soak.kills, seconds)
    if failed is not None:
        sys.exit(f"FAILED: {failed}; SOAK_SEED={seed} repeats it")


if __name__ == "__main__":
    main()
