"""Specs of transformer models and their parts (latent attention, recurrences, rotary positions, groups of
experts, vision towers, diffusion), with rules on which fields go together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from cost_models.base import (
    MAX_LAYERS,
    OMITTED,
    TUPLE_FROM_LIST,
    CheckedSpec,
    LargeInt,
    Name,
    PositiveInt,
    Share,
    Spec,
)

Scale = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
"""A positive factor."""


class Indexer(Spec):
    """Indexer of sparse attention, which scores all earlier tokens. A query attends only to the
    `attention_window` tokens of highest score. DeepSeek-V3.2, arXiv 2512.02556, section 2.1."""

    heads: PositiveInt
    """Number of query heads of the indexer, made from the queries' latent. All share one key per token."""
    head_dim: PositiveInt
    """Width of an indexer's query and of its key."""


class LatentAttention(Spec):
    """Multi-head latent attention, whose queries, keys and values come from narrow latents (DeepSeek-V2,
    arXiv 2405.04434, section 2.1)."""

    kv_rank: PositiveInt
    """Width of the latent of keys and values."""
    query_rank: PositiveInt | None = None
    """Width of the latent of queries. None: queries are projected directly from the residual stream."""
    position_dim: PositiveInt
    """Part of `head_dim` that carries rotary positions. All heads share this part of the key."""
    value_dim: PositiveInt
    """Width of a head's values."""
    indexer: Indexer | None = None
    """Indexer that selects the tokens that a query attends to (`window_kind` picked). None: no indexer."""


class Recurrence(CheckedSpec):
    """Token mixer whose heads carry a state of fixed size (`state_dim` × `head_dim`) from token to token,
    where attention keeps the keys and values of all tokens."""

    kind: Literal["mamba1", "mamba2", "gated-delta", "kimi-delta", "lightning", "convolution"]
    """Rule by which a token updates the state. Decay, then add a product of key and value: mamba1, by channel
    (Gu and Dao 2023, arXiv 2312.00752); mamba2 (Dao and Gu 2024, arXiv 2405.21060); lightning, with fixed
    decays (Qin et al. 2024, arXiv 2401.04658). Replace the value stored for the key: gated-delta (Yang et al.
    2024, arXiv 2412.06464); kimi-delta, where each element of a key decays at its own rate (Kimi team 2025,
    arXiv 2510.26692). convolution: the state is the last products of key and value (LFM2, arXiv
    2511.23404)."""
    heads: PositiveInt
    """Number of heads, each with a state. For mamba1 and convolution, number of channels."""
    head_dim: PositiveInt
    """Width of a head's values. Default for mamba1 and convolution: 1."""
    groups: PositiveInt
    """Number of heads of keys and queries (Mamba: of B and C), each shared by `heads` / `groups` heads.
    Default: `heads`; mamba1: 1."""
    state_dim: PositiveInt
    """Width of a key and of a query. Default for convolution: 1."""
    step_rank: PositiveInt | None = None
    """Width of the latent from which mamba1 makes step sizes."""
    latent_norms: bool = False
    """Whether the step sizes' latent, keys and queries are normalised, with gains (Jamba)."""
    conv_width: Annotated[int, Field(ge=0, le=1024)] = 4
    """Width in tokens of the short convolution over queries, keys and values. 0: no convolution."""
    conv_bias: bool = False
    """Whether the short convolution has biases."""
    bias: bool = False
    """Whether the projections into and out of the mixer have biases."""
    least_step: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Lower limit of a head's step size (Nemotron-H)."""
    output_norm: bool = True
    """Whether the heads' output is normalised before it is gated."""
    gate_rank: PositiveInt | None = None
    """Width of the latents from which the output's gates and the keys' decays are made. None: no such
    latents."""
    chunk: PositiveInt = 64
    """Tokens per chunk, which kernels process at once."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        """Fill in fields of a recurrence that follow from its kind and number of heads."""
        if not isinstance(data, dict) or "heads" not in data:
            return data
        by_kind = {"mamba1": {"groups": 1, "chunk": 2048}, "convolution": {"state_dim": 1}}
        defaults = by_kind.get(str(data.get("kind")), {})
        channels = {"head_dim": 1, "output_norm": False} if defaults else {}
        return {"groups": data["heads"], **channels, **defaults, **data}

    def contradictions(self) -> dict[str, object]:
        """Error messages about contradictory fields of a recurrence, each mapped to a value that is true if
        the message applies."""
        kind, values, scalar = self.kind, self.head_dim, self.state_dim == 1 and self.groups == self.heads
        channels = {"mamba1": values == self.groups == 1, "convolution": values == 1 and scalar}
        return {
            f"heads {self.heads} is not a multiple of groups {self.groups}": self.heads % self.groups,
            f"heads of {kind} are channels: leave out head_dim and groups": not channels.get(kind, True),
            "step_rank is for mamba1, which needs it": (kind == "mamba1") != (self.step_rank is not None),
            "kimi-delta needs gate_rank": kind == "kimi-delta" and self.gate_rank is None,
        }

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.state_dim} x {self.head_dim}"
        channels = f"{self.heads} channels of {self.state_dim}"
        if self.kind == "convolution":
            return f"{self.title} over {self.conv_width} tokens"
        return f"{self.title}, {channels if self.kind == 'mamba1' else heads}"

    @property
    def title(self) -> str:
        """Name of the token mixer in messages."""
        return {
            "mamba1": "selective state spaces (Mamba)",
            "convolution": "short convolutions",
            "mamba2": "state spaces (Mamba-2)",
            "gated-delta": "gated delta nets",
            "kimi-delta": "Kimi delta attention",
            "lightning": "lightning attention",
        }[self.kind]

    @property
    def delta(self) -> bool:
        """Whether a token replaces the value that the state stores for its key (delta rule)."""
        return self.kind in ("gated-delta", "kimi-delta")

    @property
    def scans(self) -> bool:
        """Whether a kernel scans the tokens and adds products of key and value to states; False for
        convolutions. False for convolutions."""
        return self.kind != "convolution"

    @property
    def split_units(self) -> int:
        """Number of units that tensor-parallel ranks divide among them: groups of heads or, for mamba1,
        channels, as all share one key."""
        return self.heads if self.kind == "mamba1" else self.groups

    @property
    def key_size(self) -> int:
        """Width of all keys of the recurrence together."""
        return self.groups * self.state_dim

    @property
    def value_size(self) -> int:
        """Width of all values of the recurrence together, and of its heads' output."""
        return self.heads * self.head_dim

    @property
    def mixed_size(self) -> int:
        """Width of the recurrence's queries, keys and values together; for mamba1 only of values, from which
        the others are made."""
        return self.value_size + 2 * self.key_size * (self.kind != "mamba1")

    @property
    def decay_size(self) -> int:
        """Width of the decays that are made from a latent, one for each element of a key; 0 without such a
        latent."""
        return self.heads * self.state_dim if self.gate_rank else 0

    @property
    def selected_size(self) -> int:
        """Width of mamba1's joint projection of all channels to a latent of step sizes, a key and a query; 0
        for other kinds."""
        return self.step_rank + 2 * self.key_size if self.step_rank else 0

    @property
    def head_numbers(self) -> int:
        """Number of extra scalars per head and token (a step size, or a decay and a write strength)."""
        return {"mamba2": 1, "gated-delta": 2, "kimi-delta": 1}.get(self.kind, 0)

    @property
    def input_size(self) -> int:
        """Output width of the mixer's projection of the residual stream: queries, keys, values, the output's
        gate, and extra elements per head."""
        gate = 0 if self.gate_rank or not self.scans else self.value_size
        return self.mixed_size + gate + self.heads * self.head_numbers


