"""Names of what a layout chooses among, as stacks, training jobs and layouts write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from cost_models.schedules.registry import REGISTRY

SCHEDULES = tuple(REGISTRY)
"""Pipeline schedules, by which columns of layouts number them."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[SCHEDULES]

Context = Literal["ring", "all-gather", "all-to-all"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
"""How ranks that share a sequence get one another's keys and values: passed round behind attention, gathered before
it, or by trading tokens for heads (Ulysses)."""

Order = Literal["tp-cp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp"]
ORDERS: tuple[Order, ...] = get_args(Order)
"""Mesh axes from neighbouring ranks outwards, Megatron's default first."""
DEFAULT_ORDER: Order = ORDERS[0]

LinkKind = Literal["nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet", "xgmi", "shared-memory"]
"""Kinds of links between GPUs."""

Degree = Literal["tp", "pp", "cp", "ep"]
Overlap = Literal["tp", "pp", "dp"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
"""Axes whose communication may run behind compute."""

Recompute = Literal["none", "selective", "full"]
RECOMPUTE_POLICIES: tuple[Recompute, ...] = get_args(Recompute)
"""What is dropped in the forward pass and recomputed in backward: nothing, what the stack's selective policy names,
whole blocks."""
SelectiveDrops = Literal[
    "core",
    "block-attention",
    "experts",
    "all-but-every-other-product",
    "norms",
    "expert-activations",
    "latent-heads",
    "dense-mlp",
    "shared-experts",
]
CORE: frozenset[SelectiveDrops] = frozenset({"core"})
OUTPUTS: frozenset[SelectiveDrops] = frozenset({"norms", "expert-activations", "latent-heads"})
"""Of those: what Megatron Core runs again after its output, and nothing else of it, was discarded."""
ATTEND_AGAIN: frozenset[SelectiveDrops] = frozenset(
    {"core", "block-attention", "all-but-every-other-product"}
)
"""Those that run the attention core once more, or exchange again what it reads."""
