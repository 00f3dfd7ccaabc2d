"""What is refused of a declaration by its words alone, before anything of it means something.

What it is: `said_right`, which refuses options there are none of; `one_of` and `refuse_no_text`,
which refuse values; `refuse_mute`, of functions that return nothing though outputs are declared.
What it must not know: pipelines, engines.

Invariants:
    A refusal says what was said, that nothing was started, and what may be said.
    User code is looked at, never called; of what cannot be looked into nothing is said.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, get_args

from dedup.errors import InvalidUsage
from delivery.blame import place_of

__all__ = ["one_of", "refuse_mute", "refuse_no_text", "said_right"]

_Said = ParamSpec("_Said")
_Made = TypeVar("_Made")

#: What an option that is a text says.
_MEANT = {
    "catalog": "sqlite:PATH or cassandra://HOST:PORT/KEYSPACE",
    "kafka": "HOST:PORT of its brokers, as in localhost:9092",
    "reads": "one topic; what reads several topics is several stages",
    "writes": "a topic, or a tuple of topics",
}
#: Of functions that return something to wait for or to go through, whatever their code says.
_YIELDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def said_right(
    op: str, **choices: object
) -> Callable[[Callable[_Said, _Made]], Callable[_Said, _Made]]:
    """Let a method refuse the options that it does not have, and say which was meant.

    Args:
        op: what is being done.
        choices: of the options that are one of several words, the `Literal` of these.
    """

    def around(method: Callable[_Said, _Made]) -> Callable[_Said, _Made]:
        known = [name for name in inspect.signature(method).parameters if name != "self"]

        @functools.wraps(method)
        def checked(*args: _Said.args, **options: _Said.kwargs) -> _Made:
            for name, value in options.items():
                if name not in known:
                    like = get_close_matches(name, known, n=1)
                    meant = f"did you mean {like[0]}? " if like else ""
                    raise InvalidUsage(
                        op,
                        f"option {name}",
                        f"there is none of this name; nothing was started: {meant}It takes "
                        f"{', '.join(known)}",
                    )
                if name in choices:
                    one_of(choices[name], **{name: value})
            return method(*args, **options)

        return checked

    return around


def one_of(choices: Any, **said: object) -> None:
    """Refuse a value that is none of a `Literal`'s."""
    allowed = get_args(choices) or tuple(choices)
    for name, value in said.items():
        if value not in allowed:
            words = " or ".join(f'"{one}"' for one in allowed)
            raise InvalidUsage(
                "declare a stage", f"{name}={value!r}", f"nothing was started: say {words}"
            )


def refuse_no_text(op: str, **said: object) -> None:
    """Refuse options that are no text, or an empty one."""
    for name, value in said.items():
        if not isinstance(value, str) or not value:
            lacks = (
                " (is the environment variable set that it comes from?)" if value is None else ""
            )
            raise InvalidUsage(
                op, f"{name}={value!r}{lacks}", f"nothing was started: say {_MEANT[name]}"
            )


def refuse_mute(name: str, call: Callable[..., Any], writes: tuple[str, ...]) -> None:
    """Refuse a function that can return nothing but None, though it is to write something."""
    if not writes or not isinstance(call, FunctionType) or call.__code__.co_flags & _YIELDING:
        return
    steps = list(dis.get_instructions(call))
    given = [
        step.argval if step.opname == "RETURN_CONST" else before.argval
        for before, step in zip([steps[0], *steps], steps, strict=False)
        if step.opname == "RETURN_CONST"
        or (step.opname == "RETURN_VALUE" and before.opname == "LOAD_CONST")
    ]
    returns = sum(step.opname in {"RETURN_VALUE", "RETURN_CONST"} for step in steps)
    # One that only raises returns nothing at all, and that may be meant.
    if returns and len(given) == returns and not any(one is not None for one in given):
        place = place_of(call)
        raise InvalidUsage(
            "declare a stage",
            f"{name}: writes {', '.join(writes)}",
            f"its function never returns anything{place and f', at {place}'}: each input would be "
            "sealed with nothing made of it, and never run again; nothing was started: return "
            "record.replace(value=...) or yield it, or leave writes= out if no output is meant",
        )
