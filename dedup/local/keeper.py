"""Keeps what a process knows of a lane in files, and shares them with the host's other processes.

What it is: `Keeper`: when the overlay is written, publish, adopt, load, and the adoption of upkeep.
What it must not know: how ids are read from a catalog, what is asked of them.

Invariants:
    Order of a publication, each step BEFORE the next: runs are whole in the workshop; every bit is
    in the filters; filters have their tags; files are in their places; the manifest is replaced;
    files that it does not name are deleted. A process killed anywhere leaves the manifest that was
    there, with all its files, or the new one, with all its files.
    What another process published meanwhile is taken over if this process's own files went with it,
    or if it is ahead. Otherwise it is replaced.
    Without the lane's lock nothing in its directory is touched but bits, which have a lock of their
    own; ids then go on into the workshop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dedup.errors import Unavailable
from dedup.formats.segment import Bucket
from dedup.local import steps
from dedup.local.contents import Contents
from dedup.local.home import At, Place, Workshop, nowhere, private
from dedup.local.limits import Limits
from dedup.local.manifest import Manifest
from dedup.local.shared import Recipe, SharedFilter
from dedup.local.shelf import named, opened
from dedup.local.stats import Asked, Counters
from dedup.local.upkeep import Background, Grown, Merged, Outcome, Work, due, growing, merging
from dedup.local.writing import Writer
from dedup.model import Head, HeadRef

#: Tells of a manifest whether its tag is on the history of the head at hand.
Fits = Callable[[Manifest], bool]


class Keeper:
    """The files behind the contents of one lane.

    Args:
        recipe: how filters are made.
        window_ms: how long external ids are held.
        place: the lane's directory; None: this process keeps everything to itself.
    """

    def __init__(
        self,
        recipe: Recipe,
        window_ms: int,
        limits: Limits,
        place: Place | None,
        at: At = nowhere,
    ) -> None:
        self.counters = Counters()
        self._recipe = recipe
        self._window_ms = window_ms
        self._limits = limits
        self._place = place
        self._at = at
        self._workshop: Workshop | None = None
        self._background: Background[Outcome] = Background()
        self._writer = Writer(recipe.lane, self.fresh, at, hidden=place is None)
        #: The manifest that names our placed files; empty: none does.
        self._mark = ""
        #: The seq of its tag: every placed run goes up to there at most.
        self._base = -1
        #: How filters did when that was last published.
        self._told = Asked()
        self.contents = self.new_contents()

    # Contents ---------------------------------------------------------------------------------

    def new_contents(self, *, bare: bool = False) -> Contents:
        """Return contents with nothing in them."""
        return Contents(self._recipe, self._window_ms, self._limits, self.fresh, bare=bare)

    def fresh(self, kind: str) -> Path:
        """Return a path in the workshop."""
        try:
            if self._workshop is None:
                self._workshop = private() if self._place is None else self._place.workshop()
            return self._workshop.fresh(kind)
        except OSError as error:
            raise self._unavailable(error) from error

    def begin(self, *, bare: bool = False) -> None:
        """Let go of everything."""
        self.contents.close()
        self.contents = self.new_contents(bare=bare)
        self._mark, self._base = "", -1

    def load(self, fits: Fits) -> bool:
        """Take over what the manifest names, in place of what is held; False if it is no use."""
        if self._place is None:
            return False
        for _ in range(2):
            manifest = self._place.read()
            if manifest is None or not self._like_ours(manifest) or not fits(manifest):
                return False
            found = opened(manifest, self._place, self._recipe, self.new_contents())
            if found is not None:
                self.contents.close()
                self.contents, self._mark, self._base = found, manifest.mark, manifest.tag.seq
                return True
            # A file is gone: another manifest has replaced this one, or somebody deletes things.
        return False

    def ahead(self, seq: int) -> bool:
        """Tell whether another process has published what goes beyond `seq`."""
        manifest = None if self._place is None else self._place.read()
        return manifest is not None and manifest.mark != self._mark and manifest.tag.seq > seq

    def close(self, fits: Fits) -> None:
        """Publish what can be published, and let go of everything; leave no thread."""
        self._background.close()
        try:
            if self._place is not None and self.contents.tag is not None:
                self.flush()
                self.publish(fits)
        finally:
            self._writer.close()
            self.contents.close()
            if self._workshop is not None:
                self._workshop.close()
                self._workshop = None

    def forget(self, head: Head) -> None:
        """Let go of what no record can repeat any more; its files go with the next publication."""
        if self.contents.forget(head):
            self._at(steps.FORGOTTEN)

    # From memory to files ---------------------------------------------------------------------

    def write(self) -> bool:
        """Write the overlay if it is full, or begin to; tell whether there are new runs."""
        full = self.contents.full
        written = self._written(wait=full)
        if not full or (written and not self.contents.full):
            return written
        few = self.contents.pending <= self._limits.aside_ids
        if few or self.contents.bare or self._writer.failed:
            self.flush()
            return True
        self._writer.set_aside(self.contents)
        return written

    def flush(self) -> None:
        """Write the overlay into runs in the workshop, at once."""
        self.counters.flushes += 1
        try:
            self._writer.write(self.contents)
        except OSError as error:
            raise self._unavailable(error) from error

    def _written(self, *, wait: bool) -> bool:
        """Take over what a thread has written; tell whether there was anything."""
        written = self._writer.take(self.contents, wait=wait)
        self.counters.flushes += written
        return written

    # From this process to the host ------------------------------------------------------------

    def share(self, fits: Fits) -> None:
        """Publish, if there is enough that the host's other processes would have to read again."""
        if self.contents.apart(self._base):
            self.publish(fits)

    def publish(self, fits: Fits) -> None:
        """Put our files into their places and name them in a manifest, if the lock can be had."""
        if self._place is None:
            self._hide()
            return
        if self.contents.flushed is None:
            return
        if self.contents.forgotten > self.contents.flushed.seq:
            # SUBTLE: what was forgotten by a later head must not be missing under an earlier tag:
            # a restore may keep the one and not the other, and with it what had been read by then.
            self.flush()
        with self._place.lock() as held:
            if not held:
                self.counters.lock_misses += 1
                self._part()
                return
            try:
                self._publish(self._place, fits)
            except FileNotFoundError:
                # Somebody deletes files. Ours stay mapped, and the next process starts anew.
                self._place = None
            except OSError as error:
                raise self._unavailable(error) from error

    def _publish(self, place: Place, fits: Fits) -> None:
        current = place.read()
        if current is not None and current.mark != self._mark:
            tag = self.contents.tag
            if tag is not None and self._flushed().seq <= current.tag.seq <= tag.seq:
                # It is ahead of our runs, not of what we know. Taken over, it would cost what upkeep
                # has made meanwhile, again and again beside processes that publish often.
                self.flush()
            lost = not self._placed() <= current.names
            # SUBTLE: a manifest behind the one that we know has not all ids of our placed runs.
            # Whoever wrote it could not read ours; what we hold of it stays mapped.
            use = current.tag.seq >= self._base and self._like_ours(current) and fits(current)
            wanted = use and (lost or current.tag.seq > self._flushed().seq)
            if not (wanted and self._adopt(current)) and lost:
                # Our placed files went with a manifest that is no use to us. They stay mapped.
                self._place = None
                return
        for group in self.contents.groups.values():
            assert group.filter is not None, "a rebuild has made the filters"
            if not group.filter.settle(self._flushed(), group.news()):
                self.counters.lock_misses += 1
                return
            self._at(steps.BITS_SET)
        self._name(place, current)

    def _flushed(self) -> HeadRef:
        tag = self.contents.flushed
        assert tag is not None, "only what is in runs is published"
        return tag

    def _name(self, place: Place, current: Manifest | None) -> None:
        """Put files into their places and replace the manifest."""
        news = [held for held in self.contents.runs if not held.placed]
        for held in news:
            if held.path.parent != place.path:
                held.path = place.take_over(held.path)
        for group in self.contents.groups.values():
            if group.filter is not None and group.filter.path.parent != place.path:
                group.filter.path = place.take_over(group.filter.path)
        manifest = named(self.contents, self._recipe, self._window_ms, self._flushed())
        asked, told = self.counters.asked, Asked()
        if current is not None:
            same = replace(manifest, mark=current.mark, asked=current.asked)
            # Of files that are the same only the figures are new: nobody need look at them again.
            manifest = replace(manifest, mark=current.mark) if same == current else manifest
            told = current.asked if manifest.filters == current.filters else told
        manifest = replace(manifest, asked=told.plus(asked.since(self._told)))
        if manifest == current:
            return
        self.fresh("manifest")  # the workshop is there
        assert self._workshop is not None, "a fresh path is in the workshop"
        place.replace(manifest, self._workshop)
        self._mark, self._base, self._told = manifest.mark, manifest.tag.seq, asked
        for held in news:
            held.placed = True

    def _adopt(self, manifest: Manifest) -> bool:
        """Take over what another process published, and keep what we know beyond it."""
        assert self._place is not None, "manifests are in places"
        found = opened(manifest, self._place, self._recipe, self.new_contents())
        if found is None:
            return False
        self._written(wait=True)
        mine = self.contents
        for bucket, group in mine.groups.items():
            news = [held for held in group.runs if not held.placed and held.seq > manifest.tag.seq]
            if not news and not group.chunks.all:
                continue
            if bucket not in found.groups:
                found.groups[bucket] = fresh = found.new_group(bucket)
                fresh.filter = found.new_filter(bucket, group.count)
            target = found.groups[bucket]
            target.see(group.bounds().seen)
            target.runs += news
            target.chunks = group.chunks
            assert target.filter is not None, "what is opened has filters"
            for ids in target.news():
                target.filter.add(ids)
        for name in ("tag", "flushed"):
            if (tag := getattr(mine, name)) is not None and tag.seq > manifest.tag.seq:
                setattr(found, name, tag)
        found.seals, found.forgotten = mine.seals, mine.forgotten
        for group in mine.groups.values():
            if group.filter is not None:
                group.filter.close()
        self.contents, self._mark, self._base = found, manifest.mark, manifest.tag.seq
        self.counters.adoptions += 1
        return True

    def _part(self) -> None:
        """Go on apart: the lock was in other hands for so long that a filter has overrun."""
        for group in self.contents.groups.values():
            if group.filter is not None and group.filter.overrun:
                group.filter.close()
                group.filter = None
        self.contents.fill_filters()

    def _hide(self) -> None:
        """Take files off their directory that nobody else is to see: a killed process leaves none."""
        filters = [group.filter for group in self.contents.groups.values()]
        paths = [held.path for held in self.contents.runs]
        for path in (*paths, *(one.path for one in filters if one is not None)):
            if self._workshop is not None and path.parent == self._workshop.path:
                path.unlink(missing_ok=True)

    def _placed(self) -> frozenset[str]:
        return frozenset(held.path.name for held in self.contents.runs if held.placed)

    def _like_ours(self, manifest: Manifest) -> bool:
        return manifest.window_ms == self._window_ms

    # Upkeep -----------------------------------------------------------------------------------

    def upkeep(self, fits: Fits, *, wait: bool = False) -> bool:
        """Adopt what was done, and do what is due: at once or in a thread; tell if one is at it.

        Work that fails, for want of room or because somebody deletes files, is counted, and is due
        again after the next flush: without it all is right, and slower.
        """
        try:
            if self._written(wait=wait):
                self.share(fits)
            outcome = self._background.outcome(wait=wait or self._crowded())
            if outcome is not None and self._take(outcome):
                self.publish(fits)
            while not self._background.busy:
                job = self._due()
                if job is None:
                    break
                count, work = job
                if count > self._limits.inline_ids:
                    # One process at a time is enough, unless there are too many runs to wait for it.
                    lock = None if self._place is None else self._place.reserve()
                    if lock is not None or self._place is None or self._crowded():
                        self._background.start(work, lock)
                    break
                outcome = work(lambda: False)
                assert outcome is not None, "nobody stops work that is done at once"
                self._take(outcome)
                self.publish(fits)
        except (OSError, Unavailable):
            self.counters.failures += 1
        return self._background.busy

    def _crowded(self) -> bool:
        """Tell whether there are so many runs that looking through them costs more than waiting."""
        groups = self.contents.groups.values()
        return any(len(group.runs) > self._limits.runs_max for group in groups)

    def _due(self) -> tuple[int, Work] | None:
        for group in self.contents.groups.values():
            if group.filter is not None and group.filter.full:
                count = group.count
                return count, growing(group, self._maker(group.bucket, count))
            inputs = due(group, self._limits)
            if inputs:
                count = sum(held.run.count for held in inputs)
                return count, merging(group, inputs, self.fresh("run"))
        return None

    def _maker(self, bucket: Bucket, count: int) -> Callable[[], SharedFilter]:
        return lambda: self.contents.new_filter(bucket, count)

    def _take(self, outcome: Outcome) -> bool:
        """Adopt an outcome; False if what it was made from is no longer held."""
        group = outcome.group
        held = {id(one) for one in group.runs}
        used = {id(one) for one in outcome.inputs}
        known = self.contents.groups.get(group.bucket) is group
        # Bits of ids that were forgotten meanwhile are harmless; a run of them is not wanted.
        if not known or (isinstance(outcome, Merged) and not used <= held):
            if isinstance(outcome, Grown):
                outcome.output.close()
            outcome.output.path.unlink(missing_ok=True)
            return False
        if isinstance(outcome, Merged):
            self.counters.merges += 1
            self._at(steps.MERGED)
            first = next(at for at, one in enumerate(group.runs) if id(one) in used)
            rest = [one for one in group.runs if id(one) not in used]
            before = sum(id(one) not in used for one in group.runs[:first])
            group.runs = [*rest[:before], outcome.output, *rest[before:]]
            self._writer.retire(list(outcome.inputs).clear)
            return True
        self.counters.growths += 1
        self._at(steps.GROWN)
        for one in group.runs:
            if id(one) not in used:
                for ids in one.pieces():
                    outcome.output.add(ids)
        for chunk in group.chunks.all:
            outcome.output.add(chunk.ids)
        if group.filter is not None:
            self._writer.retire(group.filter.close)
        group.filter = outcome.output
        return True

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(
            "keep the ids of a lane on this host",
            self._recipe.lane,
            f"{error}; no id was lost, the catalog has them all: see that the directory has room and "
            "that nobody deletes files in it, and run again",
        )
