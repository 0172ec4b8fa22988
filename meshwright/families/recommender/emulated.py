"""The answer of `emulate` for a recommender: what one rank held and computed, beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cost_models.units import format_bytes, format_seconds
from executor.emulate.recommender import HOST, ShardEmulation
from meshwright.records.runs import ComparedQuantity
from meshwright.records.shardings import while_
from meshwright.render.measured import error_text
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.verbs.contract.any_run import AnyEmulated
from planner.recommender.plan import RecommenderPlan

_SECONDS = "compute"
_COLUMNS = ("quantity", "plan", "predicted", "emulated")


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardEmulated(AnyEmulated[ShardEmulation]):
    """A plan and the report of one of its ranks."""

    plan: RecommenderPlan

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity: of the plan, predicted for what ran, and emulated."""
        report = self.report
        of = report.predicted_memory, report.memory_as_run, report.memory
        names = {part: part if part in ("rest", HOST) else f"{part} memory" for part in report.memory}
        parts = [(name, *(sizes[part] for sizes in of)) for part, name in names.items()]
        peak = [sum(sizes[part] for part in names if part != HOST) for sizes in of]
        rows: list[tuple[str | float, ...]] = [("peak memory", *peak)]
        rows += [one for one in parts if any(one[1:])]
        if report.on_planned_device:
            said = report.predicted_seconds
            rows += [
                (f"{stage}, {_SECONDS}", said[stage], said[stage], took)
                for stage, took in report.compute_seconds.items()
            ]
        if report.step_seconds is not None:
            step = report.predicted.step_seconds
            rows.append(("step", step, step, report.step_seconds))
        return [dict(zip(_COLUMNS, one, strict=True)) for one in rows]

    def told(self) -> Iterator[str | Table]:
        report, plan = self.report, self.plan
        yield wrapped(f"{report.model}: rank {report.rank} of {report.ranks} alone on {report.device}")
        yield ""
        otherwise = report.runs_otherwise
        which = _COLUMNS[1:] if otherwise else _COLUMNS[2:]
        lines = [
            [row["quantity"], *(_worded(row["quantity"], row[one]) for one in which), _error(row)]
            for row in self.rows
        ]
        heads = ["plan", "as run", "emulated"] if otherwise else ["predicted", "emulated"]
        yield table(["", *heads, "error"], lines, words=("",))
        if otherwise:
            yield wrapped(
                f"The plan is for stack {plan.stack.name} on {plan.gpu.name}. What was followed is this executor on"
                f" {report.device}, which keeps other tensors: `as run` is the model's price of these, and the error"
                " is against it."
            )
        if when := while_(report.fullest_moment):
            yield wrapped(f"Predicted to be fullest{when}.")
        if not report.on_planned_device:
            yield "Compute is left out: the plan is for another kind of device."


def _worded(quantity: str, value: float) -> str:
    timed = quantity == "step" or quantity.endswith(_SECONDS)
    return format_seconds(value) if timed else format_bytes(value)


def _error(row: dict[str, Any]) -> str:
    return error_text(ComparedQuantity(row["quantity"], row["predicted"], row["emulated"]))
