"""Names of the choices that stacks, training jobs and layouts may write: schedules, orders, overlaps,
recompute policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from cost_models.schedules.registry import REGISTRY

SCHEDULES = tuple(REGISTRY)
"""Names of pipeline schedules; columns of layouts hold an index into this tuple."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[SCHEDULES]

Context = Literal["ring", "all-gather", "all-to-all"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
"""Ways in which ranks that share a sequence exchange keys and values: passed round behind attention, gathered
before it, or by trading tokens for heads (Ulysses)."""

Order = Literal["tp-cp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp"]
ORDERS: tuple[Order, ...] = get_args(Order)
"""Orders of the mesh axes from neighbouring ranks outwards, Megatron's default first."""
DEFAULT_ORDER: Order = ORDERS[0]

LinkKind = Literal["nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet", "xgmi", "shared-memory"]
"""Kinds of links between GPUs."""

Degree = Literal["tp", "pp", "cp", "ep"]
Overlap = Literal["tp", "pp", "dp"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
"""Axes whose communication may run behind compute."""

Recompute = Literal["none", "selective", "full"]
RECOMPUTE_POLICIES: tuple[Recompute, ...] = get_args(Recompute)
"""Activations that the forward pass drops and the backward pass recomputes: none, those that the stack's
selective policy names, or whole blocks."""
Module = Literal["core", "block-attention", "experts"]
Output = Literal["norms", "expert-activations", "latent-heads"]
"""Selective drops that Megatron Core applies by discarding only a module's output and recomputing it."""
SelectiveDrops = Literal[Module, "all-but-every-other-product", Output, "dense-mlp", "shared-experts"]
CORE: frozenset[SelectiveDrops] = frozenset({"core"})
OUTPUTS: frozenset[SelectiveDrops] = frozenset(get_args(Output))
ATTEND_AGAIN: frozenset[SelectiveDrops] = CORE | {"block-attention", "all-but-every-other-product"}
"""Selective drops after which the backward pass runs the attention core again, or exchanges its inputs
again."""
