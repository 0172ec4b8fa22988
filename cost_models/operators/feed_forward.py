"""Operators of a block's MLP: two matrices or three with a gate, or a mixture of experts in its place.

In a model with both, blocks are priced as their average: an operator counts with the share of the blocks that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from cost_models.operators.record import Gemm, Operator, Place, Tensor, multiply
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.transformer import TransformerSpec

_WITH_THE_EXPERTS: frozenset[SelectiveDrops] = frozenset({"experts"})
"""A policy that drops what experts keep runs the mixture again, with its router and shared experts."""
_WITH_SHARED_EXPERTS: frozenset[SelectiveDrops] = frozenset({"experts", "shared-experts"})
_WITH_THE_MLP: frozenset[SelectiveDrops] = frozenset({"dense-mlp"})


def feed_forward_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """From the normed stream to what is added to it; without the norms over the stream."""
    mixture, dense = model.moe_share, model.dense_share
    return (
        *(_mlp(model, "mlp", model.ffn_hidden_size, dense) if dense else ()),
        *(_mixture(model, mixture) if mixture else ()),
    )


def _mlp(
    model: TransformerSpec, name: Literal["mlp", "expert", "shared"], width: int, share: float
) -> Iterator[Operator]:
    """The matrices of a dense block, of each routed expert or of the shared experts; two up run as one wide product."""
    dense, routed, matrices = name == "mlp", name == "expert", 2 if model.gated_mlp else 1
    h, inner = model.hidden_size, Tensor(width=width, place="expert" if routed else "split")
    redone = {"mlp": _WITH_THE_MLP, "shared": _WITH_SHARED_EXPERTS}.get(name, _WITH_THE_EXPERTS)
    common: dict[str, Any] = {"half": "mlp", "share": share, "bias": model.mlp_bias, "redone_by": redone}
    if routed:
        common |= {"experts": model.num_experts, "passed": model.experts_per_token}
    reads: Place = "copies" if routed else "entrance"
    kept_already = name == "shared" or (dense and model.forked)
    up = Gemm(
        inputs=h,
        outputs=(width,) * matrices,
        split="columns",
        routed=routed,
        behind_norm=dense,
        kept_share=dense / matrices,
    )
    down = Gemm(inputs=width, outputs=(h,), split="rows", routed=routed, last=dense)
    yield multiply(f"{name} up", up, reads=reads, kept=width, shares_input=kept_already, **common)
    yield Operator(
        name=f"{name} activation",
        kind="activation",
        half="mlp",
        share=share,
        reads=inner,
        inputs=matrices,
        launched=name != "shared",
        redone_by=redone | {"expert-activations"} if routed else redone,
    )
    # a parallel block adds what it returns to attention's output
    shares = dense and model.parallel_block
    of_activation = "expert-activations" if routed else None
    yield multiply(
        f"{name} down",
        down,
        reads=inner.place,
        shares_gradient=shares,
        reads_output_of=of_activation,
        **common,
    )


def _mixture(model: TransformerSpec, share: float) -> Iterator[Operator]:
    """Router, the way to the experts and back, routed experts, and shared experts, which every token passes through."""
    common: dict[str, Any] = {"half": "mlp", "share": share, "redone_by": _WITH_THE_EXPERTS}
    h = model.hidden_size
    router = Gemm(inputs=h, outputs=(model.num_experts,), split="whole", router=True)
    yield multiply(
        "router",
        router,
        reads="entrance",
        bias=model.router_bias,
        shares_input=model.forked,
        reads_output_of=None if model.forked else "norms",
        **common,
    )
    yield Operator(name="routing", kind="routing", reads=Tensor(width=h, place="sent"), **common)
    yield from _mlp(model, "expert", model.moe_ffn_hidden_size, share)
    if width := model.shared_expert_ffn_hidden_size:
        yield from _mlp(model, "shared", width, share)
    if model.shared_expert_gate:
        yield Operator(
            name="shared gate",
            kind="gate",
            reads=Tensor(width=h, place="entrance"),
            returns=Tensor(width=1, place="whole"),
            weights={"whole": h},
            flops=2.0 * h,
            shares_input=True,
            **common,
        )
