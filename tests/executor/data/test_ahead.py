"""Batches come one step ahead, and ranks that work on the same sequences read them once."""

from __future__ import annotations

import threading
from collections import Counter
from unittest import mock

import pytest
import torch
from training import LLAMA, plan_for

from executor.data.batches import Ahead
from planner.plan import Plan

CPU = torch.device("cpu")
STEPS = 3


def test_the_next_batch_is_drawn_while_a_step_runs() -> None:
    drawn = [threading.Event() for _ in range(STEPS + 1)]

    def draw(number: int) -> int:
        drawn[number].set()
        return number * number

    ahead = Ahead(draw, CPU, last=STEPS - 1)
    for number in range(STEPS):
        assert ahead.take(number) == number * number
        assert drawn[number + 1].wait(10) if number + 1 < STEPS else not drawn[STEPS].is_set()
    assert ahead.take(0) == 0


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_taken() -> None:
    ahead = Ahead(lambda number: 1 // number, CPU, last=1)
    with pytest.raises(ZeroDivisionError):
        ahead.take(0)
    assert ahead.take(1) == 1


def reads(plan: Plan) -> tuple[Counter[tuple[int, int]], list[tuple[list[int], list[int]]], list[int]]:
    """(step, sequence) that this rank read; tokens and targets that it got in each step; its virtual stages."""
    from executor.axes.axis import Rank
    from executor.data.batches import Batches, SharedBatches
    from executor.run_config import EngineOptions

    found: Counter[tuple[int, int]] = Counter()
    own = Batches.tokens

    def counted(self: Batches, step: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        found.update((step, sequence) for sequence in range(first, last))
        return own(self, step, first, last)

    with mock.patch.object(Batches, "tokens", counted):
        rank = Rank(plan, CPU, EngineOptions())
        batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
        shared = SharedBatches(batches, rank, plan.layout.num_stages, STEPS - 1)
        taken = [shared.take(step) for step in range(STEPS)]
    return found, [(tokens.tolist(), targets.tolist()) for tokens, targets in taken], rank.stages


@pytest.mark.parametrize(("layout", "readers"), [("tp2 cp2 mbs8", 1), ("tp2 dp2 mbs4", 1), ("pp4 mbs2", 2)])
def test_each_sequence_is_read_once_by_those_that_work_on_it(layout: str, readers: int, processes) -> None:
    """Once by the first stage and once by the last; the two between them read none."""
    from executor.data.batches import Batches

    plan = plan_for(layout, LLAMA)
    everyone = processes.run(plan.layout.num_gpus, reads, plan)
    batch = plan.training.global_batch
    total: Counter[tuple[int, int]] = sum((found for found, _, _ in everyone), Counter())
    assert total == {(step, sequence): readers for step in range(STEPS) for sequence in range(batch)}
    alone = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    for found, taken, stages in everyone:
        assert not found or {0, plan.layout.pp - 1} & set(stages)
        for step, (tokens, _) in enumerate(taken):
            whole = alone.between(step, 0, batch)[0].tolist()
            if {0, plan.layout.pp - 1} & set(stages):
                assert tokens == whole[: len(tokens)] or tokens == whole[-len(tokens) :]
            else:
                assert not torch.tensor(tokens).any()
