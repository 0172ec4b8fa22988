"""Pipeline schedules as action tables, and the timeline that prices them."""

from cost_models.schedules.actions import IDLE, KINDS, Action, ActionTable
from cost_models.schedules.liveness import live_profiles, pending_profiles
from cost_models.schedules.registry import (
    PLAIN,
    REGISTRY,
    SPLIT_BACKWARD,
    V_SHAPED,
    build,
    is_scheduled,
    legal,
    rank_of_stage,
    schedule_named,
    shortened,
    stages_of_rank,
)
from cost_models.schedules.schedule import PipelineSchedule
from cost_models.schedules.timeline import CriticalPath, Timeline, backward_halves, compile_timeline

__all__ = [
    "IDLE",
    "KINDS",
    "PLAIN",
    "REGISTRY",
    "SPLIT_BACKWARD",
    "V_SHAPED",
    "Action",
    "ActionTable",
    "CriticalPath",
    "PipelineSchedule",
    "Timeline",
    "backward_halves",
    "build",
    "compile_timeline",
    "is_scheduled",
    "legal",
    "live_profiles",
    "pending_profiles",
    "rank_of_stage",
    "schedule_named",
    "shortened",
    "stages_of_rank",
]
