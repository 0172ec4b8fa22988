"""The answer of `emulate`: what one rank held and computed, beside its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.records import JSON_SCHEMA
from meshwright.records.run_comparison import emulated, planned_memory
from meshwright.render.runs.emulation import emulation_text
from meshwright.render.tables import Table
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.emulate.one_rank import EmulationReport


@dataclass(frozen=True, kw_only=True, repr=False)
class Emulated:
    """A plan and the report of one of its ranks."""

    plan: Plan
    report: EmulationReport

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity: of the plan, predicted for what ran, and emulated."""
        planned = planned_memory(self.report)
        return [
            {
                "quantity": line.quantity,
                "plan": planned.get(line.quantity, line.predicted),
                "predicted": line.predicted,
                "emulated": line.measured,
            }
            for line in emulated(self.report)
        ]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "comparison": self.rows,
            "report": self.report.model_dump(mode="json"),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright emulate` prints."""
        return tuple(emulation_text(self.report, self.plan))

    def save(self, path: str | Path) -> None:
        """Write the report as JSON."""
        from executor.measure.any_report import save_report

        save_report(self.report, Path(path))

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))