class Encoder(Spec):
    """Options of an encoder model, whose tokens attend in both directions and which is trained to predict
    masked tokens. BERT, Devlin et al. 2018, arXiv 1810.04805."""

    masked: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.15
    """Share of a sequence's tokens that are masked. Only these enter the loss."""
    mask_token: Annotated[int, Field(ge=0)] | None = None
    """Token id that replaces a masked token. Default: the last of the vocabulary."""
    token_types: Annotated[int, Field(ge=0, le=1024)] = 0
    """Rows of the table of token types (every token here has the first type). 0: no table."""
    first_position: Annotated[int, Field(ge=0, le=1024)] = 0
    """Row of the learned positions used by a sequence's first token (RoBERTa: 2)."""
    head_transform: bool = True
    """Whether the head has a square matrix, the activation and a norm before the output matrix."""

    def masked_tokens(self, sequence_length: int) -> int:
        """Number of masked tokens in a sequence of `sequence_length` tokens."""
        return max(1, round(self.masked * sequence_length))


class Stacks(Spec):
    """Encoder-decoder model: its first blocks encode one sequence. The other blocks decode another and also
    attend to the encoder's output. T5, Raffel et al. 2019, arXiv 1910.10683."""

    encoder_layers: Annotated[int, Field(ge=0)]
    """Number of blocks of the encoder. The remaining blocks are the decoder's."""
    position_buckets: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Rows of the encoder's and of the decoder's table of score biases by distance, with a column for each
    head. 0: no table."""
    farthest: Annotated[int, Field(gt=0, le=10**6)] = 128
    """Distance in tokens from which all positions share the last bucket. Buckets widen towards this
    distance."""
    source_share: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Encoder tokens per decoder token. Set only for a decoder's blocks alone, by
    `cost_models.specs.kinds`."""


class RotaryScaling(CheckedSpec):
    """Scaling of rotary frequencies, for longer sequences than in pretraining."""

    kind: Literal["linear", "llama3"]
    """Kind of scaling, `linear` or `llama3`. linear: every frequency is divided by `factor` (Chen et al.
    2023). llama3: only low frequencies are divided."""
    factor: Scale
    """Factor by which frequencies are divided."""
    first_positions: LargeInt = 8192
    """Longest sequence of pretraining, in tokens. Used by llama3."""
    low_turns: Scale = 1.0
    """Number of turns over `first_positions` below which llama3 divides frequencies by the full factor."""
    high_turns: Scale = 4.0
    """Number of turns over `first_positions` above which llama3 leaves frequencies unchanged. Those between
    are scaled in part."""

    def contradictions(self) -> dict[str, object]:
        """Error message for a `low_turns` above `high_turns`, mapped to whether it applies."""
        low, high = self.low_turns, self.high_turns
        return {f"low_turns {low:g} is above high_turns {high:g}": low > high}


class Rotary(Spec):
    """Rotary position embedding of queries and keys. Su et al. 2021."""

    base: Scale = 10_000.0
    """Base of the frequencies. The slowest one needs nearly 2 pi × base tokens for a turn."""
    windowed_base: Scale | None = None
    """Base of the frequencies in blocks with an attention window, never scaled. None: `base` (Gemma 3 sets
    another)."""
    dim: PositiveInt | None = None
    """Number of elements of a head that are rotated, counted from the first. None: all."""
    pattern: Annotated[tuple[bool, ...], TUPLE_FROM_LIST] = ()
    """Whether each block has rotary positions, as one flag per block, repeated from the first block on.
    Default: all."""
    scaling: RotaryScaling | None = None
    """Scaling of the frequencies for longer sequences. None: no scaling."""


