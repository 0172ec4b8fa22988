"""The answer of `run`: what was measured, beside what was predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from executor.measure.report import RunReport
from meshwright.records import JSON_SCHEMA
from meshwright.records.operations import operations_rows
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.operations import operations_text
from meshwright.render.runs.run import comparison_rows, comparison_table, run_text
from meshwright.render.tables import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran:
    """What a run measured; notebooks show it beside what was predicted."""

    report: RunReport
    steps: int
    """Optimizer steps that were asked for."""

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""
        return self.report.losses

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity, as of `--json`."""
        return [
            {
                "quantity": line.quantity,
                "predicted": line.predicted,
                "measured": line.measured,
                "noise": line.noise,
                "beyond_noise": line.beyond_noise if line.noise is not None else None,
            }
            for line in comparison(self.report)
        ]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "comparison": self.rows,
            "operations": self.operations,
            "report": self.report.model_dump(mode="json"),
        }

    @property
    def operations(self) -> list[dict[str, Any]]:
        """A row for each part of the time, of a run that saved: training, saving, work done again, restarting."""
        return [] if self.report.operations is None else operations_rows(self.report.operations)

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright run` prints."""
        lines = list(run_text(self.report, self.steps))
        if self.report.operations is not None:
            lines += operations_text(self.report.operations, self.operations)
        return tuple(lines)

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units, and `noise`, the share of `measured`
        that the middle half of the steps spans."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        return str(comparison_table(comparison(self.report)))

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright run`."""
        import pandas as pd

        rows = comparison_rows(comparison(self.report))
        return pd.DataFrame(rows, columns=["", "predicted", "measured", "error", "noise"])
