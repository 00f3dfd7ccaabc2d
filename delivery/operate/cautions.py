"""What in a pipeline's code would break the promise, or surprise: read from its source, never run.

What it is: `of_stage` and `of_pipeline`.
What it must not know: rates, catalogs.

Invariants:
    A warning says what would happen to records and what to do instead. What cannot be read is said
    to be unread.
    User code is parsed, with the names it sees resolved; it is not called.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from delivery.api import Delivery
from delivery.host.spec import StageSpec, there_is
from delivery.naming import BY_PLACE

__all__ = ["Caution", "of_pipeline", "of_stage"]

#: How deep functions that user code calls are followed.
DEPTH_MAX = 3
#: Functions whose answers differ from call to call, by module; an empty set: all of them.
_CHANCE: dict[str, frozenset[str]] = {
    "random": frozenset(),
    "_random": frozenset(),
    "secrets": frozenset(),
    "uuid": frozenset({"uuid1", "uuid4", "uuid6", "uuid7", "getnode"}),
    "time": frozenset(
        {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
        | {"localtime", "gmtime", "ctime"}
    ),
    "datetime": frozenset({"now", "utcnow", "today"}),
    "os": frozenset({"urandom", "getpid", "getrandom"}),
    "posix": frozenset({"urandom", "getpid", "getrandom"}),
}
#: Modules that reach outside.
_OUTSIDE = {
    *("requests", "httpx", "urllib", "http", "socket", "smtplib", "subprocess", "aiohttp"),
    *("boto3", "botocore", "psycopg", "psycopg2", "sqlite3", "redis", "pymongo", "confluent_kafka"),
}
_HOUR_MS = 3_600_000
#: How alike a topic that nobody makes and one that nobody reads are if one of them is mistyped:
#: orders and orders.priced are not.
LIKE_MIN = 0.8


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing to look at: the stage, what it is about, and what happens."""

    stage: str
    about: str
    text: str


def of_pipeline(delivery: Delivery) -> Iterator[Caution]:
    """Yield what concerns no single stage."""
    if not delivery.stages:
        yield Caution(
            "", "stages", "it declares no stage; jobs that wrap their ends have none here"
        )
    scheme = delivery.catalog.partition(":")[0]
    if scheme == "memory":
        yield Caution(
            "", "catalog", "memory: is gone with its process, and all that was decided with it"
        )
    elif scheme == "sqlite":
        yield Caution(
            "",
            "catalog",
            "SQLite serves one machine: with a Spark master that spans several, use cassandra://",
        )
    round_ = [spec.name for spec in delivery.stages if _goes_round(spec, delivery.stages)]
    if round_:
        yield Caution(
            "",
            "loop",
            f"{', '.join(round_)} read what is made of what they write: unless their code ends it, a "
            "record goes round for ever",
        )
    yield from _mistyped(delivery.stages)
    if delivery.home == "":
        yield Caution(
            "",
            "home",
            'home="" keeps indexes of lanes in each process alone: every one that starts makes them '
            "anew from the catalog; leave it out, and hosts keep them",
        )


def _mistyped(stages: Sequence[StageSpec]) -> Iterator[Caution]:
    """Yield inputs that nobody makes and that look like an output that nobody reads."""
    made = {name for spec in stages for name in spec.kafka_topics}
    for spec in stages:
        if spec.reads in made:
            continue
        others = {name for one in stages if one is not spec for name in one.writes}
        unread = sorted(others - {one.reads for one in stages})
        like = there_is(spec.reads, unread, like=LIKE_MIN)
        if like:
            yield Caution(
                spec.name,
                "input",
                f"it reads {spec.reads}, which no stage here writes{like}, which none reads: mend the "
                "name if they are to be one, or the stage gets nothing of it",
            )


def _goes_round(spec: StageSpec, stages: Iterable[StageSpec]) -> bool:
    """Tell whether a stage's outputs come back to it."""
    seen: set[str] = set()
    found = set(spec.writes)
    while found - seen:
        seen |= found
        found = {name for one in stages if one.reads in seen for name in one.writes}
    return spec.reads in seen


def of_stage(spec: StageSpec, made: Mapping[str, StageSpec]) -> Iterator[Caution]:
    """Yield what concerns a stage.

    Args:
        spec: the stage.
        made: topics that stages of this pipeline write, and which.
    """
    yield from _of_names(spec, internal=spec.reads in made)
    if spec.time_from is not None:
        yield from _of_times(spec, internal=spec.reads in made)
    if spec.keep_ids:
        return
    chance, outside, unread = _uses(spec.call)
    if outside:
        yield Caution(
            spec.name,
            "effects",
            f"it calls {', '.join(outside)}: such calls may run more than once for a record, and only "
            "one result counts; where a repeat does harm, let the other side know the record's id",
        )
    if chance:
        yield Caution(
            spec.name,
            "chance",
            f"it uses {', '.join(chance)}: "
            + (
                "BREAKS THE STAGE: it is declared deterministic, and a process that must send again "
                "what another one sealed would make something else, find that out, and stop; leave out "
                "deterministic=True"
                if spec.deterministic
                else "that is fine, one execution counts; it must not be declared deterministic"
            ),
        )
    if spec.deterministic:
        yield Caution(
            spec.name,
            "deterministic",
            "its outputs are not stored: to send them again they are made again from the input, so "
            "the input must be kept for longer than the stage may stand still, new code starts only "
            "once all of the old is delivered, and nothing can be replayed from the catalog",
        )
    if unread:
        yield Caution(spec.name, "source", f"not looked into: {', '.join(unread)}")
    if spec.dead_letters is None:
        yield Caution(
            spec.name,
            "failures",
            "a record that fails three times stops the stage; dead_letters= puts it aside instead, "
            "and is said before the stage's first start or never",
        )
    if spec.window_ms < _HOUR_MS and spec.time_from is None:
        yield Caution(
            spec.name,
            "window",
            f"a publisher's repeat that comes later than {spec.window_ms // 1000} s takes effect again",
        )


