"""Every placement of a few plain layouts, priced one by one: the oracle of objectives and frontiers."""

from __future__ import annotations

from itertools import product

from small import small_question

from cost_models.axes.stages import mix_of
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts

FEW = ("vpp=1", "mbs=1", "zero=1", "schedule=1f1b", "pp=1,2")
"""Axes fixed so that everything can be priced."""


def few_layouts(memory: str = "220 MiB") -> tuple[Question, Restrictions]:
    """A question and restrictions that leave some thousand plans."""
    return small_question(memory=memory), parse_restrictions(FEW, ["sp=0"])


def every_plan(question: Question, restrictions: Restrictions) -> list[Estimate]:
    """All placements of all layouts, every stage with every number of blocks under every policy."""
    columns = enumerate_layouts(question, restrictions)
    found = []
    for row in range(len(columns)):
        layout = columns.layout(row)
        for layers in _sizes(question.model.num_layers, layout.num_stages):
            for recompute in product(*(_mixes(blocks) for blocks in layers)):
                placed = layout.model_copy(update={"layers": layers, "recompute": recompute})
                found.append(estimate(question, type(layout)(**placed.model_dump())))
    return found


def _sizes(blocks: int, stages: int) -> list[tuple[int, ...]]:
    if stages == 1:
        return [(blocks,)]
    return [(first, *rest) for first in range(1, blocks) for rest in _sizes(blocks - first, stages - 1)]


def _mixes(blocks: int) -> list[str]:
    counts = product(range(blocks + 1), repeat=len(RECOMPUTE_POLICIES))
    return [mix_of(each) for each in counts if sum(each) == blocks]
