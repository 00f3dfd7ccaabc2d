"""A process that runs one deterministic stage, to be killed: `python remade_child.py PLAN`.

What it is: the stages that `test_remade.py` runs, and a program that runs one of them until it dies.
What it must not know: what a test expects.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

from delivery import Delivery, Record
from delivery.host.killing import killer
from delivery.host.starting import prepare
from delivery.host.worker import Worker


def steady(record: Record) -> Iterator[Record]:
    """Make the same of the same record, in two pieces."""
    for part in range(2):
        headers = {"part": b"%d" % part}
        yield record.replace(value=b"%d of " % part + (record.value or b""), headers=headers)


def drawn(record: Record) -> Record:
    """Draw a number: another one each time."""
    return record.replace(value=uuid.uuid4().hex)


def here(record: Record) -> Record:
    """Say which process it is: the same in one, another in the next."""
    return record.replace(value=b"%d " % os.getpid() + (record.value or b""))


CALLS: dict[str, Callable[[Record], object]] = {f.__name__: f for f in (steady, drawn, here)}


def declared(told: dict[str, str]) -> Delivery:
    """Return the pipeline of one stage that a test talks of."""
    delivery = Delivery(
        catalog=told["catalog"], kafka=told["kafka"], pipeline=told["pipeline"], home=told["home"]
    )
    stage = delivery.stage(
        reads=told["reads"],
        writes=told["writes"],
        name=told.get("name", "remade"),
        id_from="header:id",
        code=told.get("code", "v1"),
        deterministic=True,
    )
    stage(CALLS[told["call"]])
    return delivery


def main() -> None:
    """Run until somebody kills it."""
    delivery = declared(json.loads(sys.argv[1]))
    topics = prepare(delivery.plan)
    with closing(Worker(delivery.plan, at=killer())) as worker:
        for spec in delivery.stages:
            worker.open(spec, range(topics[spec.reads].partitions), {})
        while True:
            worker.turn()


if __name__ == "__main__":
    main()
