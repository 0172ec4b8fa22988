"""Operators of a block whose heads carry a state from token to token: Mamba-2, gated delta nets, lightning attention.

One product makes queries, keys, values, the output's gate and each head's step sizes of a token; a short convolution
(or an activation alone) goes over the first three; the scan updates and reads the states; what it returns is normed,
gated and projected back. Tensor ranks share the heads, as they share those of attention.

Forward FLOPs of the scan are those of its products with the states, 2·(N·P) a head, token and product: two where a
state decays (a token is written, then read), three under the delta rule (what it says of the key is read before). How
long chunks are that kernels work on changes what they execute (`cost_models.compute.scan`), not what the model needs.

Parameters beside matrices, from the modelling files of transformers 5.24 (`NemotronHMamba2Mixer`,
`Qwen3NextGatedDeltaNet`, `KimiLinearDeltaAttention`, `MiniMaxLightningAttention`): for each head A, D and a bias of its
step (mamba2), or A and that bias (under the delta rule); a norm's gains, one for each number (there of a head alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.operators.record import Gemm, Held, Operator, Tensor, multiply
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.model.blocks import Recurrence
from cost_models.specs.transformer import TransformerSpec

_HEAD_VECTORS = {"mamba2": 3, "lightning": 0, "gated-delta": 2, "kimi-delta": 1}
"""Learned numbers of a head; of Kimi's delta attention one more for each number of a key."""
_WITH_ATTENTION: frozenset[SelectiveDrops] = frozenset({"block-attention"})


def recurrence_operators(model: TransformerSpec, *, beside_attention: bool) -> Iterator[Operator]:
    """From the normed stream to what is added to it; without the norms over the stream."""
    mixer = model.recurrence
    assert mixer is not None
    into = Gemm(
        inputs=model.hidden_size,
        outputs=(mixer.input_size,),
        split="columns",
        behind_norm=not beside_attention,
    )
    yield multiply(
        "state inputs",
        into,
        half="attention",
        reads="entrance",
        bias=mixer.bias,
        shares_input=beside_attention,
        redone_by=_WITH_ATTENTION,
    )
    if mixer.gate_rank:
        yield from _gate_latents(model, mixer, mixer.gate_rank)
    mixed = Tensor(width=mixer.mixed_size, place="split")
    taps = mixer.conv_width + mixer.conv_bias if mixer.conv_width else 0
    yield Operator(
        name="short convolution",
        kind="convolution",
        half="attention",
        reads=mixed,
        weights={"split": taps * mixer.mixed_size} if taps else {},
        flops=2.0 * mixer.conv_width * mixer.mixed_size,
        redone_by=_WITH_ATTENTION,
    )
    returned = Tensor(width=mixer.value_size, place="split")
    vectors = (_HEAD_VECTORS[mixer.kind] + (mixer.kind == "kimi-delta") * mixer.state_dim) * mixer.heads
    yield Operator(
        name="state scan",
        kind="scan",
        half="attention",
        reads=mixed,
        returns=returned,
        weights={"split": vectors} if vectors else {},
        flops=2.0 * state_products(mixer) * mixer.value_size * mixer.state_dim,
        redone_by=_WITH_ATTENTION,
    )
    yield Operator(
        name="gated norm",
        kind="gating",
        half="attention",
        reads=returned,
        returns=returned,
        weights=_gains(mixer),
        redone_by=_WITH_ATTENTION,
    )
    out = Gemm(inputs=mixer.value_size, outputs=(model.hidden_size,), split="rows")
    yield multiply(
        "state outputs", out, half="attention", reads="split", bias=mixer.bias, redone_by=_WITH_ATTENTION
    )


def state_products(mixer: Recurrence) -> int:
    """Products with a head's state that a token needs."""
    return 3 if mixer.delta else 2


def _gate_latents(model: TransformerSpec, mixer: Recurrence, rank: int) -> Iterator[Operator]:
    """Down to a latent each for decays and gates, which every rank makes whole, and up from them to the heads."""
    down = Gemm(inputs=model.hidden_size, outputs=(rank, rank), split="whole")
    common: dict[str, Any] = {"half": "attention", "redone_by": _WITH_ATTENTION}
    yield multiply("gate latents", down, reads="entrance", shares_input=True, **common)
    widths = (mixer.heads * mixer.state_dim, mixer.value_size)
    up = Gemm(inputs=rank, outputs=widths, split="columns", from_latent=True)
    yield multiply("gates", up, reads="stream", **common)


def _gains(mixer: Recurrence) -> dict[Held, float]:
    if not mixer.output_norm:
        return {}
    return {"whole": mixer.head_dim} if mixer.delta else {"split": mixer.value_size}
