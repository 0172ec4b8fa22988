"""Products of a parallel block that a stack runs as one: attention and MLP read one input and are added to one sum.

Matrices side by side fill the last wave of tiles once, and matrices whose outputs are added have one long inner
dimension. PaLM (Chowdhery et al. 2022, section 2) joins them so; MegaScale (section 3.1) runs the two halves of a
parallel block at once, which is priced as the same.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.operators.record import Operator
from cost_models.operators.tuning import job_operators
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.tuning import TuningSpec


def product_operators(
    model: TransformerSpec, *, joined: bool, tuning: TuningSpec | None = None
) -> tuple[Operator, ...]:
    """The operators of a block that multiply matrices; `joined`, those of a parallel block as one where they can be.

    A mixture, latent attention and matrices with adapters stay apart, as do inputs that two norms make.
    """
    products = tuple(one for one in job_operators(model, tuning) if one.gemm is not None)
    apart = model.moe_share or model.latent_attention is not None or tuning is not None
    if not (joined and model.parallel_block) or apart:
        return products
    into, out_of, up, down = products
    read = (_joined(into, up),) if model.parallel_norms == 1 else (into, up)
    return (*read, _joined(out_of, down))


def _joined(first: Operator, second: Operator) -> Operator:
    """Two products as one: outputs side by side where ranks split those, inner dimensions end to end where they split
    the inputs."""
    one, other = first.gemm, second.gemm
    assert one is not None
    assert other is not None
    if one.split == "columns":
        both = replace(one, outputs=one.outputs + other.outputs)
    else:
        both = replace(one, inputs=one.inputs + other.inputs, last=one.last or other.last)
    return replace(first, name=f"{first.name}, {second.name}", gemm=both, flops=first.flops + second.flops)
