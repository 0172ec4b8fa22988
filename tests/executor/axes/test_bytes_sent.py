"""Bytes that collectives carry in a step, and how often ranks meet in a block, as torch sees them: what is priced.

A message is the whole tensor that a group gathers, scatters, reduces or trades, as `cost_models.communication` has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from effort import few
from training import LLAMA, MOE, SHARED, engine_and_batches, plan_for

from cost_models.axes.columns import LayoutColumns
from cost_models.communication import by_axis, collectives
from cost_models.communication.topology import AxisGroups, Groups, axis_groups
from cost_models.operators.parameters import parameters
from planner.plan import Plan

MESSAGE_BYTES = 8 * 16 * LLAMA["hidden_size"] * 4
"""One activation: sequences, tokens, width, bytes of fp32."""
LOSS_BYTES = 8 * 16 * 4
NORM_BYTES = 8
GATHER, SCATTER, TRADE = "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_"
"""As the operators are named that work in place; those of DTensor and of experts are functions."""


class Sent(NamedTuple):
    """One collective of a step on one rank."""

    name: str
    update: bool
    """Of the second phase."""
    message: int
    """Bytes of its largest tensor: what is gathered, or what is scattered."""
    mine: int
    """Bytes that this rank brings."""
    alone: bool
    """The group is this rank; nothing is sent."""


def sent(plan: Plan) -> tuple[list[Sent], int]:
    """Every collective of one step, in order; and bytes of all parameters of this rank."""
    from torch.distributed.distributed_c10d import _resolve_process_group
    from torch.distributed.tensor.debug import CommDebugMode

    found: list[Sent] = []

    class Watch(CommDebugMode):
        update = False

        def __init__(self) -> None:
            super().__init__()
            self.advanced_module_tracker = _NOWHERE

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            before = self.get_total_counts()
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if self.get_total_counts() > before:
                brought, came = list(_tensors(args)), list(_tensors(result))
                mine = brought[0] if func.namespace == "_c10d_functional" else brought[-1]
                message = max(one.nbytes for one in brought + came)
                alone = isinstance(args[-1], str) and _resolve_process_group(args[-1]).size() == 1
                found.append(Sent(func.overloadpacket.__name__, self.update, message, mine.nbytes, alone))
            return result

    engine, batch = engine_and_batches(plan)
    watch = Watch()
    with watch:
        engine.forward_backward(*batch(0))
        watch.update = True
        engine.update()
    held = sum(one.numel() * one.element_size() for part in engine.parts for one in part.parameters())
    return found, held


_NOWHERE = SimpleNamespace(
    name="Global",
    is_bw=False,
    activation_checkpointing=False,
    module_parents_dict={"Global": set()},
    __enter__=lambda: None,
    __exit__=lambda *error: None,
)
"""Instead of what follows modules, which (torch 2.13) loses its way in the second forward pass of a step."""


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)


def messages(found: list[Sent], *names: str) -> list[int]:
    return [one.message for one in found if one.name in names]


def size(message: npt.ArrayLike, groups: Groups, profile: object) -> npt.NDArray[np.float64]:
    """Instead of what a collective takes, its message."""
    return np.where(groups.size > 1, np.asarray(message, dtype=np.float64), 0.0)


def size_of_a_share(message: npt.ArrayLike, groups: Groups, profile: object) -> npt.NDArray[np.float64]:
    """Of what is traded, which is priced by what all ranks have together, what one of them has."""
    return size(message, groups, profile) / groups.size


@pytest.fixture
def in_bytes(monkeypatch) -> None:
    """Costs of communication come out as the bytes of all messages that they are made of."""
    for name in [name for name in vars(by_axis) if hasattr(collectives, name) and name.endswith("_seconds")]:
        monkeypatch.setattr(by_axis, name, size_of_a_share if name == "all_to_all_seconds" else size)


SIDE_BY_SIDE = LLAMA | {"parallel_block": True}
TWO_NORMS = SIDE_BY_SIDE | {"parallel_norms": 2}


@pytest.mark.parametrize(("model", "of_a_block"), [(LLAMA, 4), (SIDE_BY_SIDE, 2), (TWO_NORMS, 3)])
def test_tensor_parallel_ranks_send_what_is_priced(model: dict[str, Any], of_a_block: int, processes) -> None:
    """Two messages of b·s·h a block each way, one for the embedding forward and one for the head backward: reduced, or
    gathered and scattered where the sequence is split. Halves side by side share a message, but where each has a norm.

    Not priced are the three numbers a token that a loss over a split vocabulary takes.
    """
    sizes = (of_a_block * LLAMA["num_layers"] + 2) * [MESSAGE_BYTES]
    found, _ = processes.run(2, sent, plan_for("tp2 mbs8", model))[0]
    assert sorted(messages(found, "all_reduce")) == 3 * [LOSS_BYTES] + sizes
    found, _ = processes.run(2, sent, plan_for("tp2 sp mbs8", model))[0]
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        assert messages(found, name) == sizes


@pytest.mark.parametrize("way", ["ring", "all-gather", "all-to-all"])
def test_context_parallel_ranks_send_what_is_priced(way: str, processes, in_bytes) -> None:
    """Keys and values round or to everyone, and gradients back; or heads for tokens."""
    plan = plan_for(f"cp2 mbs4 context={way}", LLAMA)
    found, _ = processes.run(2, sent, plan)[0]
    columns, groups = _columns_and_groups(plan)
    none = np.zeros(1)
    priced = by_axis.context_seconds(plan.question, columns, groups.cp, none, none)
    passes = LLAMA["num_layers"] * plan.layout.microbatches(plan.training.global_batch)
    seen = messages([one for one in found if not one.update], GATHER, SCATTER, TRADE)
    assert sum(seen) == passes * (priced.forward + priced.backward)[0] > 0


@few(1)
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (MOE, "dp2 mbs2 ep2"),
        (SHARED, "tp2 mbs4 ep2 etp1"),
        (MOE, "tp2 sp mbs4 ep2 etp1"),
        (SHARED, "tp2 sp mbs4 etp2"),
        (MOE, "cp2 mbs4 ep2"),
    ],
)
def test_experts_trade_what_is_priced(model: dict[str, Any], layout: str, processes, in_bytes) -> None:
    """Copies there and back, forward and backward; gathered and scattered where ranks share an expert.

    A rank gets as many as its experts are popular, so those of all ranks are counted. Not priced are the numbers of
    copies, which ranks exchange first.
    """
    plan = plan_for(layout, model)
    everyone = processes.run(plan.layout.num_gpus, sent, plan)
    trades = [
        one for found, _ in everyone for one in found if one.name == "all_to_all_single" and not one.alone
    ]
    seen = sum(one.mine for one in trades)
    priced = by_axis.expert_seconds(plan.question, *_columns_and_groups(plan))[0]
    passes = 2 * model["num_layers"] * plan.layout.microbatches(plan.training.global_batch)
    assert seen == plan.layout.num_gpus * passes * priced > 0


@pytest.mark.parametrize(
    "layout",
    ["dp2 mbs4 zero1", "dp2 mbs2 zero3", "dp2 mbs4 zero2", "dp4 shard2 mbs2 zero1", "dp4 shard2 mbs1 zero3"],
)
def test_data_parallel_ranks_send_what_is_priced(layout: str, processes, in_bytes) -> None:
    """Every gradient scattered once a step, and its share added up over shard groups; every weight gathered once, or
    under ZeRO-3 before forward and before backward of every microbatch. Not priced are the two numbers of the
    gradient's norm."""
    plan = plan_for(layout, LLAMA)
    found, held = processes.run(plan.layout.num_gpus, sent, plan)[0]
    seen = messages(found, GATHER, SCATTER, "allreduce_")
    seen.remove(NORM_BYTES)
    columns, groups = _columns_and_groups(plan)
    counts = parameters(plan.model, columns.tp)
    modules = [counts.block] * plan.model.num_layers + [
        counts.embedding,
        counts.head_vectors + counts.head_matrix,
    ]
    priced = [by_axis.data_seconds(plan.question, columns, groups.data, module) for module in modules]
    microbatches = plan.layout.microbatches(plan.training.global_batch)
    assert sum(module[0] for module in modules) * 4 == held
    assert sum(seen) == sum(
        microbatches * (one.gather + one.gather + one.backward_reduce)[0]
        + (one.step_reduce + one.step_gather)[0]
        for one in priced
    )


def _columns_and_groups(plan: Plan) -> tuple[LayoutColumns, AxisGroups]:
    columns = LayoutColumns.of([plan.layout])
    return columns, axis_groups(plan.question.cluster, columns)
