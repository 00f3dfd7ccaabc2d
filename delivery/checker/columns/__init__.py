"""The same proof over whole columns: what it cannot prove it leaves to the checker of records.

A lane that is proved here would be found right there; what is only unusual is looked at there.
"""

from delivery.checker.columns.assumed import assumed
from delivery.checker.columns.base import settled
from delivery.checker.columns.ground import Base, Doubt, Ground, Group
from delivery.checker.columns.proof import Bucket, Proof, check_senders, digests_of, prove
from delivery.checker.columns.table import Column, Marks, Reading

__all__ = [
    "Base",
    "Bucket",
    "Column",
    "Doubt",
    "Ground",
    "Group",
    "Marks",
    "Proof",
    "Reading",
    "assumed",
    "check_senders",
    "digests_of",
    "prove",
    "settled",
]
