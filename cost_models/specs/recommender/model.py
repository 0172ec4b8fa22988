"""The spec of a recommender: embedding tables beside a dense network (Naumov et al. 2019, DLRM)."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import Name, PositiveInt, Spec
from cost_models.specs.recommender.tables import MAX_TABLES, TableSpec

Layers = tuple[PositiveInt, ...]
"""Widths of the layers of a multilayer perceptron, input left out."""


class Interaction(Spec):
    """How outputs of the tables meet those of the bottom network."""

    kind: Literal["dot", "dcn-v2", "none"] = "dot"
    """`dot`: products of all pairs of vectors (DLRM); `dcn-v2`: cross layers of low rank (Wang et al. 2021); `none`:
    the vectors side by side."""
    layers: PositiveInt = 3
    """Cross layers of `dcn-v2`."""
    rank: PositiveInt = 512
    """Rank of each of their matrices."""


class RecommenderSpec(Spec):
    """The shape of one recommender.

    Raises:
        ValueError: names of two tables alike, too many tables, or vectors of several widths that `dot` cannot multiply.
    """

    kind: Literal["recommender"] = "recommender"
    name: Name = "custom"
    tables: Annotated[tuple[TableSpec, ...], Field(min_length=1)]
    """Classes of identical tables."""
    dense_features: Annotated[int, Field(ge=0, le=10**6)] = 13
    """Numbers of a sample beside its ids."""
    bottom_mlp: Layers = ()
    """Layers that the dense features pass; empty: they go to the interaction as they are."""
    interaction: Interaction = Interaction()
    top_mlp: Annotated[Layers, Field(min_length=1)] = (1024, 1024, 512, 256, 1)
    """Layers after the interaction; the last has one output for each task."""
    wide: tuple[TableSpec, ...] = ()
    """Tables whose outputs are added to the top network's (the wide half of Wide & Deep, Cheng et al. 2016)."""
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> RecommenderSpec:
        if complaint := self._contradiction():
            raise ValueError(complaint)
        return self

    def _contradiction(self) -> str:
        classes = self.classes
        if self.num_tables > MAX_TABLES:
            return f"{self.num_tables} tables are more than {MAX_TABLES}"
        of_classes = (one.name for one in classes if one.count > 1)
        twice = [name for name, times in Counter((*self.table_names, *of_classes)).items() if times > 1]
        if twice:
            return f"two tables are called `{twice[0]}`"
        if self.interaction.kind == "dot":
            widths = {one.width for one in self.tables} | set(self.bottom_mlp[-1:])
            if len(widths) > 1:
                return f"`dot` multiplies vectors of one width, and there are {sorted(widths)}; use `none`"
            if any(one.combiner == "concat" and one.pooling % 1 for one in self.tables):
                return "`dot` needs as many vectors of every sample: `concat` with a whole `pooling`"
        return ""

    @property
    def classes(self) -> tuple[TableSpec, ...]:
        """All classes of tables, the wide half's last: tables are numbered through them in this order."""
        return (*self.tables, *self.wide)

    @property
    def num_tables(self) -> int:
        """Number of tables, T."""
        return sum(one.count for one in self.classes)

    @property
    def class_of_table(self) -> tuple[int, ...]:
        """(T,) class of each table."""
        return tuple(index for index, one in enumerate(self.classes) for _ in range(one.count))

    @property
    def table_names(self) -> tuple[str, ...]:
        """(T,) name of each table."""
        return tuple(name for one in self.classes for name in one.names)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of all tables."""
        return sum(one.rows * one.width * one.count for one in self.classes)

    @property
    def lookups(self) -> float:
        """Ids of a sample over all tables, on average."""
        return sum(one.pooling * one.count for one in self.classes)
