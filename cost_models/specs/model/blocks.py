"""Parts of a transformer's blocks that are not plain: latent attention, recurrences, rotary positions, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import LargeInt, PositiveInt, Spec

Scale = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
"""A factor above zero."""
LISTED = Field(strict=False)
"""A tuple that may be given as a list: filled-in defaults are lists, which strict validation would refuse."""


class Indexer(Spec):
    """Scores all tokens before a query; attention sees the best `attention_window` (DeepSeek-V3.2, arXiv 2512.02556,
    section 2.1)."""

    heads: PositiveInt
    """Heads of queries, made from the queries' latent; all share one key of a token."""
    head_dim: PositiveInt
    """Width of a query and of a key."""

    @property
    def width(self) -> int:
        """Numbers that a token has: queries, their weights and a key."""
        return self.heads * (self.head_dim + 1) + self.head_dim


class LatentAttention(Spec):
    """Multi-head latent attention: queries, keys and values come from narrow latents (DeepSeek-V2, arXiv 2405.04434,
    2.1)."""

    kv_rank: PositiveInt
    """Width of the latent of keys and values."""
    query_rank: PositiveInt | None = None
    """Width of the latent of queries; None: queries are made without one."""
    position_dim: PositiveInt
    """Part of `head_dim` that carries rotary positions; all heads share one such key."""
    value_dim: PositiveInt
    """Width of a value head."""
    indexer: Indexer | None = None
    """Picks which tokens a query attends to (`window_kind` picked); None: there is none."""


RecurrenceKind = Literal["mamba1", "mamba2", "gated-delta", "kimi-delta", "lightning", "convolution"]


