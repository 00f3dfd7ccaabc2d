"""`delivery catalog`: what has been decided, looked at and looked after.

What it is: the group of its verbs. What it must not know: what they do.
"""

from __future__ import annotations

from delivery.cli import Verbs

__all__ = ["command"]

command = Verbs(
    {
        "inspect": "delivery.cli.catalog.inspect",
        "compact": "delivery.cli.catalog.compact",
        "lookup": "delivery.cli.catalog.lookup",
        "verify": "delivery.cli.catalog.verify",
        "backup": "delivery.cli.catalog.backup",
        "restore": "delivery.cli.catalog.restore",
        "accept": "delivery.cli.catalog.accept",
        "repair": "delivery.cli.catalog.repair",
        "migrate": "delivery.cli.catalog.migrate",
    },
    {
        "inspect": "Say how every lane stands.",
        "compact": "Take away what nothing needs any more.",
        "lookup": "Say where an id was decided, or an input went.",
        "verify": "Read all of it, and say what is wrong.",
        "backup": "Write it into one file.",
        "restore": "Bring a backup back, into a new catalog.",
        "accept": "Go on with an older copy that was put back.",
        "repair": "Make a host's index or a lost catalog anew.",
        "migrate": "Move it to another file or to Cassandra.",
    },
    name="catalog",
    help="""Look at a catalog and look after it: what it holds, what may go, whether it is whole.

A catalog is named by its URL, as for stages: sqlite:shop.db or cassandra://host:9042/shop. Every
verb may run beside live jobs, but those that put another catalog in place of one: restore, accept,
migrate, and repair with --pipeline.""",
    epilog="Example: `delivery catalog inspect sqlite:shop.db` says how every lane stands.",
)
