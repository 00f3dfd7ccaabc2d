"""Exactly-once delivery for PySpark and Kafka: everything a user imports."""

from dedup.errors import (
    Corrupt,
    DeliveryError,
    Fenced,
    Indeterminate,
    InvalidUsage,
    Unavailable,
)
from delivery.records import Output, Record

__all__ = [
    "Corrupt",
    "DeliveryError",
    "Fenced",
    "Indeterminate",
    "InvalidUsage",
    "Output",
    "Record",
    "Unavailable",
]
