"""Operators of a transformer block in the order in which they run: the single definition of a block for all
prices.

A feature of a block (a norm, a gate, latents, experts) is one operator here and a module of the executor;
`tests/executor/models/test_operators.py` checks that they agree. In a model with different blocks they are
priced as their average: an operator counts with the share of the blocks that have it.

**Attention.** Projections or latents, norms of heads, rotary positions, the core. Latent attention
(DeepSeek-V2, arXiv 2405.04434) makes queries, keys and values from narrow latents, which every tensor rank
computes completely; only the products to and from heads are split. An indexer is complete on every rank too
(DeepSeek-V3.2, inference/model.py, `Indexer`).

**States.** Heads that carry a state from token to token, or convolve them: Mamba, delta nets and others. One
product makes queries, keys, values, the output's gate and each head's step sizes of a token; a short
convolution (or an activation alone) is applied to the first three; the scan updates and reads the states; its
output is normalised, gated and projected back. Tensor ranks share the heads, as in attention. Mamba-1 makes
keys, queries and step sizes from the convolved values, which tensor ranks add up; a short convolution alone
also has a gate before it.

Forward FLOPs of the scan are those of its products with the states, 2·(N·P) a head, token and product: two if
a state decays (a token is written, then read), three under the delta rule (the value stored for the key is
read before). The chunk length of kernels changes the executed FLOPs (`cost_models.compute.mixing`), not the
model's.

Parameters other than matrices are those of the modelling files of transformers 5.24 (`NemotronHMamba2Mixer`,
`JambaMambaMixer`, `Qwen3NextGatedDeltaNet`, `KimiLinearDeltaAttention`, `MiniMaxLightningAttention`,
`Lfm2ShortConv`): for each head A (mamba1: for each element of its state), D and a bias of its step (Mamba),
or A and that bias (under the delta rule); a norm's gains, one for each element (under the delta rule of one
head).

**MLP.** Two matrices, three with a gate, or a mixture of experts instead. The projector between a vision
tower and its decoder has the same matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal

from cost_models.operators.record import Gemm, Half, Kind, Operator, Place, Sharing, Tensor, multiply
from cost_models.specs.choices import OUTPUTS, SelectiveDrops
from cost_models.specs.kinds import kinds_of
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import Recurrence, Tower, TransformerSpec

_CACHED = 64
"""Number of models whose operators are cached for repeated prices."""
_REDO_ATTENTION = frozenset[SelectiveDrops]({"block-attention"})
"""Selective recompute policy that repeats the attention submodule."""
_REDO_NORMS = frozenset[SelectiveDrops]({"norms"})
"""Selective recompute policy that repeats norms over the residual stream that several operators read."""
_REDO_HEADS = frozenset[SelectiveDrops]({"block-attention", "latent-heads"})
"""Selective recompute policies that repeat the products and rotations that make latent attention's heads."""
_REDO_EXPERTS = frozenset[SelectiveDrops]({"experts"})
"""Selective recompute policy that drops the experts' activations and repeats the mixture of experts, with its
router and shared experts."""
_REDO_MLP: dict[str, frozenset[SelectiveDrops]] = {
    "mlp": frozenset({"dense-mlp"}),
    "expert": _REDO_EXPERTS,
    "shared": frozenset({"experts", "shared-experts"}),
}


