"""Operators of a block's MLP: two matrices or three with a gate, or a mixture of experts in its place.

The projector between a vision tower and its decoder is such matrices, too.

In a model with both, blocks are priced as their average: an operator counts with the share of the blocks that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from cost_models.operators.record import Gemm, Operator, Place, Tensor, multiply
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.model.tower import Tower
from cost_models.specs.transformer import TransformerSpec

TOWER_NORM = "tower norm"
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


def projector_operators(tower: Tower, model: TransformerSpec) -> Iterator[Operator]:
    """The tower's last norm and the projector, which run with the decoder's first block (LLaVA: Liu et al. 2023, arXiv
    2304.08485, section 4.1), of so many tokens of images for each of a sequence's, for which widths are said. Tensor
    ranks split matrices as they do an MLP's, a single one by its inputs."""
    rows, inputs, inner = tower.share, tower.projector_inputs, tower.projector_hidden_size
    gains = 2 if tower.norm == "layernorm" else 1
    norms = (
        (TOWER_NORM, tower.hidden_size, tower.norm_after),
        ("projector norm", inputs, tower.projector_norm),
    )
    for name, width, there in norms:
        if there:
            over = Tensor(width=rows * inputs, place="whole")
            yield Operator(
                name=name,
                kind="norm",
                half="attention",
                reads=over,
                returns=over,
                norm=tower.norm,
                weights={"whole": gains * width},
            )
    biased = tower.projector_bias
    if inner:
        up = Gemm(inputs=inputs, outputs=(inner,), split="columns", rows=rows)
        yield multiply("projector up", up, half="attention", reads="whole", bias=biased)
        within = Tensor(width=rows * inner, place="split")
        yield Operator(name="projector activation", kind="activation", half="attention", reads=within)
    down = Gemm(inputs=inner or inputs, outputs=(model.hidden_size,), split="rows", rows=rows)
    yield multiply("projector down", down, half="attention", reads="split", bias=biased)
