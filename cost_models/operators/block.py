"""The operators of a transformer block, in the order in which they run: the one place that says what a block is.

A switch of a block (a norm more, a gate, latents, experts) is one operator more or another one here, and a module of
the executor; `tests/executor/models/test_operators.py` holds the two together.

Operators of a block's attention: projections or latents, norms of heads, rotary positions, the core.

Latent attention (DeepSeek-V2, arXiv 2405.04434) makes queries, keys and values out of narrow latents, which every
tensor rank makes whole; only what makes and joins heads is split. An indexer is whole on every rank, too
(DeepSeek-V3.2, inference/model.py, `Indexer`).

Operators of a block whose heads carry a state from token to token, or convolve them: Mamba, delta nets and others.

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

Operators of a block's MLP: two matrices or three with a gate, or a mixture of experts in its place.

The projector between a vision tower and its decoder is such matrices, too.

In a model with both, blocks are priced as their average: an operator counts with the share of the blocks that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from cost_models.operators.record import Gemm, Half, Held, Operator, Place, Tensor, multiply
from cost_models.specs.choices import OUTPUTS, SelectiveDrops
from cost_models.specs.kinds import kinds_of
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import Indexer, Recurrence, Tower, TransformerSpec

_CACHED = 64
"""Models whose operators are kept, so that prices that ask many times do not make them anew."""
_BEFORE, _AFTER = ("before", "around"), ("after", "around")
"""Placements that have a norm before a half, and placements that have one over its output."""


@lru_cache(maxsize=_CACHED)
def block_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """All operators of a block; of a model whose blocks differ each with the share of the blocks that have it."""
    whole = (model.stacks and model.stacks.encoder_layers) or (model.tower and not model.tower.part)
    if len(set(model.mixers)) > 1 or whole:
        kinds, each = kinds_of(model, 1)
        shares = [count / model.num_layers for count in kinds.counts]
        return tuple(
            replace(operator, share=share * operator.share)
            for share, one in zip(shares, each, strict=True)
            for operator in block_operators(one)
        )
    mixes = () if model.mixer_of(0) == "none" else tuple(_mixing(model))
    feeds = tuple(_feeding(model)) if model.feed_forward_share else ()
    modulates = _modulation(model, 6, model.diffusion.tokens) if model.diffusion else ()
    joins = projector_operators(model.tower, model) if model.tower and model.tower.part == "joint" else ()
    return (*modulates, *joins, *mixes, *feeds)


def _mixing(model: TransformerSpec) -> Iterator[Operator]:
    """The half that mixes tokens."""
    mixer = model.mixer_of(0)
    if model.norm_placement in _BEFORE:
        yield _norm(model, "attention norm", "attention", apart=model.latent_attention is not None)
    yield from _modulated(model, "attention", "shift and scale", 2)
    if mixer in ("attention", "both"):
        yield from attention_operators(model)
    if mixer in ("recurrence", "both"):
        yield from recurrence_operators(model, beside_attention=mixer == "both")
    if model.norm_placement in _AFTER:
        yield _norm(model, "attention post-norm", "attention")
    yield from _modulated(model, "attention", "gate", 1)
    if not model.parallel_block:
        yield from _added(model, "attention", terms=3 if mixer == "both" else 2)
    if model.stacks is not None:
        yield _norm(model, "cross norm", "attention")
        yield from cross_operators(model)
        yield from _added(model, "attention", terms=2)


def _feeding(model: TransformerSpec) -> Iterator[Operator]:
    """The half of MLP or mixture."""
    parallel = model.parallel_block
    if model.norm_placement in _BEFORE and not model.forked:
        yield _norm(model, "mlp norm", "mlp", shares_input=parallel, apart=model.moe_share > 0)
    yield from _modulated(model, "mlp", "shift and scale", 2)
    yield from feed_forward_operators(model)
    if model.norm_placement in _AFTER:
        yield _norm(model, "mlp post-norm", "mlp")
    yield from _modulated(model, "mlp", "gate", 1)
    yield from _added(model, "mlp", terms=3 if parallel else 2)


def _modulation(model: TransformerSpec, vectors: int, tokens: int) -> Iterator[Operator]:
    """Operators per image of `tokens` tokens: SiLU and the matrix that makes shifts, scales and gates of both halves,
    whole on every tensor rank."""
    h = model.hidden_size
    yield Operator(
        name="modulation activation",
        kind="activation",
        half="attention",
        reads=Tensor(width=h / tokens, place="whole"),
    )
    made = Gemm(inputs=h, outputs=(vectors * h,), split="whole", rows=1 / tokens)
    yield multiply("modulation", made, half="attention", reads="whole", bias=True)


def _modulated(model: TransformerSpec, half: Half, name: str, vectors: int) -> Iterator[Operator]:
    """The stream times a vector of its image, and of two the other added; both are read besides."""
    if model.diffusion is not None:
        width = model.hidden_size * (1 + vectors / model.diffusion.tokens)
        over = Tensor(width=width, place="stream")
        yield Operator(name=f"{half} {name}", kind="modulation", half=half, reads=over, inputs=vectors)


def drops_something(model: TransformerSpec, stack: StackSpec) -> bool:
    """Whether selective recompute spares a model of this kind any bytes: outputs of experts, for one, only mixtures
    have."""
    return not stack.drops <= OUTPUTS or any(stack.drops & one.redone_by for one in block_operators(model))


def _norm(
    model: TransformerSpec, name: str, half: Half, *, shares_input: bool = False, apart: bool = False
) -> Operator:
    """Over the residual stream; `apart` where several operators read it, so that it is in no product's kernel."""
    stream = Tensor(width=model.hidden_size, place="stream")
    return Operator(
        name=name,
        kind="norm",
        half=half,
        reads=stream,
        returns=stream,
        weights={"whole": norm_weights(model)},
        norm=model.norm,
        shares_input=shares_input,
        redone_by=frozenset[SelectiveDrops]({"norms"} if apart else ()),
    )


