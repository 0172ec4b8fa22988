"""Measured: the share of memory bandwidth that lookups and updates of embedding rows reach, by size of a row."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cost_models.base import Spec

_Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class TablePoint(Spec):
    """One measured point."""

    row_bytes: _Amount
    pooling: _Amount = 1.0
    """Rows added up for a vector, on average; below 1 most vectors are empty."""
    efficiency: float = Field(ge=1e-6, le=100, allow_inf_nan=False)
    """Bytes of the price's formula over seconds and memory bandwidth; above 1 where caches hold them."""


class TableRates(Spec):
    """Efficiencies of an executor's own lookups, sums of gradients and optimizers; every grid is full."""

    lookup: tuple[TablePoint, ...] = Field(min_length=1)
    """Rows, ids and vectors."""
    sums: tuple[TablePoint, ...] = Field(min_length=1)
    """Ids and gradients that are sorted by row and added up."""
    changes: dict[str, tuple[TablePoint, ...]]
    """Optimizer of tables → rows and states, read and written."""
    source: str = ""
    """Where and when they were measured."""

    @model_validator(mode="after")
    def _full_grids(self) -> TableRates:
        for points in (self.lookup, self.sums, *self.changes.values()):
            rows, poolings = ({getattr(one, name) for one in points} for name in ("row_bytes", "pooling"))
            if len({(one.row_bytes, one.pooling) for one in points}) != len(points) or len(points) != len(
                rows
            ) * len(poolings):
                raise ValueError("rates of tables need a point for every row size and pooling, once")
        return self
