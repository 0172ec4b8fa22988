"""The spec of a decoder-only transformer, its fields checked against one another."""

from __future__ import annotations

from pydantic import model_validator

from cost_models.specs.contradictions import contradiction
from cost_models.specs.transformer_shape import TransformerShape


class TransformerSpec(TransformerShape):
    """The shape of one model, free of contradictions.

    Raises:
        ValueError: fields that contradict one another.
    """

    @model_validator(mode="after")
    def _consistent(self) -> TransformerSpec:
        if complaint := contradiction(self):
            raise ValueError(complaint)
        return self