class Recurrence(Spec):
    """A mixer of tokens whose heads carry a state of fixed size (`state_dim` × `head_dim`) from token to token, where
    attention keeps the keys and values of all of them."""

    kind: RecurrenceKind
    """How a token changes the state: it decays and a product of key and value is added (mamba1, by channel:
    Gu and Dao 2023, arXiv 2312.00752; mamba2: Dao and Gu 2024, arXiv 2405.21060; lightning, by fixed decays: Qin et al.
    2024, arXiv 2401.04658), or what the state says of the key is replaced (gated-delta: Yang et al.
    2024, arXiv 2412.06464; kimi-delta, where each number of a key decays by its own rate: Kimi team 2025, arXiv
    2510.26692). convolution: the state is the last products of key and value (LFM2, arXiv 2511.23404)."""
    heads: PositiveInt
    """Heads with a state each; of mamba1 and convolution channels."""
    head_dim: PositiveInt
    """Width of a head's values. Default: 1 of channels."""
    groups: PositiveInt
    """Heads of keys and queries (Mamba: of B and C), each shared by as many heads. Default: `heads`; mamba1: 1."""
    state_dim: PositiveInt
    """Width of a key and of a query. Default of convolution: 1."""
    step_rank: PositiveInt | None = None
    """Width of the latent that mamba1 makes step sizes from."""
    latent_norms: bool = False
    """Whether that latent, keys and queries are normed, with gains (Jamba)."""
    conv_width: Annotated[int, Field(ge=0, le=1024)] = 4
    """Tokens that the short convolution over queries, keys and values reaches; 0: there is none."""
    conv_bias: bool = False
    """Whether that convolution has biases."""
    bias: bool = False
    """Whether the projections into and out of the mixer have biases."""
    least_step: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Least step size of a head (Nemotron-H)."""
    output_norm: bool = True
    """Whether what the heads return is normed before it is gated."""
    gate_rank: PositiveInt | None = None
    """Width of the latents that the output's gates, and the decays of keys, are made from; None: made without."""
    chunk: PositiveInt = 64
    """Tokens that kernels work on at once."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "heads" not in data:
            return data
        kind, heads = data.get("kind"), {"groups": data["heads"]}
        plain = {"head_dim": 1, "output_norm": False}
        channels = {
            "mamba1": {**plain, "groups": 1, "chunk": 2048},
            "convolution": {**plain, **heads, "state_dim": 1},
        }
        return {**channels.get(str(kind), heads), **data}

    @model_validator(mode="after")
    def _consistent(self) -> Recurrence:
        if self.heads % self.groups:
            raise ValueError(f"heads {self.heads} is not a multiple of groups {self.groups}")
        one = {"mamba1": (self.head_dim, self.groups), "convolution": (self.head_dim, self.state_dim)}
        if one.get(self.kind, (1, 1)) != (1, 1) or (self.kind == "convolution" and self.groups != self.heads):
            raise ValueError(f"heads of {self.kind} are channels: leave out head_dim and groups")
        if (self.kind == "mamba1") != (self.step_rank is not None):
            raise ValueError("step_rank is for mamba1, which needs it")
        if self.kind == "kimi-delta" and self.gate_rank is None:
            raise ValueError("kimi-delta needs gate_rank")
        return self

    def __str__(self) -> str:
        if self.kind == "convolution":
            return f"{self.called} over {self.conv_width} tokens"
        if self.kind == "mamba1":
            return f"{self.called}, {self.heads} channels of {self.state_dim}"
        return f"{self.called}, {self.heads} heads of {self.state_dim} x {self.head_dim}"

    @property
    def called(self) -> str:
        """What people call it."""
        return {
            "mamba1": "selective state spaces (Mamba)",
            "convolution": "short convolutions",
            "mamba2": "state spaces (Mamba-2)",
            "gated-delta": "gated delta nets",
            "kimi-delta": "Kimi delta attention",
            "lightning": "lightning attention",
        }[self.kind]

    @property
    def runs(self) -> bool:
        """Whether the executor has a module for it."""
        return self.kind in ("mamba2", "gated-delta", "kimi-delta")

    @property
    def delta(self) -> bool:
        """Whether what the state says of a key is replaced."""
        return self.kind in ("gated-delta", "kimi-delta")

    @property
    def scans(self) -> bool:
        """Whether a kernel goes through the tokens with states that products of key and value are added to."""
        return self.kind != "convolution"

    @property
    def split_units(self) -> int:
        """What ranks deal out: groups with their heads, or channels where all share one key."""
        return self.heads if self.kind == "mamba1" else self.groups

    @property
    def key_size(self) -> int:
        """Width of all keys together."""
        return self.groups * self.state_dim

    @property
    def value_size(self) -> int:
        """Width of all values together, and of what the heads return."""
        return self.heads * self.head_dim

    @property
    def mixed_size(self) -> int:
        """Width of queries, keys and values together; of mamba1 of values, as the others are made from them."""
        return self.value_size + 2 * self.key_size * (self.kind != "mamba1")

    @property
    def decay_size(self) -> int:
        """Width of decays that are made from a latent, one for each number of a key."""
        return self.heads * self.state_dim if self.gate_rank else 0

    @property
    def selected_size(self) -> int:
        """Width of what mamba1 makes of all channels together: step sizes' latent, a key and a query."""
        return self.step_rank + 2 * self.key_size if self.step_rank else 0

    @property
    def convolved_size(self) -> int:
        """Width of what the short convolution goes over."""
        return self.mixed_size if self.scans else self.value_size

    @property
    def head_numbers(self) -> int:
        """Numbers that a head has of each token besides: a step size, or a decay and a strength."""
        return {"mamba2": 1, "gated-delta": 2, "kimi-delta": 1}.get(self.kind, 0)

    @property
    def input_size(self) -> int:
        """Width of what the mixer makes of the residual stream: that, the output's gate, and those numbers."""
        gate = 0 if self.gate_rank or not self.scans else self.value_size
        return self.mixed_size + gate + self.heads * self.head_numbers


