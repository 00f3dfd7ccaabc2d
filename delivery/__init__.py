"""Exactly-once delivery for PySpark and Kafka: everything a user imports."""

from dedup.errors import (
    Corrupt,
    DeliveryError,
    Fenced,
    Indeterminate,
    InvalidUsage,
    Unavailable,
)

__all__ = [
    "Corrupt",
    "DeliveryError",
    "Fenced",
    "Indeterminate",
    "InvalidUsage",
    "Unavailable",
]
