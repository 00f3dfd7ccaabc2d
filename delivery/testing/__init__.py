"""The testing kit that ships: `run` for users' unit tests, faulty wrappers, the explorer.

What brings numpy and pyarrow along is loaded when it is asked for: pytest loads the plugin, and so
this package, in every project it is installed in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from delivery.records import Output, Record
from delivery.testing.explore import Found, Report, Violation, World, explore, replay
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Request, Wire

if TYPE_CHECKING:
    from delivery.testing.faulty_ports import FaultyEmitter, FaultyReader, check_emitter
    from delivery.testing.source import CRASH, ROUND, Repeat
    from delivery.testing.trials import PlanFailed, RunResult, StoppedInPlanError, run

__all__ = [
    "CRASH",
    "ROUND",
    "Crashed",
    "Fault",
    "FaultyEmitter",
    "FaultyReader",
    "FaultyStore",
    "Found",
    "Output",
    "PlanFailed",
    "Record",
    "Repeat",
    "Report",
    "Request",
    "RunResult",
    "StoppedInPlanError",
    "Violation",
    "Wire",
    "World",
    "check_emitter",
    "explore",
    "replay",
    "run",
]

#: Where the other names are. A module may not be called like one of them: importing it would put
#: the module in the name's place.
_HOMES = {
    **dict.fromkeys(("CRASH", "ROUND", "Repeat"), "delivery.testing.source"),
    **dict.fromkeys(
        ("FaultyEmitter", "FaultyReader", "check_emitter"), "delivery.testing.faulty_ports"
    ),
    **dict.fromkeys(
        ("PlanFailed", "RunResult", "StoppedInPlanError", "run"), "delivery.testing.trials"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
