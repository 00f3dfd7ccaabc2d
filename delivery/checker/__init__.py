"""The independent checker: reads logs, raw catalog and sink, and says what breaks the promise.

It shares no code with what it checks, only formats and types.
"""

from delivery.checker.evidence import (
    Evidence,
    Finding,
    Kind,
    LaneInput,
    Log,
    Logged,
    Span,
)
from delivery.checker.prove import check

__all__ = ["Evidence", "Finding", "Kind", "LaneInput", "Log", "Logged", "Span", "check"]
