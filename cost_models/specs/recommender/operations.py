"""Operations that a stack's host launches one after another in each stage of a step, as its executor was counted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cost_models.base import Spec

Count = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
OfRanks = tuple[Count, Count]
"""(operations, more of them for every rank of the exchange); below zero where a kind of tables saves some
that are counted for all."""


class StageOperations(Spec):
    """Operations by stage."""

    index_exchange: OfRanks = (0, 0)
    lookup: OfRanks = (0, 0)
    forward_exchange: OfRanks = (0, 0)
    dense: OfRanks = (0, 0)
    backward_exchange: OfRanks = (0, 0)
    update: OfRanks = (0, 0)

    def of(self, ranks: int) -> tuple[float, ...]:
        """Among so many ranks, in the order of the stages."""
        stages = (
            self.index_exchange,
            self.lookup,
            self.forward_exchange,
            self.dense,
            self.backward_exchange,
            self.update,
        )
        return tuple(each + more * ranks for each, more in stages)


NONE = StageOperations()


class HostOperations(Spec):
    """Operations of a rank, each of which takes the host the seconds of a kernel; those of the dense network beside the
    products and passes that are priced for themselves."""

    step: StageOperations = NONE
    """Whatever is sharded how."""
    layer: StageOperations = NONE
    """Of every layer of the bottom and top network."""
    cross: StageOperations = NONE
    """Of every layer of `dcn-v2`."""
    dot: StageOperations = NONE
    """Of `dot`."""
    dot_table: StageOperations = NONE
    """Of every table that meets in `dot`."""
    table: StageOperations = NONE
    """Of every table on every rank, whoever holds it."""
    placed: StageOperations = NONE
    """The same of tables that are not copied."""
    shard: StageOperations = NONE
    """Of every shard, on ranks that hold it."""
    spread: StageOperations = NONE
    """Of every table whose rows lie on all ranks, beside its shard."""
    further_slice: StageOperations = NONE
    """Of every slice of a table but its first, on every rank."""
    copied: StageOperations = NONE
    """Of every copied table."""
    hot: StageOperations = NONE
    """Of every table whose hot rows are copied, beside its shard."""
    copies: StageOperations = NONE
    """Of all copies together."""
    states: dict[str, Count] = Field(default_factory=dict)
    """Optimizer of tables → operations of the update of every shard and copy beside SGD's."""
