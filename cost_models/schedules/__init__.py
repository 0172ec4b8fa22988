"""Pipeline schedules as action tables, and the timeline that prices them."""

from cost_models.schedules.actions import IDLE, KINDS, Action, ActionTable
from cost_models.schedules.halves import backward_halves
from cost_models.schedules.liveness import live_profiles, pending_profiles
from cost_models.schedules.registry import build, legal
from cost_models.schedules.timeline import CriticalPath, Timeline, compile_timeline
from cost_models.schedules.traits import (
    SPLIT_BACKWARD,
    allowed_recompute,
    rank_of_stage,
    stages_of_rank,
)

__all__ = [
    "IDLE",
    "KINDS",
    "SPLIT_BACKWARD",
    "Action",
    "ActionTable",
    "CriticalPath",
    "Timeline",
    "allowed_recompute",
    "backward_halves",
    "build",
    "compile_timeline",
    "legal",
    "live_profiles",
    "pending_profiles",
    "rank_of_stage",
    "stages_of_rank",
]
