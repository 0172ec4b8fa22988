"""What every user-written value shares: frozen, strict, no unknown fields, text in and out."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ +/-]{0,99}$")]
"""A name safe to print and to use in a file name."""
POOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
"""A name that can stand in a layout: of a pool of GPUs."""
PositiveInt = Annotated[int, Field(gt=0, le=10**12)]
"""A count of at least one."""
MAX_GPUS = 10**7
"""More than all GPUs there are; beyond it a number is a mistake, and its divisors take for ever to find."""
GpuCount = Annotated[int, Field(gt=0, le=MAX_GPUS)]
"""A count of devices, of nodes, or of sequences in a batch."""
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""A share in (0, 1]."""


class Spec(BaseModel):
    """A value the user writes: immutable, strict (no silent conversion), every field known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
