"""A catalog of which only some lanes were put back from a backup.

What it is: one function on the memory store's tables.
What it must not know: why; lanes whose head lives in a user's own database stay where they are.

Invariants:
    A lane's rows come from one side, all of them.
"""

from __future__ import annotations

from dedup.catalog.memory import Tables


def mixed(now: Tables, restored: Tables, back: tuple[str, ...]) -> Tables:
    """Return the tables with only some lanes put back."""

    def chosen(name: str) -> Tables:
        return restored if name in back else now

    names = {*now.lanes, *restored.lanes}
    mixed = Tables()
    for name in sorted(names):
        source = chosen(name)
        if name in source.lanes:
            mixed.lanes[name] = source.lanes[name]
        if name in source.lists:
            mixed.lists[name] = source.lists[name]
    for table in (now, restored):
        for key, entry in table.entries.items():
            if chosen(key[0]) is table:
                mixed.entries[key] = entry
        for place, chunks in table.chunks.items():
            if chosen(place[1].lane) is table:
                mixed.chunks[place] = chunks
    return mixed
