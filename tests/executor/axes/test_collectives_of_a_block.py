"""How often the ranks of a tensor-parallel group meet in a block, and those that share a sequence: as priced."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from processes import Processes
from training import GPT, plan_for

from cost_models.specs.choices import CONTEXTS
from planner.plan import Plan

SIDE_BY_SIDE = GPT | {"parallel_block": True}
BLOCKS = GPT["num_layers"]


def collectives(plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """Names of the collectives in the forward pass of one microbatch, and in its backward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from executor.data.batches import Batches
    from executor.engine.engine import Engine, loss
    from executor.run_config import EngineOptions

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace in ("c10d", "_c10d_functional"):
                self.seen[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    pair = batches.slice(0, 0, plan.layout.microbatches(plan.training.global_batch))
    inputs, targets = (engine.take(one) for one in pair)
    with engine.inside_step():
        with Watch() as forward:
            logits = engine.parts[0](inputs)
        value = loss(logits, targets)
        with Watch() as backward:
            value.backward()
    return forward.seen, backward.seen


def of_ranks(
    processes: Processes, layout: str, model: dict[str, object]
) -> tuple[Counter[str], Counter[str]]:
    plan = plan_for(layout, model)
    return processes.run(plan.layout.num_gpus, collectives, plan)[0]


@pytest.mark.parametrize(("model", "times"), [(GPT, 2), (SIDE_BY_SIDE, 1)])
def test_a_block_side_by_side_is_reduced_once(model, times: int, processes) -> None:
    """What both found is added before the ranks add theirs; the embedding or the head takes one more."""
    forward, _ = of_ranks(processes, "tp2 mbs8", model)
    assert forward["all_reduce"] == times * BLOCKS + 1
    forward, _ = of_ranks(processes, "tp2 sp mbs8", model)
    assert forward["all_gather_into_tensor"] == times * BLOCKS + 1
    assert forward["reduce_scatter_tensor"] == times * BLOCKS + 1


def test_halves_with_a_norm_each_enter_apart_and_leave_together(processes) -> None:
    model = SIDE_BY_SIDE | {"parallel_norms": 2}
    forward, backward = of_ranks(processes, "tp2 mbs8", model)
    assert (forward["all_reduce"], backward["all_reduce"]) == (BLOCKS + 1, 2 * BLOCKS + 1)
    forward, _ = of_ranks(processes, "tp2 sp mbs8", model)
    assert forward["all_gather_into_tensor"] == 2 * BLOCKS + 1
    assert forward["reduce_scatter_tensor"] == BLOCKS + 1


CONTEXT_COLLECTIVES = {
    "ring": ({"alltoall_base_": 1}, {"alltoall_base_": 2}),
    "all-gather": ({"_allgather_base_": 1}, {"_allgather_base_": 1, "_reduce_scatter_base_": 1}),
    "all-to-all": ({"alltoall_base_": 2}, {"alltoall_base_": 2}),
}
"""Way → collectives of a block on two ranks, forward and backward. A ring of two passes keys and values on once, and
in the backward pass their gradients as well."""


@pytest.mark.parametrize("way", CONTEXTS)
def test_context_ranks_meet_as_often_as_priced(way: str, processes) -> None:
    for seen, expected in zip(
        of_ranks(processes, f"cp2 mbs8 context={way}", GPT), CONTEXT_COLLECTIVES[way], strict=True
    ):
        assert seen == {name: count * BLOCKS for name, count in expected.items()}
