"""The catalog and its stores; `open_catalog` opens one by URL."""

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog

__all__ = ["Catalog", "open_catalog"]