@lru_cache(maxsize=_CACHED)
def block_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """All operators of a transformer block, in the order in which they run; in a model with different blocks,
    each operator with the share of the blocks that have it."""
    stacks, tower = model.stacks, model.tower
    if len(set(model.mixers)) > 1 or (stacks and stacks.encoder_layers) or (tower and not tower.part):
        kinds, models = kinds_of(model, 1)
        shares = [count / model.num_layers for count in kinds.counts]
        pairs = zip(shares, map(block_operators, models), strict=True)
        return tuple(replace(one, share=share * one.share) for share, ones in pairs for one in ones)
    operators: list[Operator] = []
    if model.diffusion:
        # SiLU and a matrix make the modulation vectors of an image, complete on every tensor rank
        h, images = model.hidden_size, 1 / model.diffusion.tokens
        activated = Tensor(h / model.diffusion.tokens, "whole")
        operators.append(Operator("modulation activation", "activation", "attention", activated))
        into_six = Gemm(h, (6 * h,), "whole", rows=images)
        operators.append(multiply("modulation", into_six, half="attention", reads="whole", bias=True))
    if tower and tower.part == "joint":
        operators += projector_operators(tower, model)
    mixer, parallel = model.mixer_of(0), model.parallel_block
    if mixer != "none":
        mixes = [*(attention_operators(model) if mixer != "recurrence" else ())]
        if mixer != "attention":
            mixes += recurrence_operators(model, beside_attention=mixer == "both")
        norm: dict[str, Any] = {"redone_by": _REDO_NORMS} if model.latent_attention else {}
        terms = 3 if mixer == "both" else 2
        operators += _half_operators(model, "attention", norm, mixes, 0 if parallel else terms)
        if stacks is not None:
            operators += [_norm(model, "cross norm", "attention"), *cross_operators(model)]
            operators += _residual_sum(model, "attention", terms=2)
    if model.feed_forward_share:
        norm = {"shares_input": parallel} | ({"redone_by": _REDO_NORMS} if model.moe_share else {})
        feeds = [*_mlp(model, "mlp", model.ffn_hidden_size, model.dense_share), *_mixture(model)]
        half_norm = None if model.shares_norm else norm
        operators += _half_operators(model, "mlp", half_norm, feeds, 3 if parallel else 2)
    return tuple(operators)


def _half_operators(
    model: TransformerSpec, half: Half, norm: dict[str, Any] | None, parts: Iterable[Operator], terms: int
) -> Iterator[Operator]:
    """Yield the operators of one half (attention or MLP) of a block: norms, modulation if any, the `parts`,
    and the sum of `terms` tensors at the end. `norm` holds fields of the norm before them (None: no norm)."""
    if model.norm_placement in ("before", "around") and norm is not None:
        yield _norm(model, f"{half} norm", half, **norm)
    yield from _modulation_product(model, half, "shift and scale", 2)
    yield from parts
    if model.norm_placement in ("after", "around"):
        yield _norm(model, f"{half} post-norm", half)
    yield from _modulation_product(model, half, "gate", 1)
    if terms:
        yield from _residual_sum(model, half, terms=terms)


def _modulation_product(model: TransformerSpec, half: Half, name: str, vectors: int) -> Iterator[Operator]:
    """Yield, for a diffusion transformer only, the operator that multiplies the residual stream by one vector
    per image and, if `vectors` is 2, adds another."""
    if model.diffusion is not None:
        over = Tensor(model.hidden_size * (1 + vectors / model.diffusion.tokens), "stream")
        yield Operator(f"{half} {name}", "modulation", half, over, inputs=vectors)


def selective_saves_bytes(model: TransformerSpec, stack: StackSpec) -> bool:
    """Whether selective recompute frees any activations of this model. It frees none if it drops only outputs
    of operators that the model lacks, such as experts."""
    return not stack.drops <= OUTPUTS or any(stack.drops & one.redone_by for one in block_operators(model))


def _norm(model: TransformerSpec, name: str, half: Half, **opts: Any) -> Operator:
    """Operator of a norm over the residual stream."""
    stream = Tensor(model.hidden_size, "stream")
    weights: dict[Sharing, float] = {"whole": norm_weights(model)}
    return Operator(name, "norm", half, stream, returns=stream, weights=weights, norm=model.norm, **opts)


def norm_weights(model: TransformerSpec) -> int:
    """Number of parameters (gains, any biases) of a norm over the residual stream; 0 in a diffusion model,
    whose norms have none."""
    if model.diffusion is not None:
        return 0
    return model.hidden_size * (2 if model.norm == "layernorm" and model.norm_bias else 1)


def embedding_weights(model: TransformerSpec) -> int:
    """Number of embedding parameters other than token vectors: positions, types of tokens and a norm, which
    every rank has completely.

    In an encoder-decoder also the encoder's last norm and both tables of biases, though they are in blocks.
    """
    if model.tower is not None and model.is_tower:
        return patch_weights(model.tower)
    if (images := model.diffusion) is not None:  # a matrix embeds patches, and two the time step, with biases
        return (images.pixels + images.frequencies + model.hidden_size + 3) * model.hidden_size
    rows = model.max_positions * (model.positions == "learned")
    rows += model.encoder.token_types if model.encoder else 0
    biases = 2 * model.stacks.position_buckets * model.num_heads if model.stacks else 0
    norms = model.embedding_norm + (model.stacks is not None)
    return rows * model.hidden_size + biases + norms * norm_weights(model)


