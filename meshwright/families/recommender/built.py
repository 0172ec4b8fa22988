"""The answer of `run --dry-run` for a recommender: what ranks hold, built without their devices, beside the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cost_models.units import counted, format_bytes, grouped
from meshwright.records import JSON_SCHEMA
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from planner.recommender.plan import RecommenderPlan

if TYPE_CHECKING:
    from executor.emulate.dry_run import BuiltShards

_HEADERS = ("rank", "slices", "rows", "tables", "as planned", "states", "as planned", "on its host")


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardsBuilt:
    """A plan and the ranks that were built of it."""

    plan: RecommenderPlan
    ranks: Sequence[BuiltShards]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each rank."""
        return [asdict(rank) for rank in self.ranks]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": JSON_SCHEMA, "layout": self.plan.layout, "ranks": self.rows}

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What is printed."""
        plan, dense = self.plan, self.ranks[0].dense_parameters
        which = (
            "its ranks hold"
            if len(self.ranks) == plan.num_ranks
            else "the fullest, the emptiest and others hold"
        )
        told = wrapped(
            f"{plan.model.name} on {counted(plan.num_ranks, 'rank')}: built without devices; {which}, beside"
            f" {grouped(dense)} parameters of the dense network each"
        )
        return told, "", table(_HEADERS, [_cells(one) for one in self.ranks])

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))


def _cells(one: BuiltShards) -> tuple[str, ...]:
    sizes = (
        one.table_bytes,
        one.predicted_table_bytes,
        one.state_bytes,
        one.predicted_state_bytes,
        one.host_bytes,
    )
    return str(one.rank), str(one.slices), grouped(one.rows), *map(format_bytes, sizes)
