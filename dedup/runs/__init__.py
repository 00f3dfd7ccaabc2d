"""Runs: local, immutable, memory-mapped files of ids, copies of what the catalog holds for good."""

from dedup.runs.merge import merge_runs
from dedup.runs.run import Run, open_run
from dedup.runs.write import Stopped, write_run

__all__ = ["Run", "Stopped", "merge_runs", "open_run", "write_run"]
