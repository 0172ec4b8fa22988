"""The operators of a transformer block, in the order in which they run: the one place that says what a block is.

A switch of a block (a norm more, a gate, latents, experts) is one operator more or another one here, and a module of
the executor; `tests/executor/models/test_operators.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from cost_models.operators.attention import attention_operators, cross_operators
from cost_models.operators.feed_forward import feed_forward_operators, projector_operators
from cost_models.operators.record import Gemm, Half, Operator, Tensor, multiply
from cost_models.operators.recurrence import recurrence_operators
from cost_models.specs.choices import OUTPUTS, SelectiveDrops
from cost_models.specs.model.kinds import kinds_of
from cost_models.specs.model.tower import Tower
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec

_CACHED = 64
"""Models whose operators are kept, so that prices that ask many times do not make them anew."""
_BEFORE, _AFTER = ("before", "around"), ("after", "around")
"""Placements of norms with one before a half, and with one over what it found."""


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
    """Of an image with so many tokens: SiLU and the matrix that makes shifts, scales and gates of both halves, whole on
    every tensor rank."""
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
    """Of the matrix that makes tokens of patches, class token, learned positions and a norm before the first block."""
    rows = tower.pixels + tower.patch_bias + tower.class_token + tower.tokens * (tower.positions == "learned")
    return tower.hidden_size * (rows + tower.norm_before * (1 + (tower.norm == "layernorm")))


def transform_weights(model: TransformerSpec) -> int:
    """Of the square matrix with its bias, and of the norm, that an encoder may have before the output matrix; of a
    diffusion transformer of what shifts and scales there."""
    if model.diffusion is not None:
        return 2 * model.hidden_size * (model.hidden_size + 1)
    there = model.encoder is not None and model.encoder.head_transform
    return there * (model.hidden_size * (model.hidden_size + model.mlp_bias) + norm_weights(model))


def _added(model: TransformerSpec, half: Half, *, terms: int) -> tuple[Operator, ...]:
    """What was found is dropped out and added to the residual stream; a parallel block adds both halves at once."""
    stream = Tensor(width=model.hidden_size, place="stream")
    summed = (
        Operator(name=f"{half} dropout", kind="dropout", half=half, reads=stream),
        Operator(name=f"{half} residual", kind="residual", half=half, reads=stream, inputs=terms),
    )
    if model.norm_placement == "after-sum":
        return *summed, _norm(model, f"{half} post-norm", half)
    return summed