def norm_weights(model: TransformerSpec) -> int:
    """Gains over the residual stream's width, and biases where the norm has them; none where a block modulates."""
    if model.diffusion is not None:
        return 0
    return model.hidden_size * (2 if model.norm == "layernorm" and model.norm_bias else 1)


def embedding_weights(model: TransformerSpec) -> int:
    """Parameters of the embedding besides its tokens: positions, types of tokens and a norm, whole on every rank;
    of two stacks also the encoder's last norm and both tables of biases, though they lie with blocks."""
    if model.tower is not None and model.tower.part == "tower":
        return patch_weights(model.tower)
    if model.diffusion is not None:
        return model.diffusion.entrance_weights(model.hidden_size)
    rows = model.max_positions * (model.positions == "learned")
    rows += model.encoder.token_types if model.encoder else 0
    biases = 2 * model.stacks.position_buckets * model.num_heads if model.stacks else 0
    norms = model.embedding_norm + (model.stacks is not None)
    return rows * model.hidden_size + biases + norms * norm_weights(model)


def patch_weights(tower: Tower) -> int:
    """Parameters of patch matrix, class token, learned positions and norm before the first block."""
    rows = tower.pixels + tower.patch_bias + tower.class_token + tower.tokens * (tower.positions == "learned")
    return tower.hidden_size * (rows + tower.norm_before * (1 + (tower.norm == "layernorm")))


def transform_weights(model: TransformerSpec) -> int:
    """Parameters of the square matrix with its bias and of the norm that an encoder may have before the output matrix;
    in a diffusion transformer, of the matrix that makes shifts and scales."""
    if model.diffusion is not None:
        return 2 * model.hidden_size * (model.hidden_size + 1)
    there = model.encoder is not None and model.encoder.head_transform
    return there * (model.hidden_size * (model.hidden_size + model.mlp_bias) + norm_weights(model))


def _added(model: TransformerSpec, half: Half, *, terms: int) -> tuple[Operator, ...]:
    """Dropout and addition to the residual stream; a parallel block adds both halves at once."""
    stream = Tensor(width=model.hidden_size, place="stream")
    summed = (
        Operator(name=f"{half} dropout", kind="dropout", half=half, reads=stream),
        Operator(name=f"{half} residual", kind="residual", half=half, reads=stream, inputs=terms),
    )
    if model.norm_placement == "after-sum":
        return *summed, _norm(model, f"{half} post-norm", half)
    return summed


