"""Exactly-once delivery for PySpark and Kafka: everything a user imports.

What is more than an error is loaded when it is asked for: pytest loads our plugin, and so this
package, in every project it is installed in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dedup.errors import (
    Corrupt,
    DeliveryError,
    Fenced,
    Indeterminate,
    InvalidUsage,
    Unavailable,
)

if TYPE_CHECKING:
    from dedup.filters import Filters
    from delivery.api import Delivery
    from delivery.query import stop_on_signal
    from delivery.records import Output, Record

__all__ = [
    "Corrupt",
    "Delivery",
    "DeliveryError",
    "Fenced",
    "Filters",
    "Indeterminate",
    "InvalidUsage",
    "Output",
    "Record",
    "Unavailable",
    "stop_on_signal",
]

#: Where the other names are.
_HOMES = {
    "Delivery": "delivery.api",
    "Filters": "dedup.filters",
    **dict.fromkeys(("Output", "Record"), "delivery.records"),
    "stop_on_signal": "delivery.query",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
