"""Memcore: where every byte of a deep-learning job goes, and what it costs in time."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.errors import Issue, PlanError
    from memcore.evaluate import evaluate
    from memcore.plan.plan import Plan
    from memcore.report import Report
    from memcore.search.search import search
    from memcore.search.servers import search_servers
    from memcore.search.solver import solve
    from memcore.search.sweep import sweep

__all__ = [
    "Issue",
    "Plan",
    "PlanError",
    "Report",
    "evaluate",
    "search",
    "search_servers",
    "solve",
    "sweep",
]
__version__ = "0.4.0"
_ROOMS = {
    **dict.fromkeys(("Issue", "PlanError"), "memcore.errors"),
    "Plan": "memcore.plan.plan",
    "Report": "memcore.report",
    "evaluate": "memcore.evaluate",
    "search": "memcore.search.search",
    "search_servers": "memcore.search.servers",
    "solve": "memcore.search.solver",
    "sweep": "memcore.search.sweep",
}


class _Face(ModuleType):
    """Each name of the package is imported when it is first asked for, so that a command starts at
    once; a room of the same name does not take its place."""

    def __getattr__(self, name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_ROOMS[name]), name)
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _ROOMS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
