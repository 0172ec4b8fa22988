"""Rows that cost the same are priced once: many rows together cost what each costs alone, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns, codes_of
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, as_priced, stage_costs
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from planner.space.restrictions import Restrictions
from planner.space.space import enumerate_layouts

ROWS = 3000
FEW = 40


def question(model: str, stack: str) -> Question:
    training = TrainingSpec(global_batch=64, sequence_length=2048)
    return complete_question(
        catalog.load_model(model), resolve_cluster("dgx-a100-80gb", 32), training, stack=stack
    )


def mixed_rows(asked: Question) -> LayoutColumns:
    """Legal layouts from all over the space, in no order."""
    rows = enumerate_layouts(asked, Restrictions())
    chosen = np.random.default_rng(0).permutation(len(rows))[:ROWS]
    return rows.rows(chosen)


def same_bits(one: StageCosts, other: StageCosts) -> bool:
    both = one.in_sorts, other.in_sorts
    return all(getattr(both[0], name).tobytes() == getattr(both[1], name).tobytes() for name in COLUMNS)


@pytest.mark.parametrize("stack", catalog.names("stacks"))
@pytest.mark.parametrize("model", ["llama2-7b", "deepseek-v2-lite"])
def test_many_rows_cost_what_each_costs_alone(model: str, stack: str) -> None:
    asked = question(model, stack)
    rows = mixed_rows(asked)
    costs = stage_costs(asked, rows)
    for row in range(0, len(rows), max(1, len(rows) // FEW)):
        index = slice(row, row + 1)
        assert same_bits(costs.rows(index), stage_costs(asked, rows.rows(index)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_costs_what_the_one_it_is_priced_as_costs(schedule: str) -> None:
    asked = question("llama2-7b", "torchtitan")
    retains: StackSpec = asked.stack.model_copy(update={"torch_pipelining": False})
    free = replace(asked, stack=retains)
    for stack in (asked, free):
        rows = mixed_rows(stack).rows(slice(0, FEW))
        rows = replace(rows, schedule=np.full(len(rows), SCHEDULES.index(schedule)), vpp=2 * rows.vpp)
        assert same_bits(stage_costs(stack, rows), stage_costs(stack, as_priced(stack, rows)))


@given(st.lists(st.tuples(*[st.integers(-(10**5), 10**5) | st.integers(0, 3)] * 6), min_size=1, max_size=60))
def test_a_code_is_as_different_and_as_ordered_as_its_values(rows: list[tuple[int, ...]]) -> None:
    codes = codes_of([np.array(column) for column in zip(*rows, strict=True)]).tolist()
    for one, code in zip(rows, codes, strict=True):
        for other, another in zip(rows, codes, strict=True):
            assert (one < other) == (code < another)
