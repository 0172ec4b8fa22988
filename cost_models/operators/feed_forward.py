"""Operators of a block's MLP: two matrices or three with a gate, or a mixture of experts in its place.

In a model with both, blocks are priced as their average: an operator counts with the share of the blocks that have it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.operators.record import Gemm, Operator, Place, Tensor, multiply
from cost_models.specs.transformer import TransformerSpec


def feed_forward_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """From the normed stream to what is added to it; without the norms over the stream."""
    mixture = model.moe_share
    return (
        *(_dense(model, 1 - mixture) if mixture < 1 else ()),
        *(_mixture(model, mixture) if mixture else ()),
    )


def _dense(model: TransformerSpec, share: float) -> Iterator[Operator]:
    width, bias, shares = model.ffn_hidden_size, model.mlp_bias, model.forked
    up = _up(model, width, behind_norm=True, kept_share=1 / _matrices_up(model))
    yield multiply(
        "mlp up", up, half="mlp", share=share, reads="entrance", bias=bias, kept=width, shares_input=shares
    )
    yield _activation(model, "mlp activation", share, width, "split")
    yield multiply(
        "mlp down",
        _down(model, width, last=True),
        half="mlp",
        share=share,
        reads="split",
        bias=bias,
        shares_gradient=model.parallel_block,  # with attention's, to which it is added
    )


def _mixture(model: TransformerSpec, share: float) -> Iterator[Operator]:
    """Router, the way to the experts and back, routed experts, and shared experts, which every token passes through."""
    h, bias, shares = model.hidden_size, model.mlp_bias, model.forked
    router = Gemm(inputs=h, outputs=(model.num_experts,), split="whole", router=True)
    yield multiply(
        "router",
        router,
        half="mlp",
        share=share,
        reads="entrance",
        bias=model.router_bias,
        shares_input=shares,
    )
    yield Operator(
        name="routing", kind="routing", half="mlp", share=share, reads=Tensor(width=h, place="sent")
    )
    width = model.moe_ffn_hidden_size
    each = {"experts": model.num_experts, "passed": model.experts_per_token}
    up, down = _up(model, width, routed=True), _down(model, width, routed=True)
    yield multiply("expert up", up, half="mlp", share=share, reads="copies", bias=bias, kept=width, **each)
    yield _activation(model, "expert activation", share, width, "expert")
    yield multiply("expert down", down, half="mlp", share=share, reads="expert", bias=bias, **each)
    if width := model.shared_expert_ffn_hidden_size:
        up, down = _up(model, width), _down(model, width)
        yield multiply(
            "shared up",
            up,
            half="mlp",
            share=share,
            reads="entrance",
            bias=bias,
            kept=width,
            shares_input=True,
        )
        yield _activation(model, "shared activation", share, width, "split", launched=False)
        yield multiply("shared down", down, half="mlp", share=share, reads="split", bias=bias)
    if model.shared_expert_gate:
        yield Operator(
            name="shared gate",
            kind="gate",
            half="mlp",
            share=share,
            reads=Tensor(width=h, place="entrance"),
            returns=Tensor(width=1, place="whole"),
            weights={"whole": h},
            flops=2.0 * h,
            shares_input=True,
        )


def _matrices_up(model: TransformerSpec) -> int:
    return 2 if model.gated_mlp else 1


def _up(
    model: TransformerSpec,
    width: int,
    *,
    routed: bool = False,
    behind_norm: bool = False,
    kept_share: float = 0.0,
) -> Gemm:
    """A gated MLP's two matrices up run as one wide product."""
    return Gemm(
        inputs=model.hidden_size,
        outputs=(width,) * _matrices_up(model),
        split="columns",
        routed=routed,
        behind_norm=behind_norm,
        kept_share=kept_share,
    )


def _down(model: TransformerSpec, width: int, *, routed: bool = False, last: bool = False) -> Gemm:
    return Gemm(inputs=width, outputs=(model.hidden_size,), split="rows", routed=routed, last=last)


def _activation(
    model: TransformerSpec, name: str, share: float, width: int, place: Place, *, launched: bool = True
) -> Operator:
    return Operator(
        name=name,
        kind="activation",
        half="mlp",
        share=share,
        reads=Tensor(width=width, place=place),
        inputs=_matrices_up(model),
        launched=launched,
    )
