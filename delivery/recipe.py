"""Recipes: what a seal keeps in place of rows that its stage's code makes again whenever it runs.

What it is: `Recipe`, its one chunk, and telling it from chunks of rows. Specified in docs/formats.md.
What it must not know: how outputs are made, who asks for them.

Invariants:
    A recipe stands where a seal's stored outputs would, as their only chunk: whoever expects rows
    there and finds a recipe is refused by the kind of its envelope, and never takes it for no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dedup.formats.envelope import Kind, Reader, Writer, is_kind, unwrap, wrap
from dedup.model import IDENTITY_BYTES

__all__ = ["VERSION", "Recipe", "encode_recipe", "recipe_in"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """By what outputs that are made again are known to be the ones that were sealed.

    Attributes:
        counts: how many partitions each edge had when they were placed.
        digest: of what they say; see `delivery.outputs.content_digest`.
    """

    counts: tuple[int, ...]
    digest: bytes


def encode_recipe(recipe: Recipe) -> bytes:
    """Return the only chunk of outputs that are not stored."""
    out = Writer().uint(len(recipe.counts))
    for count in recipe.counts:
        out.uint(count)
    return wrap(Kind.RECIPE, VERSION, out.raw(recipe.digest).body())


def recipe_in(chunks: Sequence[bytes], place: str) -> Recipe | None:
    """Return the recipe that stands in the place of rows; None if rows do.

    Raises:
        Corrupt: it is damaged.
    """
    if len(chunks) != 1 or not is_kind(chunks[0], Kind.RECIPE):
        return None
    _, body = unwrap(chunks[0], Kind.RECIPE, version_max=VERSION, place=place)
    reader = Reader(body, place)
    counts = tuple(reader.uint() for _ in range(reader.uint()))
    recipe = Recipe(counts=counts, digest=reader.raw(IDENTITY_BYTES))
    reader.end()
    return recipe
