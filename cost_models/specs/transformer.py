"""The shape of a decoder-only transformer: everything its parameters, FLOPs and activations follow from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.specs.base import Name, PositiveInt, Spec

Activation = Literal["gelu", "silu", "relu", "squared-relu"]
Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary", "alibi", "none"]
DERIVED_FIELDS = ("num_kv_heads", "head_dim", "ffn_hidden_size")
"""Fields a file may leave out, because they follow from `num_heads` and `hidden_size`."""


class TransformerSpec(Spec):
    """A dense decoder-only transformer.

    Defaults that depend on other fields (`num_kv_heads`, `head_dim`, `ffn_hidden_size`) are filled in on
    construction, so a built spec is always complete.
    """

    kind: Literal["transformer"] = "transformer"
    name: Name = "custom"
    """Catalogue name, or a name for reports."""
    num_layers: Annotated[int, Field(gt=0, le=100_000)]
    """Transformer blocks, l."""
    hidden_size: PositiveInt
    """Width of the residual stream, h."""
    num_heads: PositiveInt
    """Query heads, a."""
    num_kv_heads: PositiveInt
    """Key/value heads; fewer than `num_heads` is grouped-query attention. Default: `num_heads`."""
    head_dim: PositiveInt
    """Width of one head. Default: hidden_size / num_heads."""
    ffn_hidden_size: PositiveInt
    """Inner width of the MLP. Default: 4 × hidden_size."""
    vocab_size: PositiveInt
    """Entries of the vocabulary before padding, V."""
    gated_mlp: bool = False
    """True: three matrices (SwiGLU, GeGLU); False: two."""
    activation: Activation = "gelu"
    """Non-linearity of the MLP."""
    norm: Norm = "layernorm"
    """Normalisation before attention, before the MLP and at the end."""
    positions: Positions = "learned"
    """How positions enter: a learned table, rotary, ALiBi, or not at all."""
    max_positions: PositiveInt = 2048
    """Rows of the learned position table; the longest sequence for the others."""
    tied_embeddings: bool = True
    """The output head shares the token embedding's weight."""
    attention_bias: bool = True
    """Bias on the query/key/value projections."""
    attention_output_bias: bool = True
    """Bias on the attention's output projection. Default: as `attention_bias`."""
    mlp_bias: bool = True
    """Bias on the MLP's matrices."""
    qk_norm: bool = False
    """A norm over each query and key head (Qwen3)."""
    parallel_block: bool = False
    """Attention and MLP read one norm's output side by side and are added together (GPT-J, PaLM, MegaScale)."""
    attention_window: PositiveInt | None = None
    """Tokens that a query looks back over (sliding window); None: all before it."""
    vocab_multiple: PositiveInt = 1
    """The vocabulary is padded to a multiple of this × tp (Megatron: 128)."""
    source: str = ""
    """Where the shape was read."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        """Complete the fields that follow from others; leaves wrong types for the field checks to report."""
        if not isinstance(data, dict):
            return data
        heads, hidden = data.get("num_heads"), data.get("hidden_size")
        filled = dict(data)
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
            filled.setdefault("num_kv_heads", heads)
            # a fraction is left for the field check, which says `head_dim: `12.8` is not a whole number`
            filled.setdefault("head_dim", hidden / heads if hidden % heads else hidden // heads)
            filled.setdefault("ffn_hidden_size", 4 * hidden)
        else:  # those two are refused anyway: stand-ins, so that what follows from them is not reported too
            for name in DERIVED_FIELDS:
                filled.setdefault(name, 1)
        if "attention_bias" in filled:
            filled.setdefault("attention_output_bias", filled["attention_bias"])
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> TransformerSpec:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_dim}")
        return self

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    def attended(self, sequence_length: int) -> int:
        """Keys that a query of a long sequence sees, the causal mask apart."""
        return min(sequence_length, self.attention_window or sequence_length)
