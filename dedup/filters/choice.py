"""How filters are made, as users choose it.

What it is: `Filters`: the engine, the rate and the key, checked where they are said.
What it must not know: files, lanes.

Invariants:
    The key is a secret: it stands in no `repr` and in no error.
    What is chosen decides what a look-up costs, never what a verdict is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dedup.errors import InvalidUsage
from dedup.filters.files import ENGINE_DEFAULT, ENGINES, RATE_DEFAULT
from dedup.filters.port import KEY_BYTES
from dedup.filters.sizing import RATE_MAX, RATE_MIN

_OP = "choose filters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """How filters are made.

    Attributes:
        engine: "blocked", or "pybloom-live", which is about a hundred times slower.
        rate: the share of new ids that may cost an exact look-up.
        key: 16 secret bytes, if strangers can choose ids: without it they could choose such as
            fill a filter unevenly, and make look-ups of everything. The same for all processes.

    Raises:
        InvalidUsage: there is no such engine, its package is missing, or nothing can be made so.
    """

    engine: str = ENGINE_DEFAULT
    rate: float = RATE_DEFAULT
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what could not be made, before anything is started."""
        if self.engine not in ENGINES:
            raise InvalidUsage(
                _OP,
                f"engine={self.engine!r}",
                f"there is no such engine; nothing was started: say one of {', '.join(ENGINES)}",
            )
        rate: object = self.rate
        if not isinstance(rate, int | float) or not RATE_MIN <= rate <= RATE_MAX:
            raise InvalidUsage(
                _OP,
                f"rate={rate!r}",
                f"nothing was started: choose a number from {RATE_MIN} to {RATE_MAX}",
            )
        key: object = self.key
        size = len(key) if isinstance(key, bytes) else None
        if key is not None and size != KEY_BYTES:
            raise InvalidUsage(
                _OP,
                f"a key that is {type(key).__name__}" + ("" if size is None else f" of {size}"),
                f"a key is {KEY_BYTES} bytes; nothing was started: make one with "
                f"secrets.token_bytes({KEY_BYTES}), keep it where other secrets are, and give all "
                "processes the same",
            )
        # Another package than ours makes the bits of some: it is there, or this is the place to say.
        ENGINES[self.engine].version()
