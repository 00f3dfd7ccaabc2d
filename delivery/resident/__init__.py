"""Stages in long-lived Spark tasks that own their lanes: the default engine."""

from __future__ import annotations

from delivery.resident.query import ResidentQuery, StoppedError
from delivery.resident.starting import start

__all__ = ["ResidentQuery", "StoppedError", "start"]
