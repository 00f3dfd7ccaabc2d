"""Orders are priced and invoiced while workers and drivers are killed: what `make demo` runs.

What it is: the job of `orders/job.py` as two stages of this library and, beside it, in plain
PySpark: on real Kafka, with the same orders, the same repeats and the same kills. Then both
outputs are read, and one screen says what was lost, doubled or came out in two versions.
What it must not know: the inside of the library.

Invariants:
    It fails (exit code 1) unless every order had exactly one effect with this library, processes
    of its were killed, and repeats were offered. What plain PySpark makes of it is printed as it is.
    It leaves nothing behind: no servers and no files, unless it is told to keep them.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orders.contender import Contender
from orders.outcome import Outcome, read, received
from orders.screen import Teller, screen
from orders.traffic import Publisher

from dedup.errors import DeliveryError, InvalidUsage, Unavailable
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings, awaited
from delivery.services.ephemeral import ephemeral
from delivery.services.instance import Instance, Request
from delivery.services.state import State

ORDERS = 24_000
PARTITIONS = 4
#: As long as nobody is behind.
ORDERS_PER_SECOND = 1_500
#: So far ahead of the slower contender the publisher may be, as a share of the orders: a driver
#: that starts again finds work, and is not done with it before the next kill.
AHEAD = 0.25
TICK_SECONDS = 0.1
#: A machine that needs longer is not going to finish.
RACE_SECONDS_MAX = 900.0
#: Where servers and files are kept, in the directory that it is called in.
KEPT = ".delivery"


#: How the job is run, and what that is called on the screen.
WAYS = {"stages": "this library", "plain": "plain PySpark"}
TOPICS = ("orders", "priced", "invoices")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where it happens.

    Attributes:
        run: a name that no other run has.
        kafka: the broker's address.
        catalog: the catalog's URL.
        directory: for files.
    """

    run: str
    kafka: str
    catalog: str
    directory: Path

    @classmethod
    def of(cls, state: State | None, catalog: str, directory: Path, run: str) -> Place:
        """Return the place that some servers are.

        Raises:
            InvalidUsage: one is missing.
        """
        if state is None or state.kafka is None or (catalog == "cassandra" and not state.cassandra):
            raise InvalidUsage(
                "run the demonstration",
                str(directory.parent),
                f"there is no server for Kafka or for catalog {catalog}; nothing was run: call it "
                "in another directory, or without --keep",
            )
        url = f"sqlite:{directory / 'catalog.db'}"
        if catalog == "cassandra":
            assert state.cassandra is not None
            url = f"{state.cassandra.url}/{run.replace('-', '_')}"
        return cls(run=run, kafka=state.kafka.bootstrap, catalog=url, directory=directory)

    def told(self, way: str, topics: list[str]) -> dict[str, Any]:
        """Return what a driver is told."""
        home = self.directory / way
        home.mkdir()
        return {
            "way": way,
            "kafka": self.kafka,
            "catalog": self.catalog,
            "home": str(home),
            "topics": topics,
        }


def main() -> int:
    """Run both; return the exit code."""
    chosen = arguments()
    # Whoever ends it politely finds nothing left behind either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tell = Teller()
    try:
        with place(chosen, tell) as where:
            return demonstrate(where, chosen, tell)
    except DeliveryError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("demo: interrupted; everything it started is stopped", file=sys.stderr)
        return 130
    finally:
        tell.end()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--catalog", choices=("sqlite", "cassandra"), default="sqlite")
    parser.add_argument("--orders", type=int, default=ORDERS, help="how many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument(
        "--keep", action="store_true", help=f"leave servers and files in ./{KEPT} to look at"
    )
    return parser.parse_args()


def demonstrate(where: Place, chosen: argparse.Namespace, tell: Teller) -> int:
    """Run both contenders, read what came out, and say it."""
    topics = {way: [f"{where.run}.{way}.{name}" for name in TOPICS] for way in WAYS}
    with open_client(where.kafka) as client:
        for name in [name for names in topics.values() for name in names]:
            client.create(name, TopicSettings(partitions=PARTITIONS))
            awaited(client, name)
    publisher = Publisher(
        where.kafka, [names[0] for names in topics.values()], chosen.orders, chosen.seed
    )
    tell(f"{chosen.orders:,} orders, {PARTITIONS} partitions, seed {chosen.seed}")
    contenders: list[Contender] = []
    began = time.monotonic()
    try:
        for way, name in WAYS.items():
            contenders.append(Contender(name, where.told(way, topics[way]), where.directory))
        with open_client(where.kafka) as client:
            race(client, publisher, contenders, tell)
        seconds = time.monotonic() - began
    finally:
        tell.now("stopping both")
        for one in contenders:
            one.close()
    tell.now("reading what came out")
    results = [(one, outcome(where.kafka, publisher, one)) for one in contenders]
    tell.end()
    wrong = list(complaints(publisher.repeats, *results[0]))
    lines = [
        *(wrong or ["With this library every order had exactly one effect."]),
        f"{tell.seconds:.0f} s in all, {seconds:.0f} of them from starting the drivers to the end.",
        *further(where, keep=chosen.keep),
    ]
    for line in screen((publisher.published, publisher.repeats), results, lines):
        print(line, flush=True)
    return 1 if wrong else 0