def patch_weights(tower: Tower) -> int:
    """Number of parameters of a vision tower's patch matrix, class token, learned positions and norm before
    the first block."""
    rows = tower.pixels + tower.patch_bias + tower.class_token + tower.tokens * (tower.positions == "learned")
    return tower.hidden_size * (rows + tower.norm_before * (1 + (tower.norm == "layernorm")))


def transform_weights(model: TransformerSpec) -> int:
    """Number of parameters of the head's matrix before the output matrix; 0 without such a matrix. It is an
    encoder's square matrix with bias and norm, or makes a diffusion transformer's shifts and scales."""
    if model.diffusion is not None:
        return 2 * model.hidden_size * (model.hidden_size + 1)
    has_transform = model.encoder is not None and model.encoder.head_transform
    return has_transform * (model.hidden_size * (model.hidden_size + model.mlp_bias) + norm_weights(model))


def _residual_sum(model: TransformerSpec, half: Half, *, terms: int) -> Iterator[Operator]:
    """Yield the operators for dropout and for addition to the residual stream; a parallel block adds both
    halves at once."""
    stream = Tensor(model.hidden_size, "stream")
    yield Operator(f"{half} dropout", "dropout", half, stream)
    yield Operator(f"{half} residual", "residual", half, stream, inputs=terms)
    if model.norm_placement == "after-sum":
        yield _norm(model, f"{half} post-norm", half)


def _product(name: str, gemm: Gemm, reads: Place, **opts: Any) -> Operator:
    """Operator of a matrix product in the attention submodule, which the recompute policy `block-attention`
    repeats."""
    return multiply(name, gemm, reads=reads, **{"half": "attention", "redone_by": _REDO_ATTENTION} | opts)


def _operator(name: str, kind: Kind, over: Tensor, **opts: Any) -> Operator:
    """Operator other than a matrix product in the attention submodule, which the recompute policy
    `block-attention` repeats."""
    return Operator(name, kind, "attention", over, **{"redone_by": _REDO_ATTENTION} | opts)


def _inner_norm(name: str, width: int, place: Place, weights: dict[Sharing, float], **opts: Any) -> Operator:
    """Operator of a norm inside the attention submodule, over `width` elements per token."""
    over = Tensor(width, place)
    return _operator(name, "norm", over, returns=over, weights=weights, **{"norm": "rmsnorm"} | opts)


def attention_operators(model: TransformerSpec) -> Iterator[Operator]:
    """Yield the operators of attention between the normalised stream and the residual addition, without the
    norms over the stream."""
    yield from _projections(model) if model.latent_attention is None else _latent_projections(model)
    if model.rotary_share:  # of the numbers of queries and of keys
        redone_by = _REDO_ATTENTION if model.latent_attention is None else _REDO_HEADS
        for name, width in (("rotary of queries", model.query_size), ("rotary of keys", model.kv_size)):
            yield _operator(name, "rotary", Tensor(model.rotary_share * width, "split"), redone_by=redone_by)
    yield _attention_core(model)
    if model.attention_gate:  # made beside the queries
        yield _operator("attention gate", "gating", Tensor(model.attended_size, "split"))
    yield _output_matrix(model, "output projection", model.attended_size, after_core=not model.attention_gate)


def _output_matrix(model: TransformerSpec, name: str, width: int, *, after_core: bool) -> Operator:
    """Operator of the matrix product from all heads to the residual stream."""
    out, bias = Gemm(width, (model.hidden_size,), "rows", ("o",)), model.attention_output_bias
    return _product(name, out, "split", bias=bias, shares_input=after_core, reads_core=after_core)


