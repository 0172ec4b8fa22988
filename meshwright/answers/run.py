"""The answer of `run`: what was measured, beside what was predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from executor.measure.report import RunReport
from meshwright.answers.any_run import AnyRan
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.run import comparison_rows, comparison_table, run_text
from meshwright.render.tables import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran(AnyRan[RunReport]):
    """What a run measured; notebooks show it beside what was predicted."""

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

    def told(self) -> Iterable[str | Table]:
        """What is printed of the run but its saves and failures."""
        return run_text(self.report, self.steps)

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
