"""Receivers: plain Python processes that consume a topic, each record's effect once."""

from __future__ import annotations

from delivery.receiver.bundle import Bundle
from delivery.receiver.receiver import Receiver

__all__ = ["Bundle", "Receiver"]
