"""The places at which whoever changes a stage dies in tests.

What it is: their names, in the order in which they are passed.
What it must not know: what happens there.
"""

from __future__ import annotations

__all__ = ["ADOPTED", "COLLECTED", "CONCLUDED", "CONCLUDES", "COPIED", "DRAINED", "EVERY", "RESTS"]

#: A lane rests; others may not yet.
RESTS = "life-rests"
#: What a lane owed is delivered, and acknowledged.
DRAINED = "life-drained"
#: What is told apart from its seals is, and they are gone.
COLLECTED = "life-collected"
#: A lane of another name is there, and rests.
ADOPTED = "life-adopted"
#: It has the ids of the one before.
COPIED = "life-copied"
#: A lane is about to be taken on, or left at rest for good.
CONCLUDES = "life-concludes"
#: It was; others may not be yet.
CONCLUDED = "life-concluded"

EVERY = (RESTS, DRAINED, COLLECTED, ADOPTED, COPIED, CONCLUDES, CONCLUDED)
