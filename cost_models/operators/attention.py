"""Operators of a block's attention: projections or latents, norms of heads, rotary positions, the core.

Latent attention (DeepSeek-V2, arXiv 2405.04434) makes queries, keys and values out of narrow latents, which every
tensor rank makes whole; only what makes and joins heads is split. An indexer is whole on every rank, too
(DeepSeek-V3.2, inference/model.py, `Indexer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cost_models.operators.record import Gemm, Held, Operator, Place, Tensor, multiply
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.model.blocks import Indexer
from cost_models.specs.transformer import TransformerSpec

_WITH_ATTENTION: frozenset[SelectiveDrops] = frozenset({"block-attention"})
_WITH_THE_HEADS: frozenset[SelectiveDrops] = frozenset({"block-attention", "latent-heads"})
"""Policies that make latent attention's heads again, and turn them."""


def attention_operators(model: TransformerSpec) -> tuple[Operator, ...]:
    """From the normed stream to what is added to it; without the norms over the stream."""
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
            yield _norm(name, width, "split", {"split": width} if over_all else {"whole": model.head_dim})


def _latents(model: TransformerSpec) -> Iterator[Operator]:
    """Down to the latents, a norm over each, and up from them to the heads."""
    latent = model.latent_attention
    assert latent is not None
    h, q, kv = model.hidden_size, model.query_size, model.kv_size
    if rank := latent.query_rank:
        down = Gemm(inputs=h, outputs=(rank,), split="whole", behind_norm=True)
        yield _multiply("query latent", down, reads="entrance", reads_output_of="norms")
        yield _norm("norm of the query latent", rank, "stream", {"whole": rank})
    up = Gemm(inputs=rank or h, outputs=(q,), split="columns", from_latent=bool(rank), behind_norm=not rank)
    of_norm = None if rank else "norms"
    yield _heads("queries", up, reads="stream" if rank else "entrance", kept=q, reads_output_of=of_norm)
    down = Gemm(inputs=h, outputs=(latent.kv_rank + latent.position_dim,), split="whole")
    yield _multiply("key and value latent", down, reads="entrance", shares_input=True)
    yield _norm("norm of the key and value latent", latent.kv_rank, "stream", {"whole": latent.kv_rank})
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
    keys = _norm("norm of index keys", indexer.head_dim, "whole", {"whole": 2 * indexer.head_dim})
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


def _norm(name: str, width: int, place: Place, weights: dict[Held, float]) -> Operator:
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
