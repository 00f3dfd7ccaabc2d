"""What lanes have under way at a store that takes many writes at once, while others go on.

What it is: `Errands`, which has instructions performed in threads of its own and gives lanes their
turns beside that.
What it must not know: which store it is, who reads the lanes' records, where emissions go.

Invariants:
    Of one lane they are performed one after the other, in the order in which they were given: they
    compare with its one row.
    Threads only perform. Lanes are told of answers, and asked what is next, by the host's thread
    alone, one answer after the other as they come.
    A lane whose write is under way begins no bundle; nobody else waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from delivery.host.lane import LaneTask
from delivery.protocol import messages as m

__all__ = ["Errands"]

#: Of so many lanes something is under way at once.
SIDE_THREADS = 8
#: For how long a lane gathers records when its append is answered, of the time that took; and at most.
REST_SHARE = 1.0
REST_SECONDS_MAX = 0.02
#: Who has so many records gathers no more: there is a backlog.
FEW_ROWS_MAX = 1_000
#: For how long nobody looks for new records at most, while all that have some gather more or write.
PAUSE_SECONDS_MAX = 0.005

_Answer = m.Event | BaseException | None


class _Line:
    """What one lane has given and not had answered."""

    def __init__(self) -> None:
        self.todo: deque[m.Instruction] = deque()
        self.running = False
        #: What the lane has not been told the answer of, and how much of that it waits for: nothing
        #: waits for an acknowledgement.
        self.untold = self.awaited = 0

    def count(self, instruction: m.Instruction, by: int) -> None:
        """Count what was given, or told."""
        self.untold += by
        self.awaited += 0 if isinstance(instruction, m.Acknowledge) else by


class Errands:
    """Instructions of several lanes, under way at once.

    Args:
        now: a clock of seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pool = ThreadPoolExecutor(SIDE_THREADS, "delivery-catalog")
        self._news = threading.Condition()
        self._lines: dict[LaneTask, _Line] = {}
        self._begun: dict[LaneTask, float] = {}
        self._rests: dict[LaneTask, float] = {}
        self._answers: deque[tuple[LaneTask, m.Instruction, _Answer]] = deque()

    def __bool__(self) -> bool:
        return bool(self._lines)

    # The turns of lanes -----------------------------------------------------------------------

    def turn(
        self, lanes: Sequence[LaneTask], emit: Callable[[], bool], *, linger: float = 0.0
    ) -> bool:
        """Give every lane its turn; False if there was nothing to do.

        Args:
            lanes: all of them.
            emit: sends what lanes have sealed.
            linger: how long rows may wait for more.
        """
        moved = self.look()
        if moved:
            emit()
        for lane in lanes:
            if not self._pause(lane):
                moved |= lane.prepare(linger=linger, beside=True)
                self.give(lane, lane.waits())
            self.give(lane, lane.acknowledges(now=False))
            # What was sealed meanwhile does not wait for the user code of the lanes that are left.
            if self.look():
                emit()
                moved = True
        return moved

    def writing(self, lane: LaneTask) -> bool:
        """Tell whether something that the lane waits for is under way."""
        line = self._lines.get(lane)
        return line is not None and line.awaited > 0

    def pause(self, lanes: Iterable[LaneTask]) -> float:
        """Return for how long none of these can begin anything, unless an answer comes."""
        pauses = [(self._pause(lane), lane.rows > 0) for lane in lanes]
        if any(waiting and not pause for pause, waiting in pauses):
            return 0.0
        return min((pause for pause, _ in pauses if pause), default=0.0)

    def free(self, lanes: Sequence[LaneTask]) -> bool:
        """Tell whether a record that comes now could go into a bundle at once."""
        return not lanes or any(not self._pause(lane) for lane in lanes)

    def _pause(self, lane: LaneTask) -> float:
        if self.writing(lane):
            return PAUSE_SECONDS_MAX
        if lane.rows >= FEW_ROWS_MAX:
            return 0.0
        return min(PAUSE_SECONDS_MAX, max(0.0, self._rests.get(lane, 0.0) - self._now()))

    def give(self, lane: LaneTask, todo: Iterable[m.Instruction]) -> None:
        """Have instructions performed, behind those that the lane has given before."""
        for instruction in todo:
            line = self._lines.setdefault(lane, _Line())
            line.count(instruction, 1)
            if isinstance(instruction, m.Append):
                self._begun[lane] = self._now()
            with self._news:
                line.todo.append(instruction)
                begins, line.running = not line.running, True
            if begins:
                self._pool.submit(self._perform, lane, line)

    def look(self) -> bool:
        """Tell lanes of the answers that have come; False if there were none.

        Raises:
            BaseException: a bug in what performs instructions; the lane may not go on.
        """
        moved = False
        while self._answers:
            lane, instruction, answer = self._answers.popleft()
            if isinstance(answer, BaseException):
                raise answer
            line = self._lines[lane]
            line.count(instruction, -1)
            if not line.untold:
                del self._lines[lane]
            lane.tell([answer])
            if isinstance(instruction, m.Append):
                now = self._now()
                took = now - self._begun.pop(lane)
                self._rests[lane] = now + min(REST_SHARE * took, REST_SECONDS_MAX)
            moved = True
        return moved

    def wait(self, seconds: float) -> None:
        """Wait until an answer has come, or so long."""
        with self._news:
            self._news.wait_for(lambda: self._answers, seconds)

    def settle(self, lanes: Iterable[LaneTask]) -> None:
        """Wait for whatever these lanes have under way, and tell them."""
        for lane in lanes:
            while lane in self._lines:
                with self._news:
                    self._news.wait_for(lambda: self._answers)
                self.look()
            self._rests.pop(lane, None)

    def close(self) -> None:
        """Perform nothing more; wait for what is under way."""
        with self._news:
            for line in self._lines.values():
                line.todo.clear()
        self._pool.shutdown(cancel_futures=True)

    # In a thread ------------------------------------------------------------------------------

    def _perform(self, lane: LaneTask, line: _Line) -> None:
        while True:
            with self._news:
                if not line.todo:
                    line.running = False
                    return
                instruction = line.todo.popleft()
            answer: _Answer
            try:
                (answer,) = lane.perform([instruction])
            except BaseException as error:  # noqa: BLE001 - the host's thread raises it
                answer = error
            with self._news:
                self._answers.append((lane, instruction, answer))
                self._news.notify_all()