def _of_times(spec: StageSpec, *, internal: bool) -> Iterator[Caution]:
    if internal and not spec.rekeyed:
        yield Caution(
            spec.name,
            "time_from",
            "what it reads is remembered by the sequence of the stage that made it; time_from says "
            "nothing there",
        )
    elif spec.time_from == "timestamp":
        yield Caution(
            spec.name,
            "time_from",
            "Kafka's timestamps are when a record was sent, unless its publisher sets them: one that is "
            "sent again must say the time of the first, or it takes effect again behind the window",
        )


def _of_names(spec: StageSpec, *, internal: bool) -> Iterator[Caution]:
    if internal:
        if spec.named is not None:
            yield Caution(
                spec.name,
                "id_from",
                "what it reads is named by the stage that made it; id_from says nothing there",
            )
        return
    if spec.named is None:
        yield Caution(
            spec.name,
            "id_from",
            BY_PLACE,
        )
    elif callable(spec.named):
        chance, outside, unread = _uses(spec.named)
        if chance or outside:
            yield Caution(
                spec.name,
                "id_from",
                f"BREAKS THE PROMISE: ids are built from {', '.join((*chance, *outside))}: each "
                "reading of a record gives it another name, so that no repeat is ever told; build "
                "them from the record alone",
            )
        if unread:
            yield Caution(spec.name, "id_from", f"not looked into: {', '.join(unread)}")
    if spec.named is not None and not spec.keep_ids and spec.named != "key":
        yield Caution(
            spec.name,
            "dedup",
            "repeats are told within a partition: if a publisher without keys may send one again "
            'into another partition, say dedup="topic"',
        )


def _uses(call: Callable[..., Any]) -> tuple[list[str], list[str], list[str]]:
    """Return what a function uses that differs by call, what reaches outside, what is unread."""
    chance: dict[str, None] = {}
    outside: dict[str, None] = {}
    unread: dict[str, None] = {}
    _look(inspect.unwrap(call), (chance, outside, unread), 0, set())
    return list(chance), list(outside), list(unread)


def _look(
    call: Callable[..., Any],
    found: tuple[dict[str, None], dict[str, None], dict[str, None]],
    depth: int,
    seen: set[int],
) -> None:
    if id(call) in seen or depth > DEPTH_MAX:
        return
    seen.add(id(call))
    chance, outside, unread = found
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError):
        unread[getattr(call, "__qualname__", repr(call))] = None
        return
    known = _known(call)
    known |= _imported(tree)
    for chain in _chains(tree):
        root, *rest = chain
        if root == "hash" and "hash" not in known:
            chance["the built-in hash"] = None
            continue
        if root not in known:
            continue
        words, value = _resolved(known[root], rest)
        top = words.partition(".")[0]
        if isinstance(value, FunctionType) and value.__module__ == call.__module__:
            _look(value, found, depth + 1, seen)
        elif _is_chance(words):
            chance[words] = None
        elif top in _OUTSIDE:
            outside[words] = None


def _is_chance(words: str) -> bool:
    if words.startswith("numpy.random."):
        return True
    module, dot, name = words.partition(".")
    named = _CHANCE.get(module)
    return bool(dot) and named is not None and (not named or name.rpartition(".")[2] in named)


def _known(call: Callable[..., Any]) -> dict[str, Any]:
    """Return what names mean where a function was written."""
    function = call if isinstance(call, FunctionType) else getattr(call, "__func__", None)
    if not isinstance(function, FunctionType):
        return {}
    inner = inspect.getclosurevars(function)
    return {**function.__globals__, **inner.nonlocals}


def _imported(tree: ast.AST) -> dict[str, Any]:
    """Return what a function imports itself, by name alone: nothing is imported here."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name.partition(".")[0]] = one.name
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                found[one.asname or one.name] = f"{node.module}.{one.name}"
    return found


def _chains(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield dotted names as they are used, the longest form of each."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner:
            parts: list[str] = []
            at: ast.AST = node
            while isinstance(at, ast.Attribute):
                parts.insert(0, at.attr)
                at = at.value
            if isinstance(at, ast.Name):
                yield (at.id, *parts)


def _resolved(value: Any, rest: list[str]) -> tuple[str, Any]:
    """Return what a dotted name means in words, and the value if it is one."""
    if isinstance(value, str):
        return ".".join((value, *rest)), None
    words = _words(value)
    for part in rest:
        if not isinstance(value, ModuleType | type):
            return ".".join((words, *rest)), None
        value = getattr(value, part, None)
        words = f"{words}.{part}"
        if isinstance(value, ModuleType):
            words = value.__name__
    return words, value


def _words(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None) or type(value).__module__
    # What is bound to a hidden instance, as in `random.random`, belongs to its module.
    if hasattr(value, "__self__") and isinstance(value.__self__, ModuleType):
        module = value.__self__.__name__
    elif hasattr(value, "__self__"):
        module = type(value.__self__).__module__
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{module}.{name}"