def _projections(model: TransformerSpec) -> Iterator[Operator]:
    """Yield the product that makes queries, keys and values, and the norms of queries and keys."""
    q, kv = model.query_size, model.kv_size
    widths, names = ((1 + model.attention_gate) * q, kv, kv), ("q", "k", "v")
    kept_share = 0.0 if model.attention_gate else (q + kv) / (q + 2 * kv)
    gemm = Gemm(model.hidden_size, widths, "columns", names, behind_norm=True, kept_share=kept_share)
    yield _product("queries, keys, values", gemm, "entrance", bias=model.attention_bias, kept=q + kv)
    if model.qk_norm:
        over_all = model.qk_norm_over == "all"
        for name, width in (("query norm", q), ("key norm", kv)):
            weights: dict[Sharing, float] = {"split": width} if over_all else {"whole": model.head_dim}
            yield _inner_norm(name, width, "split", weights)


def _latent_projections(model: TransformerSpec) -> Iterator[Operator]:
    """Yield latent attention's products down to the latents, a norm over each, and products up to the heads.

    An indexer's queries, weights and normalised key are complete on every tensor rank.
    """
    latent = model.latent_attention
    assert latent is not None
    h, q, rank = model.hidden_size, model.query_size, latent.query_rank
    if rank:
        down = Gemm(h, (rank,), "whole", ("q_a",), behind_norm=True)
        yield _product("query latent", down, "entrance", reads_output_of="norms")
        yield _inner_norm("norm of the query latent", rank, "stream", {"whole": rank})
    heads: dict[str, Any] = {"redone_by": _REDO_HEADS}
    name, of_norm = ("q_b", None) if rank else ("q", "norms")
    up = Gemm(rank or h, (q,), "columns", (name,), from_latent=bool(rank), behind_norm=not rank)
    yield _product("queries", up, "stream" if rank else "entrance", kept=q, reads_output_of=of_norm, **heads)
    down = Gemm(h, (latent.kv_rank + latent.position_dim,), "whole", ("kv_a",))
    yield _product("key and value latent", down, "entrance", shares_input=True)
    yield _inner_norm("norm of the key and value latent", latent.kv_rank, "stream", {"whole": latent.kv_rank})
    if (indexer := latent.indexer) is not None:
        queries = Gemm(rank or h, (indexer.heads * indexer.head_dim,), "whole", from_latent=True)
        yield _product("index queries", queries, "stream", shares_input=True)
        keys_and_weights = Gemm(h, (indexer.head_dim, indexer.heads), "whole")
        yield _product("index keys, weights", keys_and_weights, "entrance", shares_input=True)
        gains: dict[Sharing, float] = {"whole": 2 * indexer.head_dim}
        yield _inner_norm("norm of index keys", indexer.head_dim, "whole", gains, norm="layernorm")
        # queries, their weights, and a key
        scored = indexer.heads * (indexer.head_dim + 1) + indexer.head_dim
        yield _operator("index scores", "gating", Tensor(scored, "whole"))
    keys = model.num_kv_heads * (model.head_dim - latent.position_dim)
    up = Gemm(latent.kv_rank, (keys + model.value_size,), "columns", ("kv_b",), from_latent=True)
    yield _product("keys and values", up, "stream", kept=model.kv_size, **heads)


def cross_operators(model: TransformerSpec) -> Iterator[Operator]:
    """Yield the operators of cross-attention in a decoder block: queries from the block's tokens, keys and
    values from the encoder's output, which a stage holds once for all of its blocks."""
    h, q, kv, share = model.hidden_size, model.query_size, model.kv_size, model.source_share
    queries, bias = Gemm(h, (q,), "columns", ("q",), behind_norm=True), model.attention_bias
    yield _product("cross queries", queries, "entrance", bias=bias, kept=q)
    keys_values = Gemm(h, (kv, kv), "columns", ("k", "v"), rows=share)
    yield _product("cross keys, values", keys_values, "entrance", bias=bias, shares_input=True)
    yield replace(_attention_core(model), name="cross core", reads=Tensor(q + 2 * share * kv, "split"))
    yield _output_matrix(model, "cross output projection", q, after_core=True)


def _attention_core(model: TransformerSpec) -> Operator:
    """Operator of attention scores, softmax and weighted values, which every selective policy repeats. Every
    selective policy runs it again."""
    read, out = model.query_size + model.kv_size + model.value_size, Tensor(model.attended_size, "split")
    options: dict[str, Any] = {"weights": {"split": model.num_heads} if model.attention_sinks else {}}
    options["redone_by"] = frozenset({"core", "block-attention"})
    options["reads_output_of"] = None if model.latent_attention is None else "latent-heads"
    return _operator("attention core", "core", Tensor(read, "split"), returns=out, kept=out, **options)


