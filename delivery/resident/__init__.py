"""Stages in long-lived Spark tasks that own their lanes: the default engine."""

from __future__ import annotations

from delivery.resident.query import ResidentQuery, StoppedError, stop_on_signal
from delivery.resident.starting import start

__all__ = ["ResidentQuery", "StoppedError", "start", "stop_on_signal"]
