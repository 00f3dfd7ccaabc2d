"""What the code says of a name: its docstring, its arguments, its comments, as lines of a document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import EnumMeta
from importlib import import_module
from typing import Any

from dedup.errors import DeliveryError
from delivery.life.stages import Life
from delivery.receiver import Bundle, Receiver

#: Objects of these the library makes, and nobody else.
HANDED_OUT = (Receiver, Bundle, Life)

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n", re.MULTILINE)
#: What a first line ends with whose arguments are explained at the function that does it.
_ELSEWHERE = re.compile(r"^[^\n]*; see `(delivery\.[\w.]+)`\.")
_ENTRY = re.compile(r"^    ([^\s:][^:\n]*):[ ](.*(?:\n {5,}.*)*)", re.MULTILINE)
#: A default that is longer says less than three dots.
_DEFAULT_CHARACTERS_MAX = 30


def told(thing: Any) -> tuple[str, dict[str, dict[str, str]], str]:
    """Take a docstring apart: its prose, its sections of named entries, what is returned."""
    before, *rest = _SECTION.split(inspect.getdoc(thing) or "")
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    entries = {
        title: {name.lstrip("*"): " ".join(text.split()) for name, text in _ENTRY.findall(body)}
        for title, body in sections.items()
    }
    if elsewhere := _ELSEWHERE.search(before):
        inner = getattr(import_module(elsewhere[1]), thing.__name__)
        entries = told(inner)[1] | entries
    returned = sections.get("Returns", sections.get("Yields", ""))
    return before.strip(), entries, " ".join(returned.split())


def noted(owner: Any, name: str) -> str:
    """Return the `#:` comment above a name that is given a value or a type."""
    found = re.search(rf"((?:^ *#: .*\n)+) *{name}(?: =|:)", inspect.getsource(owner), re.MULTILINE)
    return " ".join(re.findall(r"#: (.*)", found[1])) if found else ""


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return getattr(annotation, "__forward_arg__", None) or (
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )


def arguments(thing: Any) -> list[inspect.Parameter]:
    """List what is given to a function, or to a class; nothing where users are handed objects."""
    if isinstance(thing, property | EnumMeta) or getattr(thing, "_is_protocol", False):
        return []
    if inspect.isclass(thing):
        handed_out = thing in HANDED_OUT or issubclass(thing, DeliveryError)
        if handed_out and thing is not DeliveryError:
            return []
    try:
        given = inspect.signature(thing).parameters.values()
    except ValueError:  # an exception that takes what exceptions take
        return []
    return [one for one in given if one.name != "self"]


def _argument(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    text = f"{stars}{one.name}: {_type(one.annotation)}".removesuffix(": ")
    if one.default is one.empty:
        return text
    default = repr(one.default)
    plain = "<" not in default and len(default) <= _DEFAULT_CHARACTERS_MAX
    return f"{text} = {default if plain else '...'}"


def members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, its own and those it inherits from us."""
    if not inspect.isclass(thing) or isinstance(thing, EnumMeta):
        return
    seen = {"exit_code"}
    for owner in thing.__mro__:
        ours = owner.__module__.split(".")[0] in ("delivery", "dedup")
        for name, member in vars(owner).items() if ours else ():
            function = inspect.isfunction(member) or isinstance(member, property)
            if function and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def entry(name: str, thing: Any, level: int = 3) -> Iterator[str]:
    """Yield the lines about one name: what it is, what it takes, what it may raise, what it has."""
    prose, sections, returned = told(thing)
    yield from (f"{'#' * level} {name}", "", prose, "")
    given = arguments(thing)
    known = {one.name for one in given}
    texts = {name: text for name, text in sections.get("Args", {}).items() if name in known}
    texts |= sections.get("Attributes", {})
    if inspect.isclass(thing):
        texts = {one.name: noted(thing, one.name) for one in given} | texts
    lines = [f"- `{_argument(one)}`: {texts.pop(one.name, '')}".rstrip(": ") for one in given]
    lines += [f"- `{attribute}`: {text}" for attribute, text in texts.items()]
    if isinstance(thing, EnumMeta):
        lines += [f"- `{one.name}`: {noted(thing, one.name)}".rstrip(": ") for one in thing]
    lines += [f"- raises `{kind}`: {text}" for kind, text in sections.get("Raises", {}).items()]
    kind = _type(getattr(thing, "fget", thing).__annotations__.get("return", "None"))
    if not inspect.isclass(thing) and kind != "None":
        lines += [f"- returns `{kind}`: {returned}".rstrip(": ")]
    yield from [*lines, ""] if lines else ()
    for member, inner in members(thing):
        yield from entry(f"{name}.{member}", inner, level + 1)
