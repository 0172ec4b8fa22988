"""Operators between a vision tower and its decoder: the tower's last norm, and the projector.

They run with the decoder's first block, of so many tokens of images for each of a sequence's; tensor ranks split the
projector's matrices as they do an MLP's, a single one by its inputs (LLaVA: Liu et al. 2023, arXiv 2304.08485, section
4.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.operators.record import Gemm, Operator, Tensor, multiply
from cost_models.specs.model.tower import Tower
from cost_models.specs.transformer import TransformerSpec

TOWER_NORM = "tower norm"


def projector_operators(tower: Tower, model: TransformerSpec) -> Iterator[Operator]:
    """Their widths are for each token of a sequence."""
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
