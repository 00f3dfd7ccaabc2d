"""Between contents and a manifest: what names the files of a lane, and what opens them again.

What it is: `named` and `opened`, each other's inverse; `filters_of`, how the files were made.
What it must not know: locks, who publishes when.

Invariants:
    What is opened is complete, or it is None: a run that is gone or torn takes everything with it.
    A filter that is gone, torn, or made otherwise than asked is made anew from the runs.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import closing

from dedup.filters import Filters, open_filter
from dedup.local.contents import Contents
from dedup.local.group import Held
from dedup.local.home import Place, boot
from dedup.local.manifest import Manifest, NamedGroup, NamedRun
from dedup.local.shared import Recipe, SharedFilter
from dedup.model import HeadRef
from dedup.runs import open_run


def named(contents: Contents, recipe: Recipe, window_ms: int, tag: HeadRef) -> Manifest:
    """Return a fresh manifest of contents whose runs have everything up to `tag`."""
    return Manifest(
        mark=os.urandom(8).hex(),
        lane=recipe.lane,
        boot=boot(),
        filters=_text(recipe.filters),
        window_ms=window_ms,
        tag=tag,
        groups=tuple(
            NamedGroup(
                group.bucket,
                group.filter.path.name,
                tuple(
                    NamedRun(held.path.name, held.run.bucket, held.run.count, held.seq)
                    for held in group.runs
                ),
                group.bounds().seen,
            )
            for group in contents.groups.values()
            if group.filter is not None
        ),
    )


def opened(manifest: Manifest, place: Place, recipe: Recipe, empty: Contents) -> Contents | None:
    """Fill empty contents with what a manifest names; None if a run is gone or torn."""
    for one in manifest.groups:
        group = empty.groups[one.bucket] = empty.new_group(one.bucket)
        group.see(one.seen)
        for file in one.runs:
            path = place.path / file.name
            run = open_run(path, recipe.lane)
            if run is None or (run.bucket, run.count) != (file.bucket, file.count):
                empty.close()
                return None
            group.runs.append(Held(run, path, file.seq, placed=True))
        if manifest.filters == _text(recipe.filters):
            group.filter = SharedFilter.open(recipe, place.path / one.filter, one.bucket)
    empty.fill_filters()
    empty.tag = empty.flushed = manifest.tag
    return empty


def filters_of(manifest: Manifest, place: Place) -> Filters:
    """Return how the filters of files were made; without the key if no file tells it any more.

    Raises:
        InvalidUsage: this installation has not what they were made with.
    """
    engine, rate, _ = manifest.filters.split(" ")
    found = Filters(engine=engine, rate=float(rate))
    for one in manifest.groups:
        path = place.path / one.filter
        held = open_filter(path, lane=manifest.lane, bucket=one.bucket, engine=engine)
        if held is not None:
            with closing(held):
                found = Filters(engine=engine, rate=float(rate), key=held.key)
            if _text(found) == manifest.filters:
                return found
    return Filters(engine=engine, rate=float(rate))


def _text(filters: Filters) -> str:
    """Name how filters are made, without giving the key away."""
    key = "" if filters.key is None else hashlib.sha256(filters.key).hexdigest()[:16]
    return f"{filters.engine} {filters.rate} {key}"