def race(
    client: Client, publisher: Publisher, contenders: Sequence[Contender], tell: Teller
) -> None:
    """Publish to both, and let the plan have its way with both, until both have finished.

    Raises:
        Unavailable: it takes too long.
    """
    came = Ends(client, contenders)
    began = looked = time.monotonic()
    pause = threading.Event()
    tell.now(lambda: standing(publisher, contenders))
    while not all(one.over for one in contenders):
        came.look()
        for one in contenders:
            one.look(came.records[one.topics[-1]], publisher.orders)
        now = time.monotonic()
        due = int(ORDERS_PER_SECOND * min(now - looked, TICK_SECONDS * 5))
        looked = now
        if publisher.published or all(one.state == "running" for one in contenders):
            slowest = min((one.came for one in contenders if not one.over), default=0)
            ahead = slowest + int(AHEAD * publisher.orders)
            publisher.publish(min(publisher.published + due, ahead))
            if publisher.done:
                publisher.flush()
                for one in contenders:
                    one.finish()
        if now - began > RACE_SECONDS_MAX:
            raise Unavailable(
                "run the demonstration",
                standing(publisher, contenders),
                f"not done after {RACE_SECONDS_MAX:.0f} s; the machine may be too busy: take fewer "
                "orders, with --orders",
            )
        pause.wait(TICK_SECONDS)


def standing(publisher: Publisher, contenders: Sequence[Contender]) -> str:
    """Say how far everybody is."""
    return "; ".join([f"{publisher.published:,} orders in", *map(str, contenders)])


class Ends:
    """Counts what the last topic of each contender holds."""

    def __init__(self, client: Client, contenders: Sequence[Contender]) -> None:
        self._client = client
        names = [one.topics[-1] for one in contenders]
        self._topics = client.describe(names)
        self.records = dict.fromkeys(names, 0)

    def look(self) -> None:
        """Count anew; where a busy broker does not answer, the numbers stay."""
        for name, topic in self._topics.items():
            with contextlib.suppress(Unavailable):
                high = self._client.bounds(name, topic.sources).high
                self.records[name] = sum(offset for _, offset in high)


def outcome(kafka: str, publisher: Publisher, one: Contender) -> Outcome:
    """Read what a contender wrote, as a receiver does, and count it."""
    priced, invoices = (received(read(kafka, topic)) for topic in one.topics[1:])
    return Outcome.of(publisher.sent, priced, invoices)


def complaints(repeats: int, ours: Contender, what: Outcome) -> Iterator[str]:
    """Say what this run has not shown, if there is anything."""
    if not what.exact:
        yield f"NOT EXACT: {what}"
    if ours.state != "finished":
        yield f"NOT FINISHED: {ours.name} {ours.state}:\n{ours.log}"
    if ours.spared:
        yield "NOT SHOWN: not everybody was killed who should have been; take more orders"
    if not repeats:
        yield "NOT SHOWN: the publisher repeated nothing; take more orders"


def further(where: Place, *, keep: bool) -> Iterator[str]:
    """Say how to look further."""
    if not keep:
        yield "Nothing is left behind. To look further: make demo DEMO=--keep"
        return
    yield "To look further, in this directory:"
    yield f"  delivery catalog inspect {where.catalog}"
    yield f"  delivery audit {where.catalog} --kafka {where.kafka} --finished"
    yield f"Logs are in {where.directory}; `delivery down --delete` removes everything."


# Where it happens ---------------------------------------------------------------------------------


@contextlib.contextmanager
def place(chosen: argparse.Namespace, tell: Teller) -> Iterator[Place]:
    """Start servers: for the time of this process, or in this directory, to be kept."""
    run = f"demo-{uuid.uuid4().hex[:6]}"
    cassandra = int(chosen.catalog == "cassandra")
    tell.now("starting servers")
    if chosen.keep:
        here = Instance(Path.cwd())
        here.up(Request() if here.state() else Request(kafka=1, cassandra=cassandra), tell)
        directory = here.home / run
        directory.mkdir()
        yield Place.of(here.state(), chosen.catalog, directory, run)
    else:
        with (
            ephemeral(kafka=1, cassandra=cassandra, report=tell) as services,
            tempfile.TemporaryDirectory(prefix="delivery-demo-") as temporary,
        ):
            yield Place.of(services.state, chosen.catalog, Path(temporary), run)


if __name__ == "__main__":
    sys.exit(main())
