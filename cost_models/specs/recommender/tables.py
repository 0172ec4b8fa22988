"""Embedding tables of a recommender: their rows, their width, and how a sample uses them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import Name, PositiveInt, Spec

Combiner = Literal["sum", "mean", "concat"]
"""How the vectors of a sample's ids become the table's output: added, averaged, or set side by side."""

OutOfRange = Literal["error", "modulo", "first"]
"""Ids that a table has no row for: a mistake, taken modulo its rows, or taken for its first row."""

Rows = Annotated[int, Field(gt=0, le=10**12)]

MAX_TABLES = 10**5


class TableSpec(Spec):
    """A class of identical embedding tables.

    Raises:
        ValueError: an access histogram of other rows than the table's, or two accounts of its accesses.
    """

    name: Name
    """Name of the class; its tables are `name` or, where there are several, `name.0`, `name.1`, ..."""
    rows: Rows
    """Rows of each table: ids that it has a vector for."""
    width: PositiveInt
    """Elements of a vector, D."""
    count: Annotated[int, Field(gt=0, le=MAX_TABLES)] = 1
    """Identical tables of this class."""
    pooling: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Ids of a sample, on average."""
    combiner: Combiner = "sum"
    zipf: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = None
    """Exponent of the Zipf law that accesses follow: rank r with weight r^-zipf; 0: all rows alike."""
    histogram: tuple[tuple[int, float], ...] = ()
    """Accesses as recorded: (rows, share), hottest first: so many rows have this share of the accesses."""
    hashed: bool = False
    """Whether ids are keys of a hash table (16 B an entry) in place of row numbers: of any size, `rows` of them."""

    out_of_range: OutOfRange = "error"
    """What becomes of recorded ids below 0 or beyond the last row; they are counted and told in any case."""

    @model_validator(mode="after")
    def _one_account_of_its_accesses(self) -> TableSpec:
        if not self.histogram:
            return self
        if self.zipf is not None:
            raise ValueError("`zipf` and `histogram` both say how often rows are used; leave one out")
        if any(rows <= 0 or share < 0 for rows, share in self.histogram):
            raise ValueError("`histogram` has a step without rows, or with a share below zero")
        if (rows := sum(rows for rows, _ in self.histogram)) != self.rows:
            raise ValueError(f"`histogram` counts {rows} rows, the table has {self.rows}")
        if abs(sum(share for _, share in self.histogram) - 1) > 1e-3:
            raise ValueError("shares of `histogram` must add up to 1")
        each = [share / rows for rows, share in self.histogram]
        if any(later > earlier * (1 + 1e-9) for earlier, later in pairwise(each)):
            raise ValueError("`histogram` must begin with the rows that are used most")
        return self

    @property
    def outputs(self) -> float:
        """Vectors that a sample gets from the table: one, or with `concat` one for each id."""
        return self.pooling if self.combiner == "concat" else 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tables."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}.{index}" for index in range(self.count))
