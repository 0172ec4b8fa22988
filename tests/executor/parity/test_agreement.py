"""Ranks that were not given the same job end before they train a step together."""

from __future__ import annotations

import pytest
import torch
from training import plan_for

from cost_models.errors import InputError
from executor.launch.rendezvous import require_same_job
from executor.run_config import RunConfig
from planner.plan import Plan


def objections(plans: list[Plan], steps: list[int]) -> str:
    """What this rank says to its plan and flags."""
    rank = torch.distributed.get_rank()
    try:
        require_same_job(plans[rank], RunConfig(steps=steps[rank]), torch.device("cpu"))
    except InputError as error:
        return error.headline
    return ""


@pytest.mark.parametrize(
    ("layouts", "steps", "said"),
    [
        (("dp2 mbs2", "dp2 mbs2"), [3, 3], ""),
        (("dp2 mbs2", "dp2 mbs4"), [3, 3], "ranks were started with different plans or flags"),
        (("dp2 mbs2", "dp2 mbs2"), [3, 4], "ranks were started with different plans or flags"),
    ],
)
def test_all_ranks_say_so_where_one_differs(layouts, steps, said, processes) -> None:
    assert processes.run(2, objections, [plan_for(layout) for layout in layouts], steps) == [said, said]