class Encoder(Spec):
    """What makes a model an encoder: tokens attend to those on both sides, and it is trained to guess some that are
    masked (BERT: Devlin et al. 2018, arXiv 1810.04805)."""

    masked: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.15
    """Share of a sequence's tokens that are masked; the loss is of these alone."""
    mask_token: Annotated[int, Field(ge=0)] | None = None
    """The token that stands for a masked one. Default: the last of the vocabulary."""
    token_types: Annotated[int, Field(ge=0, le=1024)] = 0
    """Rows of a table of types of tokens, of which each token is of the first; 0: there is none."""
    first_position: Annotated[int, Field(ge=0, le=1024)] = 0
    """Row of the learned positions that a sequence's first token has (RoBERTa: 2)."""
    head_transform: bool = True
    """Whether a square matrix, the activation and a norm lie before the output matrix."""

    def masked_of(self, sequence_length: int) -> int:
        """Tokens of a sequence that are masked."""
        return max(1, round(self.masked * sequence_length))


class Stacks(Spec):
    """What makes a model an encoder-decoder (T5: Raffel et al. 2019, arXiv 1910.10683): its first blocks encode one
    sequence; the others decode another, and attend besides to what the last of the first returns."""

    encoder_layers: Annotated[int, Field(ge=0)]
    """Blocks of the encoder; those behind are the decoder's."""
    position_buckets: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Rows of a table of biases on scores by distance, with a column for each head, one in each stack; 0: none."""
    farthest: Annotated[int, Field(gt=0, le=10**6)] = 128
    """Distance from which on all are in one bucket; buckets widen towards it."""
    source_share: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of a decoder's blocks alone (`cost_models.specs.model.kinds`): tokens of the encoder for each of the decoder."""


class RotaryScaling(Spec):
    """Scaling of rotary positions, for sequences longer than those a model was first trained on."""

    kind: Literal["linear", "llama3"]
    """linear: every frequency is divided by `factor` (Chen et al. 2023); llama3: only the low ones."""
    factor: Scale
    """Factor by which frequencies are divided."""
    first_positions: LargeInt = 8192
    """Longest sequence of the first training; for llama3."""
    low_turns: Scale = 1.0
    """llama3: what turns fewer times than this over `first_positions` is slowed by the whole factor."""
    high_turns: Scale = 4.0
    """llama3: what turns more often than this is not slowed; between the two it is slowed in part."""

    @model_validator(mode="after")
    def _ordered(self) -> RotaryScaling:
        if self.low_turns > self.high_turns:
            raise ValueError(f"low_turns {self.low_turns:g} is above high_turns {self.high_turns:g}")
        return self


class Rotary(Spec):
    """Rotary positions of queries and keys (Su et al. 2021)."""

    base: Scale = 10_000.0
    """Base of the frequencies: the slowest takes nearly 2 pi times so many tokens for a turn."""
    windowed_base: Scale | None = None
    """Base in blocks with a window, never scaled; None: as in the others (Gemma 3 has another)."""
    dim: PositiveInt | None = None
    """Numbers of a head that are turned, the first ones; None: all."""
    pattern: Annotated[tuple[bool, ...], LISTED] = ()
    """Which blocks have rotary positions, from the first on and repeated. Default: all."""
    scaling: RotaryScaling | None = None
    """Scaling for longer sequences; None: none."""


class ExpertGroups(Spec):
    """Groups of experts, consecutive and equally large; a token chooses some groups before it chooses experts."""

    count: PositiveInt
    """Number of groups."""
    per_token: PositiveInt
    """Groups that a token's experts may come from."""
    scored_by: Literal["best", "two best"] = "best"
    """Score of a group: that of its best expert (DeepSeek-V2), or the sum of its two best (DeepSeek-V3)."""


def share_of(pattern: Sequence[bool], layers: int) -> float:
    """Share of the blocks that have what a pattern says, repeated from the first on; no pattern: 1."""
    if not pattern:
        return 1.0
    rounds, rest = divmod(layers, len(pattern))
    return (rounds * sum(pattern) + sum(pattern[:rest])) / layers
