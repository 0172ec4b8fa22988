"""Layouts drawn from all that the planner may offer the executor, for parity with one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from training import GPT, LATENT, LLAMA, question_for

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import allowed_recompute
from cost_models.defaults import OWN_STACK
from cost_models.files.catalog import load_stack
from cost_models.schedules.registry import SPLIT_BACKWARD
from planner.rules.legality import check
from planner.rules.stack import RUNNABLE
from planner.space.restrictions import parse_restrictions
from planner.space.space import enumerate_layouts

OFFLOADS = (
    "",
    "states",
    "parked:1",
    "streamed",
    "states:1/parked:1/streamed",
    "activations",
    "streamed/activations",
)
"""What a drawn layout may keep in host memory."""
T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]

_SIZE: dict[str, Any] = {"num_layers": 8, "num_heads": 8}
_GROUPED = LLAMA | _SIZE | {"num_kv_heads": 4}
_ROUTED: dict[str, Any] = {"num_experts": 8, "experts_per_token": 3, "moe_ffn_hidden_size": 32}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": GPT | _SIZE,
    "llama": _GROUPED,
    "qwen": _GROUPED | {"qk_norm": True, "tied_embeddings": True, "head_dim": 8},
    "alibi": GPT | _SIZE | {"positions": "alibi", "tied_embeddings": False},
    "windowed": _GROUPED | {"attention_window": 11},
    "side by side": _GROUPED | {"parallel_block": True, "num_layers": 6, "mlp_bias": True},
    "mixture": _GROUPED | _ROUTED,
    "deepseek": LATENT
    | _SIZE
    | _ROUTED
    | {"num_kv_heads": 8, "num_moe_layers": 7, "shared_expert_ffn_hidden_size": 48, "mlp_bias": True},
}
"""Models with everything that a layout may treat differently."""
JOB: dict[str, Any] = {"sequence_length": 32}


@cache
def legal_layouts(shape: str, ranks: int, stack: str = OWN_STACK) -> LayoutColumns:
    """Every layout of a model over so many ranks that breaks neither a rule of legality nor one of the executor."""
    question = replace(question_for(SHAPES[shape], ranks, **JOB), stack=load_stack(stack))
    columns = enumerate_layouts(question, parse_restrictions([], []))
    assert unbroken(RUNNABLE, question, columns).all()
    return columns


def completed(layout: Layout, shape: str, choose: Choose[Any], offload: Sequence[str] = ("",)) -> Layout:
    """The layout with blocks on its stages, evenly or not, something to recompute, and one of some offloads."""
    stages, blocks = layout.num_stages, int(SHAPES[shape]["num_layers"])
    layers = _spread(blocks, stages, choose) if blocks % stages or choose((False, True)) else ()
    policies = [*allowed_recompute(layout.schedule)]
    if stages <= blocks and len(policies) > 1:  # else some stage has no block to name
        policies.append(f"{policies[-1]}:1")
        if "full" in policies and "selective" in policies:
            policies.append("full:1/selective")
    each = choose((False, True))
    recompute = tuple(choose(policies) for _ in range(stages if each else 1))
    whole = Layout.model_validate(layout.model_dump() | {"layers": layers, "recompute": recompute})
    way = "" if layout.schedule in SPLIT_BACKWARD else choose(offload)
    if way:
        whole = parse_layout(f"{whole} offload={way}")
    assert not check(question_for(SHAPES[shape], layout.num_gpus, **JOB), whole)
    return whole


def _spread(blocks: int, stages: int, choose: Choose[Any]) -> tuple[int, ...]:
    """At least one block a stage, the others where they fall; of more stages than blocks the ends have none."""
    layers = [1] * stages
    empty = stages - blocks
    if empty == 1:
        layers[choose((0, -1))] = 0
    elif empty == 2:
        layers[0] = layers[-1] = 0
    for _ in range(blocks - stages):
        layers[choose(range(stages))] += 1
    return tuple(layers)