_WITH_ATTENTION: frozenset[SelectiveDrops] = frozenset({"block-attention"})
_WITH_THE_HEADS: frozenset[SelectiveDrops] = frozenset({"block-attention", "latent-heads"})
"""Policies that make latent attention's heads again, and turn them."""


def attention_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """Operators between the normed stream and the residual addition; without the norms over the stream."""
    projections = _projections if model.latent_attention is None else _latents
    out = Gemm(inputs=model.attended_size, outputs=(model.hidden_size,), split="rows")
    gated = model.attention_gate
    return (
        *projections(model),
        *_rotary(model),
        _core(model),
        *([_gate(model)] if gated else []),
        _multiply(
            "output projection",
            out,
            reads="split",
            bias=model.attention_output_bias,
            shares_input=not gated,
            reads_core=not gated,
        ),
    )


def _projections(model: TransformerSpec) -> Iterator[Operator]:
    """Queries, keys and values in one product, and norms of queries and keys."""
    q, kv = model.query_size, model.kv_size
    gates = q if model.attention_gate else 0
    gemm = Gemm(
        inputs=model.hidden_size,
        outputs=(q + gates, kv, kv),
        split="columns",
        behind_norm=True,
        kept_share=(q + kv) / (q + 2 * kv) if not gates else 0.0,
    )
    yield _multiply("queries, keys, values", gemm, reads="entrance", bias=model.attention_bias, kept=q + kv)
    if model.qk_norm:
        for name, width in (("query norm", q), ("key norm", kv)):
            over_all = model.qk_norm_over == "all"
            yield _inner_norm(
                name, width, "split", {"split": width} if over_all else {"whole": model.head_dim}
            )


def _latents(model: TransformerSpec) -> Iterator[Operator]:
    """Down to the latents, a norm over each, and up from them to the heads."""
    latent = model.latent_attention
    assert latent is not None
    h, q, kv = model.hidden_size, model.query_size, model.kv_size
    if rank := latent.query_rank:
        down = Gemm(inputs=h, outputs=(rank,), split="whole", behind_norm=True)
        yield _multiply("query latent", down, reads="entrance", reads_output_of="norms")
        yield _inner_norm("norm of the query latent", rank, "stream", {"whole": rank})
    up = Gemm(inputs=rank or h, outputs=(q,), split="columns", from_latent=bool(rank), behind_norm=not rank)
    of_norm = None if rank else "norms"
    yield _heads("queries", up, reads="stream" if rank else "entrance", kept=q, reads_output_of=of_norm)
    down = Gemm(inputs=h, outputs=(latent.kv_rank + latent.position_dim,), split="whole")
    yield _multiply("key and value latent", down, reads="entrance", shares_input=True)
    yield _inner_norm("norm of the key and value latent", latent.kv_rank, "stream", {"whole": latent.kv_rank})
    if latent.indexer is not None:
        yield from _indexer(model, latent.indexer, rank or h)
    keys = model.num_kv_heads * (model.head_dim - latent.position_dim)
    up = Gemm(inputs=latent.kv_rank, outputs=(keys + model.value_size,), split="columns", from_latent=True)
    yield _heads("keys and values", up, reads="stream", kept=kv)


def _indexer(model: TransformerSpec, indexer: Indexer, rank: int) -> Iterator[Operator]:
    """Queries, their weights and a normed key, whole on every tensor rank; scores are made of these."""
    queries = Gemm(inputs=rank, outputs=(indexer.heads * indexer.head_dim,), split="whole", from_latent=True)
    yield _multiply("index queries", queries, reads="stream", shares_input=True)
    others = Gemm(inputs=model.hidden_size, outputs=(indexer.head_dim, indexer.heads), split="whole")
    yield _multiply("index keys, weights", others, reads="entrance", shares_input=True)
    keys = _inner_norm("norm of index keys", indexer.head_dim, "whole", {"whole": 2 * indexer.head_dim})
    yield replace(keys, norm="layernorm")
    yield _inside(name="index scores", kind="gating", reads=Tensor(width=indexer.width, place="whole"))