class ExpertGroups(Spec):
    """Equal groups of consecutive experts. The router selects groups for a token, then experts within these
    groups."""

    count: PositiveInt
    """Number of groups."""
    per_token: PositiveInt
    """Number of groups that the router selects per token."""
    scored_by: Literal["best", "two best"] = "best"
    """Score of a group, which is its best expert's (DeepSeek-V2) or the sum of its two best (DeepSeek-V3)."""


def share_of(pattern: Sequence[bool], layers: int) -> float:
    """Share of `layers` blocks for which a repeated pattern of flags is true; 1 without a pattern."""
    return sum(islice(cycle(pattern), layers)) / layers if pattern else 1.0


class Diffusion(Spec):
    """Diffusion transformer, an encoder over patches of a noisy latent image (DiT, Peebles and Xie 2022,
    arXiv 2212.09748). A vector made of time step and class shifts, scales and gates both halves of every
    block (adaLN-Zero, section 3.2). Norms have no parameters; rows of the vocabulary are classes."""

    latent: PositiveInt = 32
    """Side of a latent image, in elements of 8 × 8 pixels. The job's sequence is the image's patches."""
    patch: PositiveInt = 2
    """Side of a patch, in elements of the latent image."""
    channels: PositiveInt = 4
    """Number of channels of a latent image."""
    frequencies: PositiveInt = 256
    """Width of the sinusoidal embedding of a time step, from which two matrices make a vector."""

    @property
    def tokens(self) -> int:
        """Number of patches per latent image; each patch is a token."""
        return int((self.latent // self.patch) ** 2)

    @property
    def pixels(self) -> int:
        """Number of elements of a patch over all channels."""
        return int(self.channels * self.patch**2)


def _query_heads(fields: dict[str, int]) -> int:
    """Default number of key/value heads: the number of query heads."""
    return fields["num_heads"]


def _head_width(fields: dict[str, int]) -> float:
    """Default width of a head: hidden size divided by number of heads. A fraction is left for the field's
    check, which says `head_dim: `12.8` is not a whole number`."""
    hidden, heads = fields["hidden_size"], fields["num_heads"]
    return hidden / heads if hidden % heads else hidden // heads


def _inner_width(fields: dict[str, int]) -> int:
    """Default inner width of an MLP: 4 × the hidden size."""
    return 4 * fields["hidden_size"]


def _expert_width(fields: dict[str, int]) -> int:
    """Default inner width of one expert: the MLP's inner width; 0 in a dense model."""
    return fields["ffn_hidden_size"] if fields["num_experts"] else 0


class _Widths(CheckedSpec):
    """Base class of specs whose head and MLP widths follow from `hidden_size` and `num_heads`."""

    @model_validator(mode="before")
    @classmethod
    def _fill_widths(cls, data: Any) -> Any:
        """Fill in widths that the input lacks before pydantic checks the fields, as it computes no defaults
        if another field is wrong. If `hidden_size` or `num_heads` is wrong, only that is reported."""
        if not isinstance(data, dict):
            return data
        sizes = {name: data[name] for name in ("hidden_size", "num_heads") if name in data}
        if len(sizes) < 2 or not all(isinstance(size, int) and size > 0 for size in sizes.values()):
            return data
        return {"head_dim": _head_width(sizes), "ffn_hidden_size": _inner_width(sizes)} | data


class Tower(_Widths):
    """Vision transformer whose output tokens, projected to the decoder's width, fill positions of the
    decoder's sequence. ViT, Dosovitskiy et al. 2020, arXiv 2010.11929; LLaVA, Liu et al. 2023, arXiv
    2304.08485."""

    layers: Annotated[int, Field(gt=0, lt=MAX_LAYERS)]
    """Number of blocks of the tower, which are the first of the model's `num_layers` blocks."""
    hidden_size: PositiveInt
    """Width of the tower's residual stream."""
    num_heads: PositiveInt
    """Number of attention heads. Each token of an image attends to all tokens of that image."""
    head_dim: PositiveInt = Field(default_factory=_head_width, validate_default=True)
    """Width of one attention head. Default: hidden_size / num_heads."""
    ffn_hidden_size: PositiveInt = Field(default_factory=_inner_width, validate_default=True)
    """Inner width of the MLP. Default: 4 × hidden_size."""
    gated_mlp: bool = False
    """Whether the MLP is gated, with three matrices instead of two."""
    activation: Literal["gelu", "gelu-tanh", "quick-gelu", "silu", "relu"] = "gelu"
    """Non-linearity of the MLP."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of normalisation before both halves of a block."""
    norm_epsilon: Scale = 1e-5
    """Epsilon that norms add to a variance."""
    bias: bool = True
    """Whether the matrices of the tower's blocks have biases."""
    positions: Literal["learned", "rotary"] = "learned"
    """Kind of positions, as a learned table, or rotary over rows and columns of patches (Qwen2-VL)."""
    image: PositiveInt = 224
    """Side of an image in pixels. Pixels beyond the last full patch are not read."""
    patch: PositiveInt = 14
    """Side of a patch in pixels."""
    channels: PositiveInt = 3
    """Number of channels per pixel."""
    frames: PositiveInt = 1
    """Number of frames that a patch spans. An image is repeated as that many equal frames (Qwen2-VL: 2)."""
    class_token: bool = False
    """Whether a learned token precedes an image's patches. The decoder does not read it."""
    patch_bias: bool = True
    """Whether the patch embedding has a bias."""
    norm_before: bool = False
    """Whether there is a norm before the first block (CLIP)."""
    norm_after: bool = False
    """Whether there is a norm after the last block."""
    merge: PositiveInt = 1
    """Side, in patches, of the squares of neighbouring patches that become one token (Qwen2-VL: 2)."""
    pools: bool = Field(default=False, exclude_if=lambda pools: not pools)
    """Whether the tokens of a square of `merge` patches are averaged, not concatenated (Gemma 3)."""
    projector_norm: bool = False
    """Whether the projector begins with a norm."""
    projector_hidden_size: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Inner width of a projector of two matrices. 0: the projector is one matrix."""
    projector_activation: Literal["gelu", "gelu-tanh", "quick-gelu", "silu", "relu"] = "gelu"
    """Non-linearity between the projector's two matrices."""
    projector_bias: bool = True
    """Whether the projector's matrices have biases."""
    part: Literal["", "tower", "joint"] = Field(default="", exclude_if=lambda part: not part)
    """Part of the model that a spec of one kind of blocks describes. It is the tower, or the decoder's first
    block, which joins both (set by `cost_models.specs.kinds`)."""
    share: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(default=0.0, exclude_if=lambda x: not x)
    """Number of image tokens from the projector per token of a sequence. Set only for the decoder's first
    block."""

    def contradictions(self) -> dict[str, object]:
        """Error messages about sizes of a vision tower that do not divide evenly, each mapped to a value that
        is true if the message applies."""
        row, dim, turned = self.image // self.patch, self.head_dim, self.positions == "rotary"
        return {
            f"image {self.image} is smaller than patch {self.patch}": not row,
            f"{row} patches of a row are not a multiple of merge {self.merge}": row % self.merge,
            f"rotary positions over rows and columns need quarters of head_dim {dim}": turned and dim % 4,
        }

    def __str__(self) -> str:
        return f"{self.layers} blocks of width {self.hidden_size}"

    @property
    def patches(self) -> int:
        """Number of patches that an image is cut into."""
        return int((self.image // self.patch) ** 2)

    @property
    def tokens(self) -> int:
        """Tokens per image in the tower's blocks: patches and any class token."""
        return self.patches + self.class_token

    @property
    def features(self) -> int:
        """Tokens per image that the decoder reads, after neighbouring patches are merged."""
        return int(self.patches // self.merge**2)

    @property
    def pixels(self) -> int:
        """Number of elements of a patch over all channels and frames."""
        return int(self.channels * self.frames * self.patch**2)

    @property
    def projector_inputs(self) -> int:
        """Input width of the projector between vision tower and decoder."""
        return int(self.hidden_size * (1 if self.pools else self.merge**2))


Activation = Literal["gelu", "gelu-tanh", "silu", "relu", "squared-relu", "quick-gelu"]
Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary", "alibi", "none"]
Mixer = Literal["attention", "recurrence", "both", "none"]


class TransformerSpec(_Widths):
    """Shape of a dense or MoE transformer, which is a decoder, an encoder (if `encoder` is set) or an
    encoder-decoder (if `stacks` is set).

    Defaults that depend on other fields are filled in on construction. Each block is priced by its kind
    (`cost_models.specs.kinds`).
    """

    kind: Literal["transformer"] = "transformer"
    name: Name = "custom"
    """Catalogue name, or a name for reports."""
    num_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    """Number of transformer blocks, l."""
    hidden_size: PositiveInt
    """Width of the residual stream, h."""
    num_heads: PositiveInt
    """Number of query heads, a."""
    num_kv_heads: PositiveInt = Field(default_factory=_query_heads)
    """Number of key/value heads. Fewer than `num_heads` make grouped-query attention. Default:
    `num_heads`."""
    head_dim: PositiveInt = Field(default_factory=_head_width, validate_default=True)
    """Width of one head. Default: hidden_size / num_heads."""
    ffn_hidden_size: LargeInt = Field(default_factory=_inner_width, validate_default=True)
    """Inner width of the MLP. Default: 4 × hidden_size."""
    vocab_size: LargeInt
    """Number of entries of the vocabulary before padding, V."""
    gated_mlp: bool = False
    """Whether the MLP is gated (SwiGLU, GeGLU), with three matrices instead of two."""
    activation: Activation = "gelu"
    """Non-linearity of the MLP."""
    norm: Norm = "layernorm"
    """Kind of normalisation in a block's two halves and after the last block."""
    norm_placement: Literal["before", "after", "around", "after-sum"] = "before"
    """Place of norms in a block, which depends on the model family. Before each half of a block, after it
    (OLMo 2), before and after it (Gemma 2), or after residual sums (BERT), with no norm at the end."""
    norm_bias: bool = True
    """Whether layer norms have biases in addition to gains."""
    norm_epsilon: Scale = 1e-5
    """Epsilon that norms add to a variance."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding (BLOOM)."""
    positions: Positions = "learned"
    """Kind of positions, as a learned table, rotary, ALiBi, or none."""
    max_positions: LargeInt = 2048
    """Rows of the learned position table. For other positions the longest sequence."""
    tied_embeddings: bool = True
    """Whether the output head shares the token embedding's weight."""
    head_bias: bool = False
    """Whether the output head has a bias."""
    embedding_scale: Scale = 1.0
    """Factor on embedded tokens (Gemma: √h)."""
    logit_scale: Scale = 1.0
    """Factor on the logits (Cohere)."""
    residual_scale: Scale = 1.0
    """Factor on the output of each half of a block before it is added to the residual stream (Granite)."""
    attention_bias: bool = True
    """Whether the query/key/value projections have biases."""
    attention_output_bias: bool = True
    """Whether the attention's output projection has a bias. Default: as `attention_bias`."""
    mlp_bias: bool = True
    """Whether the MLP's matrices have biases."""
    qk_norm: bool = False
    """Whether each query and key head has a norm (Qwen3)."""
    qk_norm_over: Literal["head", "all"] = "head"
    """Width of the query and key norms and their gains, which is a head or all heads (OLMo 2)."""
    attention_sinks: bool = False
    """Whether each head's softmax includes a learned score that has no value vector (gpt-oss). Costs include
    it, but the executor does not train it."""
    attention_scale: Scale | None = None
    """Factor on attention scores. None: 1/√head_dim."""
    rotary: Rotary | None = None
    """Rotary positions. None: all elements of every head are rotated in every block, base 10,000."""
    parallel_block: bool = False
    """Whether attention and MLP read the residual stream in parallel, and their outputs are added together
    (GPT-J, PaLM, MegaScale)."""
    parallel_norms: Literal[1, 2] = 1
    """Number of norms of a parallel block, one for both halves (GPT-J) or one for each (GPT-NeoX)."""
    attention_window: LargeInt | None = None
    """Maximum number of tokens that a query attends to, the query's token included. None: all earlier
    tokens."""
    window_kind: Literal["sliding", "chunked", "picked"] = "sliding"
    """Choice of the tokens in an attention window. They are the last (sliding), those of the query's chunk
    (chunked; Llama 4), or those that an indexer selects (picked)."""
    window_pattern: Annotated[tuple[Literal["window", "full"], ...], TUPLE_FROM_LIST] = ()
    """Attention of each block, with the window or full, repeated from the first block on. [window, full] is
    Gemma 2's. Default: all have the window."""
    attention_gate: bool = False
    """Whether each element of attention's output is multiplied by a gate (Qwen3-Next)."""
    recurrence: Recurrence | None = None
    """Recurrent token mixer of the blocks that `mixers` names. None: all blocks have attention."""
    mixers: Annotated[tuple[Mixer, ...], TUPLE_FROM_LIST] = ()
    """Token mixer of each block, repeated from the first block on. `both` is attention and a recurrence side
    by side (Falcon-H1). Default: a recurrence if the model has one, else attention."""
    separate_halves: bool = False
    """Whether each block is only one half of a usual block: its token mixer, or (mixer none) its MLP or
    mixture of experts (Nemotron-H)."""
    num_experts: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Number of routed experts of a MoE block, E. 0: a dense model."""
    experts_per_token: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Number of routed experts that a token passes through, k."""
    moe_ffn_hidden_size: int = Field(default_factory=_expert_width, validate_default=True, ge=0, le=10**7)
    """Inner width of one expert. Default: `ffn_hidden_size`."""
    shared_expert_ffn_hidden_size: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Total inner width of the shared experts, through which every token passes. 0: no shared experts."""
    num_moe_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    """Number of MoE blocks, which are the last blocks unless `moe_layers` lists others. Default: all."""
    moe_layers: Annotated[tuple[int, ...], TUPLE_FROM_LIST] = ()
    """Indices of the MoE blocks, counted from 0, if these are not the last blocks (Llama 4 Maverick: every
    second)."""
    router_bias: bool = False
    """Whether the router's matrix has biases."""
    routing_bias: bool = False
    """Whether the router adds biases to its scores to choose experts, but not to weigh them. Biases stay as
    loaded (arXiv 2412.19437, section 2.1.2)."""
    expert_groups: ExpertGroups | None = None
    """Groups of experts that the router selects first for a token. None: it chooses among all experts."""
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    """Function of a router's scores, which is softmax over all experts, or sigmoid of each (DeepSeek-V3)."""
    normalized_routing: bool = True
    """Whether the weights of a token's chosen experts are scaled to sum to one."""
    routing_scale: Scale = 1.0
    """Factor on the weights of a token's chosen experts."""
    shared_expert_gate: bool = False
    """Whether a gate weighs the shared experts' output for each token (Qwen2 MoE)."""
    load_balance: Share = 0.01
    """Coefficient of the load-balance loss. 0: none. Default: Fedus et al. 2021, Switch Transformers, section
    2.2."""
    latent_attention: LatentAttention | None = None
    """Latent queries, keys and values. None: all are projected directly from the residual stream."""
    encoder: Encoder | None = OMITTED
    """Options of an encoder. None: the model is a decoder, which predicts next tokens."""
    stacks: Stacks | None = OMITTED
    """Options of an encoder-decoder. None: the model is an encoder or a decoder alone."""
    diffusion: Diffusion | None = OMITTED
    """Options of a diffusion transformer over patches of noisy images. Fields that follow from them may be
    omitted."""
    tower: Tower | None = OMITTED
    """Vision tower before a decoder. The other fields describe the decoder, except `num_layers`, which counts
    both."""
    further_tokens: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of tokens predicted beyond the next (multi-token prediction). Each is predicted by an additional
    block with projection and head after the last block (DeepSeek-V3)."""
    outputs: PositiveInt | None = OMITTED
    """Number of outputs of the head per token, for example 1 for a reward model. None: a logit of each
    vocabulary entry."""
    vocab_multiple: PositiveInt = 1
    """Padding unit of the vocabulary, whose padded number of entries is a multiple of this × tp (Megatron:
    128)."""
    left_out: Annotated[tuple[str, ...], TUPLE_FROM_LIST] = ()
    """Operations of the model's blocks that costs leave out, a few words each. The executor does not train
    such a model."""
    changed: Annotated[tuple[str, ...], TUPLE_FROM_LIST] = ()
    """Changes that `--allow` made to the named model, as words of `--allow` (`cost_models.specs.training`)."""
    source: str = ""
    """Source of the model's shape, such as a paper or a configuration file."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        """Fill in fields that follow from others. Wrong types are left to the fields' checks."""
        if not isinstance(data, dict):
            return data
        filled: dict[str, Any] = {}
        if data.get("diffusion") is not None:
            # 1,000 classes and one for none; noise and its variance per element of a patch
            filled |= {"vocab_size": 1001, "outputs": 1, "positions": "none", "tied_embeddings": False}
            filled |= {"head_bias": True, "activation": "gelu-tanh", "norm_epsilon": 1e-6}
            filled["encoder"] = {"masked": 1.0, "head_transform": False}
            with suppress(ValidationError):  # reported by the field's own check
                filled["outputs"] = 2 * Diffusion.model_validate(data["diffusion"]).pixels
        filled |= data
        if filled.get("num_experts") and "num_moe_layers" not in filled:
            layers, tower, moe_layers = (filled.get(name) for name in ("num_layers", "tower", "moe_layers"))
            tower_layers = tower.get("layers") if isinstance(tower, dict) else getattr(tower, "layers", 0)
            if isinstance(layers, int) and isinstance(tower_layers, int) and tower_layers < layers:
                layers -= tower_layers
            filled["num_moe_layers"] = (
                len(moe_layers) if isinstance(moe_layers, Sequence) and moe_layers else layers
            )
        if filled.get("recurrence") is not None:
            filled["mixers"] = filled.get("mixers") or ("recurrence",)
        return {"attention_output_bias": filled.get("attention_bias", True)} | filled

    @property
    def not_in_executor(self) -> tuple[str, ...]:
        """Short descriptions of the model's features that costs include but the executor does not
        implement."""
        tower, mixer = self.tower, self.recurrence
        features: dict[str, object] = {
            "attention sinks": self.attention_sinks,
            "heads of rewards": None if self.diffusion else self.outputs,
            "modulated blocks": self.diffusion,
            "prediction of further tokens": self.further_tokens,
            "indexers": self.window_kind == "picked",
            "rotary positions of patches": tower and tower.positions == "rotary",
            "patches of several frames": tower and tower.frames > 1,
            mixer.title if mixer else "": mixer and mixer.kind not in ("mamba2", "gated-delta", "kimi-delta"),
            "gates on latent attention": self.attention_gate and self.latent_attention is not None,
        }
        return tuple(feature for feature, there in features.items() if there)

    @property
    def ends_in_norm(self) -> bool:
        """Whether a norm lies between the last block and the head."""
        return self.norm_placement != "after-sum"

    @property
    def is_tower(self) -> bool:
        """Whether the blocks belong to a vision tower, which embeds patches instead of tokens."""
        return self.tower is not None and self.tower.part == "tower"

    @property
    def longest_sequence(self) -> int:
        """Longest sequence that the position table holds, in tokens."""
        return self.max_positions - (self.encoder.first_position if self.encoder else 0)

    @property
    def query_size(self) -> int:
        """Width of all query heads together, in elements."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, in elements."""
        return self.num_kv_heads * self.head_dim

    @property
    def rotary_share(self) -> float:
        """Share of the elements of heads that rotary positions rotate, mean over the blocks."""
        rotary = self.rotary or Rotary()
        turned = (rotary.dim or self.head_dim) / self.head_dim * share_of(rotary.pattern, self.num_layers)
        return turned if self.positions == "rotary" else 0.0

    def window_of(self, layer: int) -> int | None:
        """Attention window of a block (counted from 0), in tokens; None if the block attends to all tokens."""
        pattern = self.window_pattern
        return None if pattern and pattern[layer % len(pattern)] == "full" else self.attention_window

    def attended(self, sequence_length: int) -> float:
        """Mean number of keys per query over the blocks, without the causal mask, in sequences of
        `sequence_length` tokens."""
        windowed = min(sequence_length, self.attention_window or sequence_length)
        return self._mean_over_blocks(sequence_length, windowed) + self.source_share * sequence_length

    def unmasked(self, sequence_length: int) -> float:
        """Mean number of keys per query that the mask leaves, over queries and blocks, for sequences of s
        tokens: s/2 for a causal mask without window, s in an encoder."""
        causal, window = sequence_length / 2, min(sequence_length, self.attention_window or sequence_length)
        if self.encoder:
            return sequence_length
        seen = window * (1 - window / sequence_length / 2)
        if self.window_kind == "chunked":
            chunks, last_chunk = divmod(sequence_length, window)
            seen = (chunks * window**2 + last_chunk**2) / sequence_length / 2
        return self._mean_over_blocks(causal, seen) + self.source_share * sequence_length

    @property
    def source_share(self) -> float:
        """Number of encoder tokens per decoder token that a decoder's blocks attend to; 0 without an
        encoder-decoder."""
        return self.stacks.source_share if self.stacks else 0.0

    def _mean_over_blocks(self, full_value: float, window_value: float) -> float:
        """Mean over the blocks of a value that is `window_value` in blocks with an attention window and
        `full_value` in the others."""
        return self.windowed_share * window_value + (1 - self.windowed_share) * full_value

    @property
    def windowed_share(self) -> float:
        """Share of the blocks that have an attention window."""
        windowed = [kind == "window" for kind in self.window_pattern]
        return share_of(windowed, self.num_layers) if self.attention_window else 0.0

    def encodes(self, layer: int) -> bool:
        """Whether tokens of a block (counted from 0) attend to tokens on both sides, as in an encoder."""
        return self.encoder is not None or (self.stacks is not None and layer < self.stacks.encoder_layers)

    def mixer_of(self, layer: int) -> Mixer:
        """Token mixer of a block (counted from 0), such as attention or recurrence."""
        return self.mixers[layer % len(self.mixers)] if self.mixers else "attention"

    def mixer_share(self, *mixers: Mixer) -> float:
        """Share of the blocks whose token mixer is one of `mixers`."""
        return share_of([one in mixers for one in self.mixers or ("attention",)], self.num_layers)

    @property
    def attention_share(self) -> float:
        """Share of the blocks that have attention (alone or beside a recurrence)."""
        return self.mixer_share("attention", "both")

    @property
    def feed_forward_share(self) -> float:
        """Share of the blocks that have an MLP or a mixture of experts."""
        return self.mixer_share("none") if self.separate_halves else 1.0

    @property
    def dense_share(self) -> float:
        """Share of the blocks that have an MLP and no experts."""
        return max(0.0, self.feed_forward_share - self.moe_share)

    @property
    def value_size(self) -> int:
        """Width of all value heads together, different from the keys' width only with latent attention."""
        return self.num_kv_heads * self._value_dim

    @property
    def attended_size(self) -> int:
        """Input width of attention's output projection, different from the queries' width only with latent
        attention."""
        return self.num_heads * self._value_dim

    @property
    def _value_dim(self) -> int:
        """Width of a head's values."""
        return self.latent_attention.value_dim if self.latent_attention else self.head_dim

    @property
    def moe_share(self) -> float:
        """Share of the blocks that have a mixture of experts; 0 for a dense model."""
        return self.num_moe_layers / self.num_layers

    def is_mixture(self, layer: int) -> bool:
        """Whether a block (counted from 0) is a mixture of experts."""
        halved = self.separate_halves and self.mixer_of(layer) != "none"
        last = not halved and self.has_experts and layer >= self.num_layers - self.num_moe_layers
        return layer in self.moe_layers if self.moe_layers else last

    @property
    def has_experts(self) -> bool:
        """Whether the model has blocks with a mixture of experts."""
        return self.num_experts > 0

    @property
    def shares_norm(self) -> bool:
        """Whether both halves of a parallel block read the output of one norm."""
        return self.parallel_block and self.parallel_norms == 1

    def contradictions(self) -> dict[str, object]:
        """Error messages about contradictory fields of a transformer, each mapped to a value that is true if the
        message applies."""
        layers, heads, kv_heads, head_dim = self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim
        positions, rotary, placement = self.positions, self.rotary or Rotary(), self.norm_placement
        rotates, rotated, picks = positions == "rotary", rotary.dim or 0, self.window_kind == "picked"
        latent, joint_norm, fields = self.latent_attention, self.qk_norm_over == "all", dict(self)
        position_dim, indexer = (latent.position_dim, latent.indexer) if latent else (0, None)
        recurrence, direct = self.recurrence, latent is not None and latent.query_rank is None
        mixers, halves, parallel = {*self.mixers}, self.separate_halves, self.parallel_block
        recurs, windows, pattern = mixers & {"recurrence", "both"}, self.attention_window, self.window_pattern
        norms_after, both_patterns = placement != "before", mixers and pattern
        by_block = {"rotary.pattern": rotary.pattern, "window_pattern": pattern, "mixers": self.mixers}
        of_windows = {"rotary.windowed_base": rotary.windowed_base, "window_pattern": pattern}
        of_windows["window_kind"] = self.window_kind != "sliding"

        def each(names: str, words: str) -> dict[str, object]:
            """Dictionary with an error message for each of the fields `names`, made of the field's name and
            `words`, mapped to the field's value."""
            return {f"{name} {words}": fields[name] for name in names.split()}

        errors: dict[str, object] = {
            f"num_heads {heads} is not a multiple of num_kv_heads {kv_heads}": heads % kv_heads,
            f"rotary positions need an even head_dim, not {head_dim}": rotates and head_dim % 2,
            f"rotary is for rotary positions, and positions is {positions}": self.rotary and not rotates,
            f"rotary.dim {rotated} is no even part of head_dim {head_dim}": rotated % 2 or rotated > head_dim,
            "latent attention turns position_dim of every head: rotary.dim and rotary.pattern are not for it": latent
            and (rotated or rotary.pattern),
            "window_kind picked is for latent attention with an indexer": picks and not latent,
            f"position_dim {position_dim} leaves nothing of head_dim {head_dim}": position_dim >= head_dim,
            "an indexer picks the tokens of an attention_window of window_kind picked: it needs both": latent
            and bool(indexer) != picks,
            "an indexer makes queries from their latent, and query_rank says none": indexer and direct,
            f"rotary positions need an even position_dim, not {position_dim}": rotates and position_dim % 2,
            f"a parallel_block has its norms before, not norm_placement {placement}": parallel
            and norms_after,
            "parallel_norms is for a parallel_block": self.parallel_norms == 2 and not parallel,
            "qk_norm_over is for qk_norm without latents": joint_norm and latent,
            "qk_norm_over is for qk_norm": joint_norm and not self.qk_norm,
            "mixers names a recurrence, and recurrence says none": recurs and not recurrence,
            "recurrence is for blocks that mixers names, and it names none": recurrence and not recurs,
            "a block whose mixer is none needs separate_halves": "none" in mixers and not halves,
            "a parallel_block has attention, and mixers names others": parallel and mixers,
            "window_pattern and mixers both name blocks: only windows in all of them go with mixers": both_patterns,
            "with separate_halves a MoE block's mixer is none, and moe_layers names others": halves
            and any(self.mixer_of(layer) != "none" for layer in self.moe_layers),
        }
        for name, kinds in by_block.items():
            errors[f"{name} names {len(kinds)} blocks, and num_layers is {layers}"] = len(kinds) > layers
        for name, value in of_windows.items():
            errors[f"{name} is for windows, and attention_window says none"] = value and not windows
        if experts := self.num_experts:
            active, numbers, count = self.experts_per_token, self.moe_layers, self.num_moe_layers
            groups, ungated = self.expert_groups, not self.shared_expert_ffn_hidden_size
            number, top_k = (groups.count, groups.per_token) if groups else (1, 1)
            adds_pairs = groups is not None and groups.scored_by == "two best"
            size, ascending = experts // number, [*numbers] == sorted({*numbers} & {*range(layers)})
            outside, miscounted = not 0 < active <= experts, numbers and len(numbers) != count
            errors |= {
                f"experts_per_token {active} is not between 1 and num_experts {experts}": outside,
                f"num_moe_layers {count} is not between 1 and num_layers {layers}": not count
                or count > layers,
                "moe_ffn_hidden_size must be above zero": not self.moe_ffn_hidden_size,
                "shared_expert_gate is for shared experts, and shared_expert_ffn_hidden_size is 0": ungated
                and self.shared_expert_gate,
                f"moe_layers are numbers of blocks from 0 to {layers - 1}, in ascending order": not ascending,
                f"moe_layers names {len(numbers)} blocks, and num_moe_layers is {count}": miscounted,
                f"{number} expert_groups do not divide {experts} experts": experts % number,
                f"a token chooses {top_k} of {number} expert_groups": top_k > number,
                f"{top_k} expert_groups of {size} experts have fewer than {active}": top_k * size < active,
                "expert_groups of one expert have no two best": size < 2 and adds_pairs,
            }
        else:
            mixture = "experts_per_token moe_ffn_hidden_size shared_expert_ffn_hidden_size num_moe_layers"
            mixture += " moe_layers router_bias routing_bias shared_expert_gate expert_groups"
            errors |= each(mixture, "is for a mixture, and num_experts is 0")
        if encoder := self.encoder:
            first, limit, mask = encoder.first_position, self.max_positions, encoder.mask_token or 0
            causal = "attention_window recurrence further_tokens attention_sinks"
            errors |= each(causal, "is for decoders, and encoder makes it none") | {
                "alibi positions are for decoders, and encoder makes it none": positions == "alibi",
                f"first_position {first} is not below max_positions {limit}": first >= limit,
                f"mask_token {mask} is not below vocab_size {self.vocab_size}": mask >= self.vocab_size,
            }
        if stacks := self.stacks:
            count, buckets, widest = stacks.encoder_layers, stacks.position_buckets, 2 * stacks.farthest
            text = f"encoder_layers {count} of stacks is not between 1 and {layers - 1}, all blocks but one"
            bucket_error = f"position_buckets {buckets} is not between 4 and {widest - 1}, twice farthest"
            excluded = "encoder attention_window recurrence further_tokens latent_attention parallel_block"
            errors |= {
                text: not 0 < count < layers,
                **each(excluded, "does not go with stacks"),
                bucket_error: buckets and not 4 <= buckets < widest,
                "source_share of stacks follows from the job's sequences": stacks.source_share,
                "stacks have norms before, and no alibi positions": positions == "alibi" or norms_after,
            }
        if tower := self.tower:
            decoder = self.model_copy(update={"tower": None, "num_layers": layers - tower.layers})
            text = f"layers {tower.layers} of tower leaves no block of num_layers {layers} to the decoder"
            errors |= {
                text: tower.layers >= layers,
                **each("encoder stacks further_tokens", "does not go with tower"),
                "norm_placement after-sum does not go with tower": placement == "after-sum",
                "part and share of tower follow from blocks": tower.part or tower.share,
                **{f"of the decoder: {error}": wrong for error, wrong in decoder.contradictions().items()},
            }
        if diffusion := self.diffusion:
            side, patch, norms = diffusion.latent, diffusion.patch, (self.norm, placement)
            has_head = not encoder or encoder.head_transform or not self.outputs
            excluded = "stacks tower parallel_block tied_embeddings embedding_norm separate_halves"
            errors |= {
                "diffusion is of an encoder without head_transform, whose outputs are those of a patch": has_head,
                f"latent {side} of diffusion is not a multiple of patch {patch}": side % patch,
                **each(excluded, "does not go with diffusion"),
                "blocks of diffusion have layer norms before both halves": norms != ("layernorm", "before"),
            }
        return errors
