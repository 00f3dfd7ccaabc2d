"""The testing kit that ships: `run` for users' unit tests, faulty wrappers, the explorer.

Most names are loaded when they are asked for: pytest loads the plugin, and so
this package, in every project it is installed in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not lazy: the function `explore` has to take the module's place before anybody asks for it.
from delivery.testing.explore import Found, Report, Violation, World, explore, replay

if TYPE_CHECKING:
    from delivery.records import Output, Record
    from delivery.testing.faulty import Crashed, Fault, FaultyStore, Request, Wire
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

#: Where the other names are. No other module may be called like one of them: importing it would put
#: the module in the name's place.
_HOMES = {
    name: module
    for module, names in {
        "delivery.records": ("Output", "Record"),
        "delivery.testing.faulty": ("Crashed", "Fault", "FaultyStore", "Request", "Wire"),
        "delivery.testing.faulty_ports": ("FaultyEmitter", "FaultyReader", "check_emitter"),
        "delivery.testing.source": ("CRASH", "ROUND", "Repeat"),
        "delivery.testing.trials": ("PlanFailed", "RunResult", "StoppedInPlanError", "run"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
