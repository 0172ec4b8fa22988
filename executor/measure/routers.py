"""Measures how evenly the routers of a run spread tokens over experts, by MoE layer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from executor.axes.expert import routers
from executor.engine.engine import Engine
from executor.measure.report import RouterReport
from executor.models.transformer import Transformer


def routers_so_far(engine: Engine) -> tuple[RouterReport, ...]:
    """The load of every MoE layer since the last call; every rank must call it."""
    model, training = engine.plan.model, engine.plan.training
    if not model.has_experts:
        return ()
    loads = take_loads(engine.parts, model.num_layers, model.num_experts, engine.device)
    return router_reports(loads, training.tokens_per_step * model.experts_per_token)


def take_loads(
    parts: Iterable[Transformer], num_layers: int, num_experts: int, device: torch.device
) -> Tensor:
    """(layers, E) copies of tokens that each expert got on all ranks together since the last call, on every rank.

    Where a block is recomputed its copies count twice, all of them alike.
    """
    loads = torch.zeros(num_layers, num_experts, dtype=torch.long, device=device)
    for part in parts:
        for layer, block in part.blocks.items():
            for routed in routers(block):
                loads[int(layer)] += routed.take_load().to(device)
    dist.all_reduce(loads)
    return loads.cpu()


def router_reports(loads: Tensor, copies_per_step: float) -> tuple[RouterReport, ...]:
    """A report for each layer of (layers, E) `loads` that has any; its experts get `copies_per_step` together."""
    return tuple(
        _report(layer, load.double(), copies_per_step) for layer, load in enumerate(loads) if load.sum() > 0
    )


def _report(layer: int, load_E: Tensor, copies_per_step: float) -> RouterReport:
    share_E = load_E / load_E.sum()
    experts = len(load_E)
    entropy = -float(torch.special.xlogy(share_E, share_E).sum())
    return RouterReport(
        layer=layer,
        mean_load=copies_per_step / experts,
        largest_load=float(share_E.max()) * experts,
        smallest_load=float(share_E.min()) * experts,
        entropy=entropy / math.log(experts) if experts > 1 else 1.0,
    )