_HEAD_SCALARS = {"mamba1": 2, "mamba2": 3, "lightning": 0, "gated-delta": 2, "kimi-delta": 1}
"""Number of learned scalars per head for each kind of recurrence, by kind."""
_KEY_DECAYS = ("mamba1", "kimi-delta")
"""Kinds of recurrence with one more learned scalar per head for each element of a key."""


def recurrence_operators(model: TransformerSpec, *, beside_attention: bool) -> Iterator[Operator]:
    """Yield the operators of a recurrence between the normalised stream and the residual addition, without
    the norms over the stream."""
    mixer, h = model.recurrence, model.hidden_size
    assert mixer is not None
    into = Gemm(h, (mixer.input_size,), "columns", ("in_proj",), behind_norm=not beside_attention)
    yield _product("state inputs", into, "entrance", bias=mixer.bias, shares_input=beside_attention)
    if rank := mixer.gate_rank:  # down to a latent each for decays and gates, and up from them to the heads
        down = Gemm(h, (rank, rank), "whole", ("in_proj", "in_proj"))
        yield _product("gate latents", down, "entrance", shares_input=True)
        widths, names = (mixer.decay_size, mixer.value_size), ("in_proj", "in_proj")
        up = Gemm(rank, widths, "columns", names, from_latent=True)
        yield _product("gates", up, "stream")
    returned = Tensor(mixer.value_size, "split")
    if not mixer.scans:
        yield _operator("gate before", "gating", returned, inputs=2)
    taps = mixer.conv_width + mixer.conv_bias if mixer.conv_width else 0
    size = mixer.mixed_size if mixer.scans else mixer.value_size
    weights: dict[Sharing, float] = {"split": taps * size} if taps else {}
    flops = 2.0 * mixer.conv_width * size
    yield _operator("short convolution", "convolution", Tensor(size, "split"), weights=weights, flops=flops)
    if rank := mixer.step_rank:
        # step sizes come from a latent; the scan's kernel convolves once more instead of keeping their input
        selected = Gemm(mixer.value_size, (mixer.selected_size,), "rows")
        yield _product("keys, queries, step latent", selected, "split", shares_input=True)
        if mixer.latent_norms:
            gains: dict[Sharing, float] = {"whole": mixer.selected_size}
            yield _inner_norm("norms of keys, queries, step latent", mixer.selected_size, "whole", gains)
        yield _product("step sizes", Gemm(rank, (mixer.value_size,), "columns", from_latent=True), "whole")
    if mixer.scans:
        vectors = (_HEAD_SCALARS[mixer.kind] + (mixer.kind in _KEY_DECAYS) * mixer.state_dim) * mixer.heads
        mixed, learned = Tensor(mixer.mixed_size, "split"), {"split": vectors} if vectors else {}
        flops = 2.0 * state_products(mixer) * mixer.value_size * mixer.state_dim
        yield _operator("state scan", "scan", mixed, returns=returned, weights=learned, flops=flops)
    gains = {"whole": mixer.head_dim} if mixer.delta else {"split": mixer.value_size}
    extra: dict[str, Any] = {"weights": gains if mixer.output_norm else {}, "inputs": 1 if mixer.scans else 2}
    yield _operator("gated norm", "gating", returned, returns=returned, launched=not mixer.step_rank, **extra)
    out = Gemm(mixer.value_size, (h,), "rows", ("out_proj",))
    # a scan's kernel with a step rank recomputes this input
    yield _product("state outputs", out, "split", bias=mixer.bias, shares_input=mixer.step_rank is not None)


def state_products(mixer: Recurrence) -> int:
    """Number of matrix products with a head's state per token: 3 with the delta rule, else 2."""
    return 3 if mixer.delta else 2


