"""Pipeline schedules as action tables, and the timeline that prices them."""

from cost_models.schedules.actions import Action, ActionTable, live_profiles
from cost_models.schedules.registry import build, legal
from cost_models.schedules.timeline import CriticalPath, Timeline, compile_timeline

__all__ = [
    "Action",
    "ActionTable",
    "CriticalPath",
    "Timeline",
    "build",
    "compile_timeline",
    "legal",
    "live_profiles",
]
