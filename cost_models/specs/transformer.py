"""The spec of a transformer, its fields checked against one another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pydantic import model_validator

from cost_models.specs.model.blocks import ExpertGroups
from cost_models.specs.model.transformer_shape import TransformerShape


def contradiction(model: TransformerShape) -> str:
    """The first contradiction between a model's fields; empty where there is none."""
    checks = (
        _heads,
        _rotary,
        _latents,
        _norms,
        _windows,
        _mixers,
        _mixture,
        _encoder,
        _stacks,
        _tower,
        _diffusion,
    )
    return next((what for check in checks for what in check(model)), "")


def _heads(model: TransformerShape) -> Iterator[str]:
    if model.num_heads % model.num_kv_heads:
        yield f"num_heads {model.num_heads} is not a multiple of num_kv_heads {model.num_kv_heads}"


def _rotary(model: TransformerShape) -> Iterator[str]:
    rotary = model.rotary
    if model.positions != "rotary":
        if rotary is not None:
            yield f"rotary is for rotary positions, and positions is {model.positions}"
        return
    if model.head_dim % 2:
        yield f"rotary positions need an even head_dim, not {model.head_dim}"
    if rotary is None:
        return
    if rotary.dim is not None and (rotary.dim % 2 or rotary.dim > model.head_dim):
        yield f"rotary.dim {rotary.dim} is no even part of head_dim {model.head_dim}"
    if model.latent_attention and (rotary.dim or rotary.pattern):
        yield "latent attention turns position_dim of every head: rotary.dim and rotary.pattern are not for it"
    if len(rotary.pattern) > model.num_layers:
        yield f"rotary.pattern names {len(rotary.pattern)} blocks, and num_layers is {model.num_layers}"
    if rotary.windowed_base and model.attention_window is None:
        yield "rotary.windowed_base is for windows, and attention_window says none"


def _latents(model: TransformerShape) -> Iterator[str]:
    latent = model.latent_attention
    if latent is None:
        if model.window_kind == "picked":
            yield "window_kind picked is for latent attention with an indexer"
        return
    if latent.position_dim >= model.head_dim:
        yield f"position_dim {latent.position_dim} leaves nothing of head_dim {model.head_dim}"
    if (latent.indexer is None) == (model.window_kind == "picked"):
        yield "an indexer picks the tokens of an attention_window of window_kind picked: it needs both"
    if latent.indexer and latent.query_rank is None:
        yield "an indexer makes queries from their latent, and query_rank says none"
    if model.positions == "rotary" and latent.position_dim % 2:
        yield f"rotary positions need an even position_dim, not {latent.position_dim}"


def _norms(model: TransformerShape) -> Iterator[str]:
    if model.parallel_block and model.norm_placement != "before":
        yield f"a parallel_block has its norms before, not norm_placement {model.norm_placement}"
    if model.parallel_norms == 2 and not model.parallel_block:
        yield "parallel_norms is for a parallel_block"
    if model.qk_norm_over == "all" and (not model.qk_norm or model.latent_attention):
        yield "qk_norm_over is for qk_norm" + (" without latents" if model.latent_attention else "")


def _windows(model: TransformerShape) -> Iterator[str]:
    if model.attention_window is None and (model.window_kind != "sliding" or model.window_pattern):
        given = "window_pattern" if model.window_pattern else "window_kind"
        yield f"{given} is for windows, and attention_window says none"
    if len(model.window_pattern) > model.num_layers:
        yield f"window_pattern names {len(model.window_pattern)} blocks, and num_layers is {model.num_layers}"


def _mixers(model: TransformerShape) -> Iterator[str]:
    named = set(model.mixers)
    if len(model.mixers) > model.num_layers:
        yield f"mixers names {len(model.mixers)} blocks, and num_layers is {model.num_layers}"
    if named & {"recurrence", "both"} and model.recurrence is None:
        yield "mixers names a recurrence, and recurrence says none"
    if model.recurrence and not named & {"recurrence", "both"}:
        yield "recurrence is for blocks that mixers names, and it names none"
    if "none" in named and not model.separate_halves:
        yield "a block whose mixer is none needs separate_halves"
    if model.parallel_block and model.mixers:
        yield "a parallel_block has attention, and mixers names others"
    if model.window_pattern and model.mixers:
        yield "window_pattern and mixers both name blocks: only windows in all of them go with mixers"
    if model.separate_halves and any(model.mixer_of(layer) != "none" for layer in model.moe_layers):
        yield "with separate_halves a MoE block's mixer is none, and moe_layers names others"


def _encoder(model: TransformerShape) -> Iterator[str]:
    encoder = model.encoder
    if encoder is None:
        return
    causal = {
        "attention_window": model.attention_window,
        "recurrence": model.recurrence,
        "further_tokens": model.further_tokens,
        "attention_sinks": model.attention_sinks,
    }
    yield from (f"{name} is for decoders, and encoder makes it none" for name, one in causal.items() if one)
    if model.positions == "alibi":
        yield "alibi positions are for decoders, and encoder makes it none"
    if encoder.first_position >= model.max_positions:
        yield f"first_position {encoder.first_position} is not below max_positions {model.max_positions}"
    if encoder.mask_token is not None and encoder.mask_token >= model.vocab_size:
        yield f"mask_token {encoder.mask_token} is not below vocab_size {model.vocab_size}"