def _mlp(
    model: TransformerSpec, name: Literal["mlp", "expert", "shared"], width: int, share: float
) -> Iterator[Operator]:
    """Yield the matrix products and the activation of an MLP (dense, routed expert or shared experts) that a
    `share` of the blocks has. Two up matrices run as one wide product."""
    if not (share and width):
        return
    dense, routed, matrices = name == "mlp", name == "expert", 2 if model.gated_mlp else 1
    names = ("experts", "experts") if routed else ("gate", "up")
    h, inner, redone_by = model.hidden_size, Tensor(width, "expert" if routed else "split"), _REDO_MLP[name]
    product = partial(multiply, half="mlp", share=share, redone_by=redone_by, bias=model.mlp_bias)
    experts, passed = (model.num_experts, model.experts_per_token) if routed else (1, 1)
    gemm = partial(Gemm, routed=routed, experts=experts, passed=passed)
    reads: Place = "copies" if routed else "entrance"
    kept_already = name == "shared" or (dense and model.shares_norm)
    kept_share = dense / matrices
    up = gemm(h, (width,) * matrices, "columns", names[-matrices:], behind_norm=dense, kept_share=kept_share)
    yield product(f"{name} up", up, reads=reads, kept=width, shares_input=kept_already)
    options: dict[str, Any] = {"share": share, "inputs": matrices, "launched": name != "shared"}
    options["redone_by"] = redone_by | {"expert-activations"} if routed else redone_by
    yield Operator(f"{name} activation", "activation", "mlp", inner, **options)
    down = gemm(width, (h,), "rows", ("experts" if routed else "down",), last=dense)
    joins = dense and model.parallel_block  # which adds the output to attention's
    output_of = "expert-activations" if routed else None
    yield product(f"{name} down", down, reads=inner.place, shares_gradient=joins, reads_output_of=output_of)


def _mixture(model: TransformerSpec) -> Iterator[Operator]:
    """Yield the operators of a mixture of experts: router, token exchange, routed experts, and the shared
    experts, which every token passes. Yields nothing for a model without a mixture."""
    h, share = model.hidden_size, model.moe_share
    if not share:
        return
    common: dict[str, Any] = {"share": share, "redone_by": _REDO_EXPERTS}
    options: dict[str, Any] = common | {"shares_input": model.shares_norm, "bias": model.router_bias}
    options |= {"reads_output_of": None if model.shares_norm else "norms"}
    router = Gemm(h, (model.num_experts,), "whole", router=True)
    yield multiply("router", router, half="mlp", reads="entrance", **options)
    yield Operator("routing", "routing", "mlp", Tensor(h, "sent"), **common)
    yield from _mlp(model, "expert", model.moe_ffn_hidden_size, share)
    yield from _mlp(model, "shared", model.shared_expert_ffn_hidden_size, share)
    if model.shared_expert_gate:
        common |= {"returns": Tensor(1, "whole"), "weights": {"whole": h}, "flops": 2.0 * h}
        yield Operator("shared gate", "gate", "mlp", Tensor(h, "entrance"), shares_input=True, **common)


TOWER_NORM = "tower norm"


def projector_operators(tower: Tower, model: TransformerSpec) -> Iterator[Operator]:
    """Yield the operators of a vision tower's last norm and of the projector, which run with the decoder's
    first block (LLaVA, Liu et al. 2023, arXiv 2304.08485, section 4.1).

    Widths are per token of a sequence, so they include the image tokens per sequence token. Tensor ranks
    split the matrices as an MLP's; a single matrix is split by its inputs.
    """
    rows, inputs, inner = tower.share, tower.projector_inputs, tower.projector_hidden_size
    over, gains = Tensor(rows * inputs, "whole"), 2 if tower.norm == "layernorm" else 1
    last = TOWER_NORM, tower.hidden_size, tower.norm_after
    for name, width, present in (last, ("projector norm", inputs, tower.projector_norm)):
        if present:
            weights: dict[Sharing, float] = {"whole": gains * width}
            yield Operator(name, "norm", "attention", over, returns=over, norm=tower.norm, weights=weights)
    options: dict[str, Any] = {"half": "attention", "bias": tower.projector_bias}
    if inner:
        yield multiply("projector up", Gemm(inputs, (inner,), "columns", rows=rows), reads="whole", **options)
        yield Operator("projector activation", "activation", "attention", Tensor(rows * inner, "split"))
    down = Gemm(inner or inputs, (model.hidden_size,), "rows", rows=rows)
    yield multiply("projector down", down, reads="split", **options)
