"""Pipeline parallelism: ranks, the chunks of the model that each holds, and the schedule they follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from cost_models.axes.axis import Axis
from cost_models.axes.words import Choice, Number
from cost_models.schedules.registry import REGISTRY, schedule_named

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout

SCHEDULES = tuple(REGISTRY)
"""Names of the schedules, by which columns of layouts number them."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[SCHEDULES]


def goes_with(schedule: Schedule, vpp: int) -> bool:
    """Whether the schedule runs this number of chunks a rank."""
    return schedule_named(schedule).runs_chunks(vpp)


def _implied_chunks(given: Mapping[str, Any]) -> int | None:
    if given.get("schedule") not in list(REGISTRY):
        return None
    fewest, most = REGISTRY[given["schedule"]].chunks
    return fewest if fewest == most else None


def _implied_schedule(given: Mapping[str, Any]) -> Schedule:
    return "interleaved" if given.get("vpp", 1) != 1 else "1f1b"


def _schedule_complaint(layout: Layout) -> str:
    if goes_with(layout.schedule, layout.vpp):
        return ""
    return f"schedule {layout.schedule} does not go with vpp{layout.vpp}"


PP = Axis(word=Number(), always_written=True, common=True)
VPP = Axis(word=Number(), implied=_implied_chunks, common=True)
SCHEDULE = Axis(
    word=Choice(SCHEDULES),
    implied=_implied_schedule,
    written=lambda layout: layout.schedule != _implied_schedule({"vpp": layout.vpp}),
    complaint=_schedule_complaint,
    common=True,
    must_be_chosen=True,
)