def _stacks(model: TransformerShape) -> Iterator[str]:
    if model.stacks is None:
        return
    if not 1 <= model.stacks.encoder_layers < model.num_layers:
        of = model.num_layers - 1
        yield f"encoder_layers {model.stacks.encoder_layers} of stacks is not between 1 and {of}, all blocks but one"
    others = (
        "encoder",
        "attention_window",
        "recurrence",
        "further_tokens",
        "latent_attention",
        "parallel_block",
    )
    yield from (f"{name} does not go with stacks" for name in others if getattr(model, name))
    buckets, farthest = model.stacks.position_buckets, model.stacks.farthest
    if buckets and not 4 <= buckets < 2 * farthest:
        yield f"position_buckets {buckets} is not between 4 and {2 * farthest - 1}, twice farthest"
    if model.stacks.source_share:
        yield "source_share of stacks follows from the job's sequences"
    if model.positions == "alibi" or model.norm_placement != "before":
        yield "stacks have norms before, and no alibi positions"


def _tower(model: TransformerShape) -> Iterator[str]:
    if model.tower is None:
        return
    if not model.tower.layers < model.num_layers:
        yield f"layers {model.tower.layers} of tower leaves no block of num_layers {model.num_layers} to the decoder"
        return
    others = ("encoder", "stacks", "further_tokens")
    yield from (f"{name} does not go with tower" for name in others if getattr(model, name))
    if model.norm_placement == "after-sum":
        yield "norm_placement after-sum does not go with tower"
    if model.tower.part or model.tower.share:
        yield "part and share of tower follow from blocks"
    alone = {"tower": None, "num_layers": model.num_layers - model.tower.layers}
    if complaint := contradiction(model.model_copy(update=alone)):
        yield f"of the decoder: {complaint}"


def _diffusion(model: TransformerShape) -> Iterator[str]:
    drawn = model.diffusion
    if drawn is None:
        return
    if model.encoder is None or model.encoder.head_transform or model.outputs is None:
        yield "diffusion is of an encoder without head_transform, whose outputs are those of a patch"
    if drawn.latent % drawn.patch:
        yield f"latent {drawn.latent} of diffusion is not a multiple of patch {drawn.patch}"
    others = ("stacks", "tower", "parallel_block", "tied_embeddings", "embedding_norm", "separate_halves")
    yield from (f"{name} does not go with diffusion" for name in others if getattr(model, name))
    if model.norm != "layernorm" or model.norm_placement != "before":
        yield "blocks of diffusion have layer norms before both halves"


def _mixture(model: TransformerShape) -> Iterator[str]:
    if not model.num_experts:
        fields = (
            "experts_per_token",
            "moe_ffn_hidden_size",
            "shared_expert_ffn_hidden_size",
            "num_moe_layers",
            "moe_layers",
            "router_bias",
            "routing_bias",
            "shared_expert_gate",
            "expert_groups",
        )
        yield from (
            f"{name} is for a mixture, and num_experts is 0" for name in fields if getattr(model, name)
        )
        return
    if not 1 <= model.experts_per_token <= model.num_experts:
        yield f"experts_per_token {model.experts_per_token} is not between 1 and num_experts {model.num_experts}"
    if not 1 <= model.num_moe_layers <= model.num_layers:
        yield f"num_moe_layers {model.num_moe_layers} is not between 1 and num_layers {model.num_layers}"
    if not model.moe_ffn_hidden_size:
        yield "moe_ffn_hidden_size must be above zero"
    if model.shared_expert_gate and not model.shared_expert_ffn_hidden_size:
        yield "shared_expert_gate is for shared experts, and shared_expert_ffn_hidden_size is 0"
    if model.moe_layers:
        yield from _named_layers(model)
    if model.expert_groups:
        yield from _groups(model, model.expert_groups)


def _named_layers(model: TransformerShape) -> Iterator[str]:
    layers = model.moe_layers
    if (
        any(one >= other for one, other in pairwise(layers))
        or layers[0] < 0
        or layers[-1] >= model.num_layers
    ):
        yield f"moe_layers are numbers of blocks from 0 to {model.num_layers - 1}, in ascending order"
    if len(layers) != model.num_moe_layers:
        yield f"moe_layers names {len(layers)} blocks, and num_moe_layers is {model.num_moe_layers}"


def _groups(model: TransformerShape, groups: ExpertGroups) -> Iterator[str]:
    size, rest = divmod(model.num_experts, groups.count)
    if rest:
        yield f"{groups.count} expert_groups do not divide {model.num_experts} experts"
    elif groups.per_token > groups.count:
        yield f"a token chooses {groups.per_token} of {groups.count} expert_groups"
    elif groups.per_token * size < model.experts_per_token:
        yield f"{groups.per_token} expert_groups of {size} experts have fewer than {model.experts_per_token}"
    elif groups.scored_by == "two best" and size < 2:
        yield "expert_groups of one expert have no two best"


class TransformerSpec(TransformerShape):
    """The shape of one model, free of contradictions. Raises ValueError: fields that contradict one another."""

    @property
    def forked(self) -> bool:
        """Whether both halves of a parallel block read what one norm returns."""
        return self.parallel_block and self.parallel_norms == 1

    @property
    def picks(self) -> bool:
        """Whether an indexer picks the tokens of a window."""
        return self.window_kind == "picked"

    @model_validator(mode="after")
    def _consistent(self) -> TransformerSpec:
        if complaint := contradiction(self):
            raise ValueError(complaint)
        return self
