"""A vision tower before a decoder: a transformer over patches of images, and the projector behind it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import MAX_LAYERS, PositiveInt, Spec
from cost_models.specs.model.blocks import Scale

Part = Literal["", "tower", "joint"]


class Tower(Spec):
    """A vision transformer (ViT: Dosovitskiy et al. 2020, arXiv 2010.11929) whose tokens, projected to the decoder's
    width, take places of a decoder's sequence (LLaVA: Liu et al. 2023, arXiv 2304.08485)."""

    layers: Annotated[int, Field(gt=0, lt=MAX_LAYERS)]
    """Its blocks, the first of the model's `num_layers`."""
    hidden_size: PositiveInt
    """Width of its residual stream."""
    num_heads: PositiveInt
    """Heads of its attention, in which every token of an image attends to all of them."""
    head_dim: PositiveInt
    """Width of a head. Default: hidden_size / num_heads."""
    ffn_hidden_size: PositiveInt
    """Inner width of its MLP. Default: 4 × hidden_size."""
    gated_mlp: bool = False
    """Whether its MLP has three matrices."""
    activation: Literal["gelu", "gelu-tanh", "quick-gelu", "silu", "relu"] = "gelu"
    """Non-linearity of its MLP."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Normalisation before both halves of a block."""
    norm_epsilon: Scale = 1e-5
    """Epsilon that norms add to a variance."""
    bias: bool = True
    """Whether the matrices of its blocks have biases."""
    positions: Literal["learned", "rotary"] = "learned"
    """How positions enter: a learned table, or rotary over rows and columns of patches (Qwen2-VL)."""
    image: PositiveInt = 224
    """Pixels of a side of an image; those beyond its last whole patch are not read."""
    patch: PositiveInt = 14
    """Pixels of a side of a patch."""
    channels: PositiveInt = 3
    """Numbers of a pixel."""
    frames: PositiveInt = 1
    """Frames that a patch spans; an image is as many alike (Qwen2-VL: 2)."""
    class_token: bool = False
    """Whether a learned token stands before an image's patches; the decoder does not read it."""
    patch_bias: bool = True
    """Whether the matrix that makes tokens of patches has a bias."""
    norm_before: bool = False
    """Whether a norm lies before the first block (CLIP)."""
    norm_after: bool = False
    """Whether a norm lies behind the last block."""
    merge: PositiveInt = 1
    """So many rows and columns of patches are put side by side into one token (Qwen2-VL: 2)."""
    projector_norm: bool = False
    """Whether the projector begins with a norm."""
    projector_hidden_size: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Inner width of a projector of two matrices; 0: it is one."""
    projector_activation: Literal["gelu", "gelu-tanh", "quick-gelu", "silu", "relu"] = "gelu"
    """Non-linearity between two matrices."""
    projector_bias: bool = True
    """Whether the projector's matrices have biases."""
    part: Part = Field(default="", exclude_if=lambda part: not part)
    """Of one kind of blocks alone (`cost_models.specs.model.kinds`): the tower's own, or the decoder's first."""
    share: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(default=0.0, exclude_if=lambda x: not x)
    """Of the decoder's first block alone: tokens that the projector makes for each token of a sequence."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        width, heads = data.get("hidden_size"), data.get("num_heads")
        if not (isinstance(width, int) and isinstance(heads, int) and width > 0 and heads > 0):
            return {"head_dim": 1, "ffn_hidden_size": 1} | data  # those two are refused anyway
        dim = width / heads if width % heads else width // heads
        return {"head_dim": dim, "ffn_hidden_size": 4 * width} | data

    @model_validator(mode="after")
    def _cut_evenly(self) -> Tower:
        if self.image < self.patch:
            raise ValueError(f"image {self.image} is smaller than patch {self.patch}")
        if self.image // self.patch % self.merge:
            raise ValueError(
                f"{self.image // self.patch} patches of a row are not a multiple of merge {self.merge}"
            )
        if self.positions == "rotary" and self.head_dim % 4:
            raise ValueError(
                f"rotary positions over rows and columns need quarters of head_dim {self.head_dim}"
            )
        return self

    def __str__(self) -> str:
        return f"{self.layers} blocks of width {self.hidden_size}"

    @property
    def priced_alone(self) -> dict[str, bool]:
        """What the executor has no module for, in words, and whether this tower has it."""
        return {
            "rotary positions of patches": self.positions == "rotary",
            "patches of several frames": self.frames > 1,
        }

    @property
    def patches(self) -> int:
        """Of an image."""
        return int((self.image // self.patch) ** 2)

    @property
    def tokens(self) -> int:
        """Tokens of an image in its blocks."""
        return self.patches + self.class_token

    @property
    def features(self) -> int:
        """Tokens of an image that the decoder reads."""
        return int(self.patches // self.merge**2)

    @property
    def pixels(self) -> int:
        """Numbers of a patch."""
        return int(self.channels * self.frames * self.patch**2)

    @property
    def projector_inputs(self) -> int:
        """Numbers of a token that the projector reads."""
        return int(self.hidden_size * self.merge**2)
