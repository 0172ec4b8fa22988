"""The shape of a decoder-only transformer: all that its parameters, FLOPs and activations follow from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import MAX_LAYERS, LargeInt, Name, PositiveInt, Share, Spec
from cost_models.specs.model import blocks
from cost_models.specs.model.blocks import LISTED, Recurrence, Rotary, Scale
from cost_models.specs.model.diffusion import Diffusion
from cost_models.specs.model.filling import filled_in
from cost_models.specs.model.tower import Tower

Activation = Literal["gelu", "gelu-tanh", "silu", "relu", "squared-relu", "quick-gelu"]
Norm = Literal["layernorm", "rmsnorm"]
NormPlacement = Literal["before", "after", "around", "after-sum"]
Positions = Literal["learned", "rotary", "alibi", "none"]
Mixer = Literal["attention", "recurrence", "both", "none"]


class TransformerShape(Spec):
    """A transformer of one stack of blocks, dense or MoE: a decoder, or with `encoder` an encoder.

    Defaults that depend on other fields are filled in on construction; each block is priced as what it is (`kinds`).
    """

    kind: Literal["transformer"] = "transformer"
    name: Name = "custom"
    """Catalogue name, or a name for reports."""
    num_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    """Transformer blocks, l."""
    hidden_size: PositiveInt
    """Width of the residual stream, h."""
    num_heads: PositiveInt
    """Query heads, a."""
    num_kv_heads: PositiveInt
    """Key/value heads; fewer than `num_heads` make grouped-query attention. Default: `num_heads`."""
    head_dim: PositiveInt
    """Width of one head. Default: hidden_size / num_heads."""
    ffn_hidden_size: LargeInt
    """Inner width of the MLP. Default: 4 × hidden_size."""
    vocab_size: LargeInt
    """Entries of the vocabulary before padding, V."""
    gated_mlp: bool = False
    """True: three matrices (SwiGLU, GeGLU); False: two."""
    activation: Activation = "gelu"
    """Non-linearity of the MLP."""
    norm: Norm = "layernorm"
    """Normalisation of a block's two halves and at the end."""
    norm_placement: NormPlacement = "before"
    """Where norms lie: before each half, after it (OLMo 2), both (Gemma 2), or over sums (BERT), none at the end."""
    norm_bias: bool = True
    """Whether a layer norm has a bias beside its gains."""
    norm_epsilon: Scale = 1e-5
    """Epsilon that norms add to a variance."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding (BLOOM)."""
    positions: Positions = "learned"
    """How positions enter: a learned table, rotary, ALiBi, or not at all."""
    max_positions: LargeInt = 2048
    """Rows of the learned position table; the longest sequence for the others."""
    tied_embeddings: bool = True
    """Whether the output head shares the token embedding's weight."""
    head_bias: bool = False
    """Whether the output head has a bias."""
    embedding_scale: Scale = 1.0
    """Factor on embedded tokens (Gemma: √h)."""
    logit_scale: Scale = 1.0
    """Factor on the logits (Cohere)."""
    residual_scale: Scale = 1.0
    """Factor on what each half of a block adds to the residual stream (Granite)."""
    attention_bias: bool = True
    """Whether the query/key/value projections have biases."""
    attention_output_bias: bool = True
    """Whether the attention's output projection has a bias. Default: as `attention_bias`."""
    mlp_bias: bool = True
    """Whether the MLP's matrices have biases."""
    qk_norm: bool = False
    """Whether each query and key head has a norm (Qwen3)."""
    qk_norm_over: Literal["head", "all"] = "head"
    """What such a norm is taken over, and has gains for: a head, or all heads (OLMo 2)."""
    attention_sinks: bool = False
    """Whether each head's softmax has one more score that leads nowhere (gpt-oss); counted, not trained here."""
    attention_scale: Scale | None = None
    """Factor on attention scores; None: 1/√head_dim."""
    rotary: Rotary | None = None
    """Rotary positions; None: whole heads in every block, base 10,000."""
    parallel_block: bool = False
    """Whether attention and MLP read the stream side by side and are added to it at once (GPT-J, PaLM, MegaScale)."""
    parallel_norms: Literal[1, 2] = 1
    """Norms of a parallel block: one for both halves (GPT-J), or one for each (GPT-NeoX)."""
    attention_window: LargeInt | None = None
    """Most tokens that a query attends to, itself included; None: all before it."""
    window_kind: Literal["sliding", "chunked", "picked"] = "sliding"
    """Which tokens a window has: the last (sliding), those of the query's chunk (chunked; Llama 4), or an indexer's."""
    window_pattern: Annotated[tuple[Literal["window", "full"], ...], LISTED] = ()
    """Which blocks have the window, from the first on and repeated, like [window, full] (Gemma 2). Default: all."""
    attention_gate: bool = False
    """Whether each number that attention returns is multiplied by a gate of its own (Qwen3-Next)."""
    recurrence: Recurrence | None = None
    """The mixer of blocks that `mixers` names; None: all have attention."""
    mixers: Annotated[tuple[Mixer, ...], LISTED] = ()
    """What mixes tokens in which blocks, repeated; both: side by side (Falcon-H1). Default: a recurrence, if any."""
    separate_halves: bool = False
    """Whether a block is one half alone: its mixer, or where that is none its MLP or mixture (Nemotron-H)."""
    num_experts: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Routed experts of a MoE block, E; 0: a dense model."""
    experts_per_token: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Routed experts that a token passes through, k."""
    moe_ffn_hidden_size: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Inner width of one expert. Default: `ffn_hidden_size`."""
    shared_expert_ffn_hidden_size: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Inner width of the shared experts, which every token passes through, all together; 0: none."""
    num_moe_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    """MoE blocks, the last ones of the model unless `moe_layers` names them. Default: all."""
    moe_layers: Annotated[tuple[int, ...], LISTED] = ()
    """Which blocks are MoE, counted from 0, where they are not the last ones (Llama 4 Maverick: every second)."""
    router_bias: bool = False
    """Whether a router's scores have biases."""
    routing_bias: bool = False
    """Whether scores have biases where experts are chosen, which stay as they are loaded (arXiv 2412.19437, 2.1.2)."""
    expert_groups: blocks.ExpertGroups | None = None
    """Groups of experts that a token chooses first; None: it chooses among all experts."""
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    """How a router scores experts: against one another (softmax) or each by itself (sigmoid; DeepSeek-V3)."""
    normalized_routing: bool = True
    """Whether the weights of a token's chosen experts are scaled to sum to one."""
    routing_scale: Scale = 1.0
    """Factor on those weights."""
    shared_expert_gate: bool = False
    """Whether a gate weighs the shared experts' output for each token (Qwen2 MoE)."""
    load_balance: Share = 0.01
    """Coefficient of the load-balance loss; 0: none. Default: Fedus et al. 2021, Switch Transformers, section 2.2."""
    latent_attention: blocks.LatentAttention | None = None
    """Latent queries, keys and values; None: they are projected from the residual stream."""
    encoder: blocks.Encoder | None = Field(default=None, exclude_if=lambda encoder: encoder is None)
    """Makes the model an encoder; None: it is a decoder, which predicts next tokens."""
    stacks: blocks.Stacks | None = Field(default=None, exclude_if=lambda stacks: stacks is None)
    """Makes the model an encoder-decoder; None: it is one stack."""
    diffusion: Diffusion | None = Field(default=None, exclude_if=lambda diffusion: diffusion is None)
    """Makes an encoder a diffusion transformer, over patches of noisy images; other fields may then be left out."""
    tower: Tower | None = Field(default=None, exclude_if=lambda tower: tower is None)
    """A vision tower before a decoder, of which all other fields tell; `num_layers` counts both."""
    further_tokens: Annotated[int, Field(ge=0, le=16)] = 0
    """Tokens predicted beyond the next, each by one more block behind the last, projection and head (DeepSeek-V3)."""
    outputs: PositiveInt | None = Field(default=None, exclude_if=lambda outputs: outputs is None)
    """Numbers that the head returns of a token, as a reward model's one; None: a logit of each vocabulary entry."""
    vocab_multiple: PositiveInt = 1
    """The vocabulary is padded to a multiple of this × tp (Megatron: 128)."""
    left_out: Annotated[tuple[str, ...], LISTED] = ()
    """What the model's blocks do besides, a few words each: not priced, and the executor trains no such model."""
    changed: Annotated[tuple[str, ...], LISTED] = ()
    """What `--allow` changed of the model that has this name, in its words (`cost_models.specs.changes`)."""
    source: str = ""
    """Where the shape was read."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        return filled_in(data) if isinstance(data, dict) else data

    @property
    def untrained(self) -> tuple[str, ...]:
        """What the model computes that the executor's blocks do not, a few words each."""
        return self.left_out + self.priced_alone

    @property
    def priced_alone(self) -> tuple[str, ...]:
        """The part of that which prices count."""
        head, sinks = None if self.diffusion else self.outputs, self.attention_sinks
        found: dict[str, Any] = {"attention sinks": sinks, "heads of rewards": head}
        found |= {"modulated blocks": self.diffusion, "prediction of further tokens": self.further_tokens}
        found |= {"indexers": self.window_kind == "picked"} | (self.tower.priced_alone if self.tower else {})
        found["gates on latent attention"] = self.attention_gate and self.latent_attention is not None
        found |= {self.recurrence.called: not self.recurrence.runs} if self.recurrence else {}
        return tuple(name for name, there in found.items() if there)

    @property
    def ends_in_norm(self) -> bool:
        """Whether a norm lies between the last block and the head."""
        return self.norm_placement != "after-sum"

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that has learned positions."""
        return self.max_positions - (self.encoder.first_position if self.encoder else 0)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def turned_share(self) -> float:
        """Share of all heads' numbers that have rotary positions, the mean over the blocks."""
        if self.positions != "rotary":
            return 0.0
        rotary = self.rotary or Rotary()
        turned = (rotary.dim or self.head_dim) / self.head_dim
        return turned * blocks.share_of(rotary.pattern, self.num_layers)

    def window_of(self, layer: int) -> int | None:
        """The window of a block, counted from 0; None: it attends to all tokens."""
        pattern = self.window_pattern
        return None if pattern and pattern[layer % len(pattern)] == "full" else self.attention_window

    def attended(self, sequence_length: int) -> float:
        """Keys that a query of a long sequence attends to, the causal mask aside; the mean over the blocks."""
        windowed = min(sequence_length, self.attention_window or sequence_length)
        return self._over_blocks(sequence_length, windowed) + self.source_share * sequence_length

    def unmasked(self, sequence_length: int) -> float:
        """Keys that a query attends to, the mean over queries and blocks: without a window half, in an encoder all."""
        whole, window = sequence_length / 2, min(sequence_length, self.attention_window or sequence_length)
        if self.encoder:
            return sequence_length
        seen = window * (1 - window / sequence_length / 2)
        if self.window_kind == "chunked":
            chunks, rest = divmod(sequence_length, window)
            seen = (chunks * window**2 + rest**2) / sequence_length / 2
        return self._over_blocks(whole, seen) + self.source_share * sequence_length

    @property
    def source_share(self) -> float:
        """Tokens of an encoder, which blocks attend to, for each of theirs."""
        return self.stacks.source_share if self.stacks else 0.0

    def _over_blocks(self, full: float, windowed: float) -> float:
        """The mean over the blocks of a value with a window and one without."""
        return self.windowed_share * windowed + (1 - self.windowed_share) * full

    @property
    def windowed_share(self) -> float:
        """Share of the blocks that have a window."""
        windowed = [kind == "window" for kind in self.window_pattern]
        return blocks.share_of(windowed, self.num_layers) if self.attention_window else 0.0

    def encodes(self, layer: int) -> bool:
        """Whether tokens of a block, counted from 0, attend to those on both sides: an encoder's."""
        return self.encoder is not None or (self.stacks is not None and layer < self.stacks.encoder_layers)

    def mixer_of(self, layer: int) -> Mixer:
        """What mixes tokens in a block, counted from 0."""
        return self.mixers[layer % len(self.mixers)] if self.mixers else "attention"

    def mixer_share(self, *mixers: Mixer) -> float:
        """Share of the blocks that mix tokens in one of these ways."""
        return blocks.share_of([one in mixers for one in self.mixers or ("attention",)], self.num_layers)

    @property
    def attention_share(self) -> float:
        """Share of the blocks that have attention."""
        return self.mixer_share("attention", "both")

    @property
    def feed_forward_share(self) -> float:
        """Share of the blocks that have an MLP or a mixture."""
        return self.mixer_share("none") if self.separate_halves else 1.0

    @property
    def dense_share(self) -> float:
        """Share of the blocks that have an MLP and no experts."""
        return max(0.0, self.feed_forward_share - self.moe_share)

    @property
    def value_size(self) -> int:
        """Width of all value heads together; that of the keys except in latent attention."""
        return self.num_kv_heads * self._value_dim

    @property
    def attended_size(self) -> int:
        """Width that attention hands to its output projection; that of the queries except in latent attention."""
        return self.num_heads * self._value_dim

    @property
    def _value_dim(self) -> int:
        return self.latent_attention.value_dim if self.latent_attention else self.head_dim

    @property
    def moe_share(self) -> float:
        """Share of the blocks that are MoE; 0 for a dense model."""
        return self.num_moe_layers / self.num_layers

    def is_mixture(self, layer: int) -> bool:
        """Whether a block, counted from 0, is MoE."""
        halved = self.separate_halves and self.mixer_of(layer) != "none"
        last = not halved and self.has_experts and layer >= self.num_layers - self.num_moe_layers
        return layer in self.moe_layers if self.moe_layers else last

    @property
    def has_experts(self) -> bool:
        """Whether the model is MoE."""
        return self.num_experts > 0
