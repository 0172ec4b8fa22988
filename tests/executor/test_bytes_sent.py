"""Bytes that collectives carry in a step, counted operator by operator: as the cost model prices them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from processes import Processes
from training import LLAMA, plan_for

from planner.plan import Plan

MESSAGE_BYTES = 8 * 16 * LLAMA["hidden_size"] * 4
"""One activation: sequences, tokens, width, bytes of fp32."""
MESSAGES = 4 * LLAMA["num_layers"] + 2


def sent(plan: Plan) -> tuple[Counter[str], Counter[str], int]:
    """Collectives of one step: how many of each kind, bytes of their whole messages; and bytes of all parameters."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from executor.batches import Batches
    from executor.engine import Engine, Options

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.times: Counter[str] = Counter()
            self.bytes: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.namespace in ("c10d", "_c10d_functional"):
                name = func.overloadpacket.__name__
                found = _tensors((args, result))
                self.times[name] += 1
                self.bytes[name] += max((one.nbytes for one in found), default=0)  # the whole message
            return result

    engine = Engine(plan, torch.device("cpu"), Options())
    parameters = sum(one.numel() * one.element_size() for part in engine.parts for one in part.parameters())
    batch = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0).slice(
        0, engine.place.dp, plan.layout.dp
    )
    with Watch() as watch:
        engine.step(*batch)
    return watch.times, watch.bytes, parameters


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)


def test_tensor_parallel_ranks_reduce_what_is_priced(processes: Processes) -> None:
    """Two messages of b·s·h a block each way, one for the embedding forward and one for the head backward."""
    times, sizes, _ = processes.run(2, sent, plan_for("tp2 mbs8", LLAMA))[0]
    assert times["all_reduce"] == MESSAGES
    assert sizes["all_reduce"] == MESSAGES * MESSAGE_BYTES


def test_sequence_parallel_ranks_gather_and_scatter_what_is_priced(processes: Processes) -> None:
    """The same messages, each gathered and scattered; none is gathered again, since DTensor kept them."""
    times, sizes, _ = processes.run(2, sent, plan_for("tp2 sp mbs8", LLAMA))[0]
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        assert times[name] == MESSAGES
        assert sizes[name] == MESSAGES * MESSAGE_BYTES


@pytest.mark.parametrize(
    ("layout", "gathers"),
    [
        ("dp2 mbs4 zero1", 1),
        ("dp2 mbs2 zero3", 2 * 2),  # before forward and before backward of both microbatches
    ],
)
def test_data_parallel_ranks_send_what_is_priced(layout: str, gathers: int, processes: Processes) -> None:
    """Every gradient scattered once a step; every weight gathered once, or as often as it is needed."""
    _, sizes, parameter_bytes = processes.run(2, sent, plan_for(layout, LLAMA))[0]
    assert sizes["_reduce_scatter_base_"] == parameter_bytes
    assert sizes["_allgather_base_"] == gathers * parameter_bytes
