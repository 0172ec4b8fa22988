"""Operators of a block whose heads carry a state from token to token, or convolve them: Mamba, delta nets and others.

One product makes queries, keys, values, the output's gate and each head's step sizes of a token; a short convolution
(or an activation alone) goes over the first three; the scan updates and reads the states; what it returns is normed,
gated and projected back. Tensor ranks share the heads, as they share those of attention. Mamba-1 makes keys, queries
and step sizes of the convolved values, which tensor ranks add up; a short convolution alone has a gate before it, too.

Forward FLOPs of the scan are those of its products with the states, 2·(N·P) a head, token and product: two where a
state decays (a token is written, then read), three under the delta rule (what it says of the key is read before). How
long chunks are that kernels work on changes what they execute (`cost_models.compute.scan`), not what the model needs.

Parameters beside matrices, from the modelling files of transformers 5.24 (`NemotronHMamba2Mixer`,
`JambaMambaMixer`, `Qwen3NextGatedDeltaNet`, `KimiLinearDeltaAttention`, `MiniMaxLightningAttention`, `Lfm2ShortConv`):
for each head A (mamba1: for each number of its state), D and a bias of its step (Mamba), or A and that bias (under the
delta rule); a norm's gains, one for each number (there of a head alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.operators.record import Gemm, Held, Operator, Tensor, multiply
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.model.blocks import Recurrence
from cost_models.specs.transformer import TransformerSpec

_HEAD_VECTORS = {"mamba1": 2, "mamba2": 3, "lightning": 0, "gated-delta": 2, "kimi-delta": 1}
"""Learned numbers of a head."""
_BY_NUMBER = ("mamba1", "kimi-delta")
"""Kinds that have one more for each number of a key."""
_WITH_ATTENTION: frozenset[SelectiveDrops] = frozenset({"block-attention"})
_COMMON: dict[str, Any] = {"half": "attention", "redone_by": _WITH_ATTENTION}


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
        "state inputs", into, reads="entrance", bias=mixer.bias, shares_input=beside_attention, **_COMMON
    )
    if mixer.gate_rank:
        yield from _gate_latents(model, mixer, mixer.gate_rank)
    returned = Tensor(width=mixer.value_size, place="split")
    if not mixer.scans:
        yield Operator(name="gate before", kind="gating", reads=returned, inputs=2, **_COMMON)
    yield _convolution(mixer)
    if mixer.step_rank:
        yield from _selections(mixer, mixer.step_rank)
    if mixer.scans:
        yield _scan(mixer, returned)
    gains, inputs = _gains(mixer), 1 if mixer.scans else 2
    yield Operator(
        name="gated norm",
        kind="gating",
        reads=returned,
        returns=returned,
        weights=gains,
        inputs=inputs,
        launched=not mixer.step_rank,
        **_COMMON,
    )
    out = Gemm(inputs=mixer.value_size, outputs=(model.hidden_size,), split="rows")
    again = mixer.step_rank is not None  # its kernel makes what this reads once more
    yield multiply("state outputs", out, reads="split", bias=mixer.bias, shares_input=again, **_COMMON)


def _convolution(mixer: Recurrence) -> Operator:
    taps = mixer.conv_width + mixer.conv_bias if mixer.conv_width else 0
    return Operator(
        name="short convolution",
        kind="convolution",
        reads=Tensor(width=mixer.convolved_size, place="split"),
        weights={"split": taps * mixer.convolved_size} if taps else {},
        flops=2.0 * mixer.conv_width * mixer.convolved_size,
        **_COMMON,
    )


def _scan(mixer: Recurrence, returned: Tensor) -> Operator:
    vectors = (_HEAD_VECTORS[mixer.kind] + (mixer.kind in _BY_NUMBER) * mixer.state_dim) * mixer.heads
    return Operator(
        name="state scan",
        kind="scan",
        reads=Tensor(width=mixer.mixed_size, place="split"),
        returns=returned,
        weights={"split": vectors} if vectors else {},
        flops=2.0 * state_products(mixer) * mixer.value_size * mixer.state_dim,
        **_COMMON,
    )


def _selections(mixer: Recurrence, rank: int) -> Iterator[Operator]:
    """Mamba-1: keys, queries and a latent made of all channels, and step sizes of the latent; its kernel convolves
    once more in place of keeping what they are made from."""
    made = Gemm(inputs=mixer.value_size, outputs=(mixer.selected_size,), split="rows")
    yield multiply("keys, queries, step latent", made, reads="split", shares_input=True, **_COMMON)
    if mixer.latent_norms:
        over, gains = Tensor(width=mixer.selected_size, place="whole"), mixer.selected_size
        yield Operator(
            name="norms of keys, queries, step latent",
            kind="norm",
            reads=over,
            returns=over,
            norm="rmsnorm",
            weights={"whole": gains},
            **_COMMON,
        )
    steps = Gemm(inputs=rank, outputs=(mixer.value_size,), split="columns", from_latent=True)
    yield multiply("step sizes", steps, reads="whole", **_COMMON)


def state_products(mixer: Recurrence) -> int:
    """Products with a head's state that a token needs."""
    return 3 if mixer.delta else 2


def _gate_latents(model: TransformerSpec, mixer: Recurrence, rank: int) -> Iterator[Operator]:
    """Down to a latent each for decays and gates, which every rank makes whole, and up from them to the heads."""
    down = Gemm(inputs=model.hidden_size, outputs=(rank, rank), split="whole")
    yield multiply("gate latents", down, reads="entrance", shares_input=True, **_COMMON)
    widths = (mixer.decay_size, mixer.value_size)
    up = Gemm(inputs=rank, outputs=widths, split="columns", from_latent=True)
    yield multiply("gates", up, reads="stream", **_COMMON)


def _gains(mixer: Recurrence) -> dict[Held, float]:
    if not mixer.output_norm:
        return {}
    return {"whole": mixer.head_dim} if mixer.delta else {"split": mixer.value_size}
