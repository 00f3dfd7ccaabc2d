"""What the filter tests share: whose filters they are, tags, random ids."""

from __future__ import annotations

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.formats.segment import Bucket, Origin
from dedup.model import HeadRef

LANE = "shop/price/0"
BUCKET = Bucket(Origin.EXTERNAL, 2_970_000)
KEY = b"0123456789abcdef"
TAG = HeadRef(b"incarnation-----", 7, b"attempt---------")
LATER = HeadRef(b"incarnation-----", 8, b"another attempt-")

keys = pytest.mark.parametrize("key", [None, KEY], ids=["unkeyed", "keyed"])


def random_ids(count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)
