"""`delivery stage`: the stages that a catalog knows.

What it is: the group of its verbs. What it must not know: what they do.
"""

from __future__ import annotations

from delivery.cli import Verbs

__all__ = ["command"]

command = Verbs(
    {"list": "delivery.cli.stage.list"},
    name="stage",
    help="Look at the stages of a pipeline, as their catalog knows them.",
    epilog="Example: `delivery stage list sqlite:shop.db` says which there are and how they stand.",
)
