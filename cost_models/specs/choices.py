"""Names that stacks, training jobs and layouts may choose from: schedules, orders of axes, overlaps and
recompute policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from cost_models.schedules.registry import REGISTRY

SCHEDULES = tuple(REGISTRY)
"""Names of all pipeline schedules; a table of layouts stores a schedule as its index in this tuple."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[SCHEDULES]

Context = Literal["ring", "all-gather", "all-to-all"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
"""Context-parallel methods to exchange keys and values: a ring that overlaps attention, an all-gather before
it, or an all-to-all that trades token shards for head shards (Ulysses)."""

Order = Literal["tp-cp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp"]
ORDERS: tuple[Order, ...] = get_args(Order)
"""Orders of the mesh axes, each from the axis with adjacent ranks outwards."""
DEFAULT_ORDER: Order = ORDERS[0]

LinkKind = Literal["nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet", "xgmi", "shared-memory"]
"""Kinds of links between GPUs."""

Degree = Literal["tp", "pp", "cp", "ep"]
Overlap = Literal["tp", "pp", "dp"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
"""Mesh axes whose communication a layout may overlap with compute."""

Recompute = Literal["none", "selective", "full"]
RECOMPUTE_POLICIES: tuple[Recompute, ...] = get_args(Recompute)
"""Recompute policies (activation checkpointing): `none`, `selective` (the parts of a block that the stack's
`selective_drops` names), `full` (entire blocks)."""
Module = Literal["core", "block-attention", "experts"]
Output = Literal["norms", "expert-activations", "latent-heads"]
"""Values of `selective_drops` for which Megatron Core discards only a module's output and recomputes that
output."""
SelectiveDrops = Literal[Module, "all-but-every-other-product", Output, "dense-mlp", "shared-experts"]
CORE: frozenset[SelectiveDrops] = frozenset({"core"})
OUTPUTS: frozenset[SelectiveDrops] = frozenset(get_args(Output))
ATTEND_AGAIN: frozenset[SelectiveDrops] = CORE | {"block-attention", "all-but-every-other-product"}
"""Values of `selective_drops` with which the backward pass repeats attention scores, softmax and weighted
values. Or it repeats the exchange of their inputs between context-parallel ranks."""
