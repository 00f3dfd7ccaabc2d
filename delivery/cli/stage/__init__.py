"""`delivery stage`: the stages that a catalog knows.

What it is: the group of its verbs. What it must not know: what they do.
"""

from __future__ import annotations

from delivery.cli import Verbs

__all__ = ["command"]

command = Verbs(
    {
        "list": "delivery.cli.stage.list",
        "rename": "delivery.cli.stage.rename",
        "reset": "delivery.cli.stage.reset",
        "retire": "delivery.cli.stage.retire",
        "accept-topic": "delivery.cli.stage.accept_topic",
        "change-dedup": "delivery.cli.stage.change_dedup",
        "leave": "delivery.cli.stage.leave",
    },
    {
        "list": "Say which stages there are, and how far.",
        "rename": "Let a stage go on under another name.",
        "reset": "Let a stage go on elsewhere, or begin anew.",
        "retire": "End a stage for good.",
        "accept-topic": "Take a topic that was made anew for what it is.",
        "change-dedup": "Let a stage deduplicate by partition or by topic.",
        "leave": "Go back to a plain job.",
    },
    name="stage",
    help="The stages of a pipeline, as their catalog knows them: look at them, change their lives.",
    epilog="Example: `delivery stage list sqlite:shop.db` says which there are and how they stand.",
)