def cross_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """Of a decoder's block, from the normed stream to what is added to it: queries of its own tokens, keys and values
    of what the encoder returned, which its stage holds once for all of its blocks."""
    h, q, kv, share = model.hidden_size, model.query_size, model.kv_size, model.source_share
    queries = Gemm(inputs=h, outputs=(q,), split="columns", behind_norm=True)
    others = Gemm(inputs=h, outputs=(kv, kv), split="columns", rows=share)
    out = Gemm(inputs=q, outputs=(h,), split="rows")
    bias = model.attention_bias
    core = _core(model)
    return (
        _multiply("cross queries", queries, reads="entrance", bias=bias, kept=q),
        _multiply("cross keys, values", others, reads="entrance", bias=bias, shares_input=True),
        replace(core, name="cross core", reads=Tensor(width=q + 2 * share * kv, place="split")),
        _multiply(
            "cross output projection",
            out,
            reads="split",
            bias=model.attention_output_bias,
            shares_input=True,
            reads_core=True,
        ),
    )


def _inner_norm(name: str, width: int, place: Place, weights: dict[Held, float]) -> Operator:
    over = Tensor(width=width, place=place)
    return _inside(name=name, kind="norm", reads=over, returns=over, norm="rmsnorm", weights=weights)


def _rotary(model: TransformerSpec) -> Iterator[Operator]:
    """Turns a share of the numbers of queries and of keys."""
    if model.turned_share:
        for name, width in (("rotary of queries", model.query_size), ("rotary of keys", model.kv_size)):
            turned = Tensor(width=model.turned_share * width, place="split")
            again = _WITH_ATTENTION if model.latent_attention is None else _WITH_THE_HEADS
            yield Operator(name=name, kind="rotary", half="attention", reads=turned, redone_by=again)


def _core(model: TransformerSpec) -> Operator:
    """Scores, softmax and weighted values; every selective policy runs it again."""
    out = Tensor(width=model.attended_size, place="split")
    return Operator(
        name="attention core",
        kind="core",
        half="attention",
        reads=Tensor(width=model.query_size + model.kv_size + model.value_size, place="split"),
        returns=out,
        weights={"split": model.num_heads} if model.attention_sinks else {},
        redone_by=frozenset({"core", "block-attention"}),
        reads_output_of=None if model.latent_attention is None else "latent-heads",
        kept=out,
    )


def _heads(name: str, gemm: Gemm, *, reads: Place, **more: Any) -> Operator:
    """Makes heads out of a latent."""
    return multiply(name, gemm, half="attention", reads=reads, redone_by=_WITH_THE_HEADS, **more)


def _gate(model: TransformerSpec) -> Operator:
    """Multiplies what attention returns by gates, which are made beside the queries."""
    over = Tensor(width=model.attended_size, place="split")
    return _inside(name="attention gate", kind="gating", reads=over)


def _multiply(name: str, gemm: Gemm, *, reads: Place, **more: Any) -> Operator:
    redone = frozenset({"block-attention"})
    return multiply(name, gemm, half="attention", reads=reads, redone_by=redone, **more)


def _inside(**fields: Any) -> Operator:
    """In the attention submodule, which some stacks recompute as a whole."""
    return Operator(half="attention", redone_by=frozenset({"block-attention"}), **fields)


_HEAD_VECTORS = {"mamba1": 2, "mamba2": 3, "lightning": 0, "gated-delta": 2, "kimi-delta": 1}
"""Learned numbers of a head."""
_BY_NUMBER = ("mamba1", "kimi-delta")
"""Kinds that have one more for each number of a key."""
_COMMON: dict[str, Any] = {"half": "attention", "redone_by": _WITH_ATTENTION}


def recurrence_operators(model: TransformerSpec, *, beside_attention: bool) -> Iterator[Operator]:
    """Operators between the normed stream and the residual addition; without the norms over the stream."""
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


TOWER_NORM = "tower norm"
_WITH_THE_EXPERTS: frozenset[SelectiveDrops] = frozenset({"experts"})
"""A policy that drops what experts keep runs the mixture again, with its router and shared experts."""
_WITH_SHARED_EXPERTS: frozenset[SelectiveDrops] = frozenset({"experts", "shared-experts"})
_WITH_THE_MLP: frozenset[SelectiveDrops] = frozenset({"dense-mlp"})


def feed_forward_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """Operators between the normed stream and the residual addition; without the norms over the stream."""
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
