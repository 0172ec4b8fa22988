"""Fine-tuning: adapters of low rank beside matrices that stay as they are, and how these are kept meanwhile.

y = x·W + s · x·A·B with A (in, r) and B (r, out), of which A and B are trained (Hu et al. 2021, LoRA, arXiv
2106.09685). The scale s costs nothing. W may be kept in fewer bits and made 16 bits wide before each product (Dettmers
et al. 2023, QLoRA, arXiv 2305.14314).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cost_models.base import PositiveInt, Spec

Base = Literal["int8", "nf4"]
"""Types of fewer bits in which frozen matrices are kept.

    int8   a byte, and for each row of a matrix a scale in fp32 (Dettmers et al. 2022, LLM.int8(), section 3.1)
    nf4    half a byte; for each block of 64 a scale of a byte, and for 256 of these one in fp32 (QLoRA, section 3)
"""
Group = Literal["attention", "mlp", "experts", "all-linear"]
StateMatrix = Literal["in_proj", "out_proj"]
Matrix = Literal["q", "k", "v", "o", "gate", "up", "down", "q_a", "q_b", "kv_a", "kv_b", StateMatrix]
Target = Literal[Group, Matrix]
"""A matrix of a block by its usual name, or several: `all-linear` are all but router and output matrix."""
Left = Literal["still", "block", "tower", "projector", "embedding", "head", "head matrix"]
NF4_BLOCK = 64
"""Elements that share a scale; a block lies on one rank."""
NF4_GROUP = 256
"""Scales that share one in fp32."""
_FP32 = 4.0
USUAL_RANK = 16
USUAL_TARGETS: tuple[Target, ...] = ("all-linear",)


class TuningSpec(Spec):
    """Adapters of low rank, and the frozen model that they adapt."""

    rank: PositiveInt = USUAL_RANK
    """Columns of A and rows of B, r."""
    targets: tuple[Target, ...] = Field(default=USUAL_TARGETS, min_length=1)
    """Matrices that have an adapter."""
    base: Base | None = None
    """Type in which the frozen matrices of blocks are kept; None: in that of training."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, allow_inf_nan=False)
    """Probability of dropping an adapter's input; above 0 it keeps a copy of its own with a mask."""

    alpha: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, exclude_if=lambda alpha: alpha is None
    )
    """What adapters return is multiplied by alpha / rank; None: by one. No price depends on it."""

    left: tuple[Left, ...] | None = Field(default=None, exclude_if=lambda left: left is None)
    """Of blocks of one kind alone, in a job that freezes parts (`cost_models.specs.model.kinds`): what is not trained,
    and `still` where nothing before them is either; there are no adapters. None: all but adapters."""

    @model_validator(mode="after")
    def _of_adapters(self) -> TuningSpec:
        if self.left is not None:
            raise ValueError("left follows from `freeze` of the job")
        return self

    @property
    def scale(self) -> float:
        """Factor on what adapters return."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def task(self) -> Literal["lora", "qlora"]:
        """What people call it."""
        return "lora" if self.base is None else "qlora"

    def __str__(self) -> str:
        return f"{self.task} of rank {self.rank}"

    def stored_bytes(self, inputs: int) -> float | None:
        """Bytes of an element of a frozen matrix with so many `inputs` a row; None: as many as in training."""
        match self.base:
            case "int8":
                return 1.0 + _FP32 / inputs
            case "nf4":
                return 0.5 + (1.0 + _FP32 / NF4_GROUP) / NF4_BLOCK
        return None


LEFT = TuningSpec().model_copy(update={"targets": ()})
"""Without adapters, for parts that are `left` as they are."""
