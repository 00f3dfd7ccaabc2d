"""Stages as streaming queries of Spark's: the engine for those who want its batches and its pages."""

from __future__ import annotations

from delivery.microbatch.query import MicroBatchQuery, StoppedError
from delivery.microbatch.starting import start

__all__ = ["MicroBatchQuery", "StoppedError", "start"]
