"""Spec of a recommender: embedding tables and a dense network (Naumov et al. 2019, DLRM)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import Name, PositiveInt, Spec

Combiner = Literal["sum", "mean", "concat"]
"""Ways to combine the vectors of a sample's ids: sum, mean, or concatenation."""

OutOfRange = Literal["error", "modulo", "first"]
"""Treatment of ids without a row: an error, the id modulo the number of rows, or the first row."""

Rows = Annotated[int, Field(gt=0, le=10**12)]

MAX_TABLES = 10**5


class TableSpec(Spec):
    """A class of identical embedding tables, with rows, width and accesses.

    Raises:
        ValueError: an access histogram of other rows than the table's, or two accounts of its accesses.
    """

    name: Name
    """Name of the class; its tables are `name` or, if there are several, `name.0`, `name.1`, ..."""
    rows: Rows
    """Rows of each table, one per id."""
    width: PositiveInt
    """Elements of a vector, D."""
    count: Annotated[int, Field(gt=0, le=MAX_TABLES)] = 1
    """Number of identical tables in this class."""
    pooling: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Mean number of ids per sample."""
    combiner: Combiner = "sum"
    zipf: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = None
    """Exponent of the Zipf law of accesses: the row of rank r has weight r^-zipf; 0: all rows alike."""
    histogram: tuple[tuple[int, float], ...] = ()
    """Recorded accesses as steps (rows, share), hottest first: `rows` rows have this share of the
    accesses."""
    hashed: bool = False
    """Whether ids are keys of a hash table (16 B an entry) instead of row numbers: of any size, `rows`
    different ones."""

    out_of_range: OutOfRange = "error"
    """Treatment of recorded ids below 0 or beyond the last row; they are counted and reported in any case."""

    @model_validator(mode="after")
    def _check_accesses(self) -> TableSpec:
        """Raise ValueError if `zipf` and `histogram` are both given, or if the histogram's rows, shares or
        order are wrong."""
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
        row_shares = [share / rows for rows, share in self.histogram]
        if any(later > earlier * (1 + 1e-9) for earlier, later in pairwise(row_shares)):
            raise ValueError("`histogram` must begin with the rows that are used most")
        return self

    @property
    def outputs(self) -> float:
        """Number of output vectors of a table per sample: the number of ids with `concat`, else 1."""
        return self.pooling if self.combiner == "concat" else 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables in the class, `count` of them."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}.{index}" for index in range(self.count))


Layers = tuple[PositiveInt, ...]
"""Widths of the layers of a multilayer perceptron, without its input."""


class Interaction(Spec):
    """Operation that combines the tables' output vectors with the bottom network's output."""

    kind: Literal["dot", "dcn-v2", "none"] = "dot"
    """`dot`: products of all pairs of vectors (DLRM); `dcn-v2`: cross layers of low rank (Wang et al. 2021); `none`:
    the vectors side by side."""
    layers: PositiveInt = 3
    """Cross layers of `dcn-v2`."""
    rank: PositiveInt = 512
    """Rank of each cross layer's matrices."""


class RecommenderSpec(Spec):
    """Architecture of a recommender, with its embedding tables and dense networks.

    Raises:
        ValueError: names of two tables alike, too many tables, or vectors of several widths that `dot` cannot multiply.
    """

    kind: Literal["recommender"] = "recommender"
    name: Name = "custom"
    tables: Annotated[tuple[TableSpec, ...], Field(min_length=1)]
    """Classes of identical tables."""
    dense_features: Annotated[int, Field(ge=0, le=10**6)] = 13
    """Dense input features of a sample."""
    bottom_mlp: Layers = ()
    """Layers of the dense features' network; empty: features go to the interaction unchanged."""
    interaction: Interaction = Interaction()
    top_mlp: Annotated[Layers, Field(min_length=1)] = (1024, 1024, 512, 256, 1)
    """Layers after the interaction; the last has one output for each task."""
    wide: tuple[TableSpec, ...] = ()
    """Tables whose outputs are added to the top network's output (the wide half of Wide & Deep, Cheng et al.
    2016)."""
    source: str = ""

    @model_validator(mode="after")
    def _check_tables(self) -> RecommenderSpec:
        """Raise ValueError for two tables of the same name, too many tables, or vectors that `dot` cannot
        multiply."""
        classes = self.classes
        if self.num_tables > MAX_TABLES:
            raise ValueError(f"{self.num_tables} tables are more than {MAX_TABLES}")
        names = Counter((*self.table_names, *(one.name for one in classes if one.count > 1)))
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"two tables are called `{twice[0]}`")
        if self.interaction.kind != "dot":
            return self
        widths = sorted({*(one.width for one in self.tables), *self.bottom_mlp[-1:]})
        if len(widths) > 1:
            raise ValueError(f"`dot` multiplies vectors of one width, and there are {widths}; use `none`")
        if any(one.combiner == "concat" and one.pooling % 1 for one in self.tables):
            raise ValueError("`dot` needs as many vectors of every sample: `concat` with a whole `pooling`")
        return self

    @property
    def classes(self) -> tuple[TableSpec, ...]:
        """All classes of embedding tables, the wide half's last; tables are numbered in the same order."""
        return (*self.tables, *self.wide)

    @property
    def num_tables(self) -> int:
        """Number of embedding tables, T."""
        return sum(one.count for one in self.classes)

    @property
    def class_of_table(self) -> tuple[int, ...]:
        """Index of the class of each table, (T,)."""
        return tuple(index for index, one in enumerate(self.classes) for _ in range(one.count))

    @property
    def table_names(self) -> tuple[str, ...]:
        """Name of each table, (T,)."""
        return tuple(name for one in self.classes for name in one.names)

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of all embedding tables together."""
        return sum(one.rows * one.width * one.count for one in self.classes)

    @property
    def lookups(self) -> float:
        """Mean number of embedding lookups (ids) per sample, summed over all tables."""
        return sum(one.pooling * one.count for one in self.classes)
