"""The overlay on its way into runs: at once, or in a thread while the lane goes on.

What it is: `Writer`: the work of writing chunks, and the taking over of what it has made.
What it must not know: filters, manifests, locks, when an overlay is full.

Invariants:
    Chunks that are set aside stay where they are, and are asked, until their run is taken.
    A run is taken only if the group still holds every chunk that it was made from. So nothing comes
    back that was forgotten meanwhile, or that was let go of for another history.
    `flushed` moves to a head only when every chunk of it, and of those before it, is in a run.
    One overlay at most is set aside: whoever has filled the next one waits for it.
    The thread reads only chunks, which never change, and writes only files that nobody knows yet.
    What it could not write is written at once by who next has to, and so is told why it cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import Unavailable
from dedup.formats.segment import Bucket
from dedup.local import steps
from dedup.local.contents import Contents
from dedup.local.group import Held
from dedup.local.home import At
from dedup.local.overlay import Chunk, merged
from dedup.local.upkeep import Background
from dedup.model import HeadRef
from dedup.runs import write_run


@dataclass(frozen=True, slots=True)
class Piece:
    """Chunks of a group that become one run, and the path that it gets."""

    group: Bucket
    chunks: list[Chunk]
    path: Path


@dataclass(frozen=True, slots=True)
class Aside:
    """An overlay that is being written, and the head up to which it goes."""

    pieces: tuple[Piece, ...]
    tag: HeadRef | None
    seals: int


class Writer:
    """Writes the overlays of one lane.

    Args:
        lane: its name.
        fresh: returns a path for a new file.
        at: is told each step that must survive being killed.
        hidden: no other process is to see the runs: they have no name by the time that they are
            taken, and a killed process leaves none.
    """

    def __init__(self, lane: str, fresh: Callable[[str], Path], at: At, *, hidden: bool) -> None:
        self._lane = lane
        self._hidden = hidden
        self._fresh = fresh
        self._at = at
        self._background: Background[list[Held]] = Background()
        self._aside: Aside | None = None
        #: Lets go of files that nobody needs any more.
        self._retired: list[Callable[[], None]] = []
        #: Whether the thread could not write what was set aside last.
        self.failed = False

    def write(self, contents: Contents) -> None:
        """Write all there is, at once; first comes what a thread is at."""
        self.take(contents, wait=True)
        self._let_go()
        for piece in self._pieces(contents):
            self._adopt(contents, piece, self._run_of(piece))
        contents.seals = 0
        contents.flushed = contents.tag
        self.failed = False

    def set_aside(self, contents: Contents) -> None:
        """Begin to write all there is in a thread."""
        assert self._aside is None, "one overlay at a time"
        aside = Aside(tuple(self._pieces(contents)), contents.tag, contents.seals)
        assert aside.pieces, "what is made of chunks is taken only where they are"
        self._background.start(lambda stop: self._runs_of(aside, stop), None)
        self._aside = aside
        for group in contents.groups.values():
            group.chunks.set_aside()
        contents.seals = 0
        self._at(steps.SET_ASIDE)

    def take(self, contents: Contents, *, wait: bool = False) -> bool:
        """Take over what a thread has written, if it is done; tell whether anything was."""
        aside = self._aside
        if aside is None:
            return False
        try:
            runs = self._background.outcome(wait=wait)
        except (OSError, Unavailable):
            self.failed = True
            runs = []
        else:
            if runs is None:
                return False
        self._aside = None
        taken = [self._adopt(contents, *made) for made in zip(aside.pieces, runs, strict=False)]
        if sum(taken) == len(aside.pieces):
            contents.flushed = aside.tag
        else:
            # Not written, or not held any more: what is left goes with the next overlay.
            for group in contents.groups.values():
                group.chunks.take_back()
            contents.seals += aside.seals
        return any(taken)

    def retire(self, let_go: Callable[[], None]) -> None:
        """Have files let go of by whoever writes the next overlay, in a thread most often.

        To unmap tens of megabytes takes as long as verdicts on a hundred thousand ids.
        """
        self._retired.append(let_go)

    def close(self) -> None:
        """Let go of what a thread is at, and leave no thread."""
        self._background.close()
        self._aside = None
        self._let_go()

    def _let_go(self) -> None:
        while self._retired:
            self._retired.pop()()

    def _pieces(self, contents: Contents) -> Iterator[Piece]:
        for bucket, group in contents.groups.items():
            for chunks in group.chunks.by_unit().values():
                yield Piece(bucket, chunks, self._fresh("run"))

    def _adopt(self, contents: Contents, piece: Piece, held: Held) -> bool:
        """Take a run in place of the chunks that it was made from; False if some are not held."""
        group = contents.groups.get(piece.group)
        if group is None or not group.chunks.holds(piece.chunks):
            piece.path.unlink(missing_ok=True)
            return False
        self._at(steps.RUN_WRITTEN)
        group.runs.append(held)
        group.chunks.leave(piece.chunks)
        return True

    def _runs_of(self, aside: Aside, stop: Callable[[], bool]) -> list[Held] | None:
        """Write every piece, or leave none."""
        self._let_go()
        runs: list[Held] = []
        try:
            for piece in aside.pieces:
                if stop():
                    break
                runs.append(self._run_of(piece))
        finally:
            if len(runs) < len(aside.pieces):
                _deleted(aside)
        return runs if len(runs) == len(aside.pieces) else None

    def _run_of(self, piece: Piece) -> Held:
        one = merged(piece.chunks)
        assert one.origin_of is not None, "what is merged says of each id where it is from"
        run = write_run(
            piece.path,
            self._lane,
            one.bucket,
            one.ids,
            origins=one.origins,
            origin_of=one.origin_of,
            digests=one.digests,
        )
        run.touch()
        if self._hidden:
            piece.path.unlink()
        return Held(run, piece.path, max(seq for _, seq in one.origins))


def _deleted(aside: Aside) -> None:
    for piece in aside.pieces:
        with suppress(OSError):
            piece.path.unlink(missing_ok=True)
