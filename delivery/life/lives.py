"""Where a pipeline's user finds what its stages may go through.

What it is: `Lives`, a part of `delivery.Delivery`.
What it must not know: how anything is done; that is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delivery.life.stages import Life

__all__ = ["Lives"]


class Lives:
    """A pipeline whose stages can be renamed, reset, retired and so on."""

    catalog: str
    kafka: str
    options: Mapping[str, Any]
    client: str | None

    @property
    def life(self) -> Life:
        """What stages of its catalog may go through; each method is a dry run unless told."""
        from delivery.life.stages import Life  # noqa: PLC0415 - asked for now and then

        return Life(self.catalog, self.kafka, self.options, self.client)
