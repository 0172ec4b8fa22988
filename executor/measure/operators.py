"""The share of forward and backward, waits for others apart, in which operators compute, by torch's profiler.

On a CPU that is the time inside torch's own operators, without those that only hand work on to the same operator on the
shards of a `DTensor`; Python, autograd and dispatch are the rest. On a GPU it is the time in which a kernel other than
NCCL's runs. A share, because a busy machine stretches operators and the rest alike.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from executor.measure.step_spans import Recordable
from executor.timing import Waits, finish, lap_between, mark_on

_MICROSECOND = 1e-6
_OPERATOR = "aten::"


def operator_share(engine: Recordable, inputs_BS: Tensor, targets_BS: Tensor) -> float:
    """Train one step, its forward and backward pass profiled; at most 1."""
    on_gpu = engine.device.type == "cuda"
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        finish(engine.device)
        dist.barrier()
        start = mark_on(engine.device)
        with waits.watching():
            engine.forward_backward(inputs_BS, targets_BS)
        end = mark_on(engine.device)
        waited = sum(waits.seconds().values())
    engine.update()
    events = profiler.events() or []
    computed = _kernels(events) if on_gpu else _operators(events)
    busy = lap_between(start, end).wall - waited
    return min(1.0, computed / busy) if busy > 0 else 1.0


def _operators(events: list[FunctionEvent]) -> float:
    seconds = 0.0
    for event in events:
        if event.name.startswith(_OPERATOR) and all(child.name != event.name for child in event.cpu_children):
            seconds += event.self_cpu_time_total * _MICROSECOND
    return seconds


def _kernels(events: list[FunctionEvent]) -> float:
    """Length of the union of the kernels' spans, which overlap on different streams."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == DeviceType.CUDA and "nccl" not in event.name.lower()
    )
    seconds, reached = 0.0, float("-inf")
    for start, end in spans:
        seconds += max(0.0, end - max(start, reached)) * _MICROSECOND
        reached = max(reached, end)
    return seconds
