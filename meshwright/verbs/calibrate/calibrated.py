"""The answer of `calibrate --from-run`: a profile moved by runs of this machine, and what it says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.files.parsing import save_spec
from cost_models.measured.calibration.refining import Refinement
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted
from executor.measure.observed_run import Machine
from executor.measure.report import RunReport
from meshwright.records import JSON_SCHEMA
from meshwright.records.refinements import factor_records, run_records
from meshwright.render.runs.refinements import RUN_HEADERS, refinement_text, run_cells, runs_table
from meshwright.render.tables import Table
from meshwright.render.words import wrapped

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibrated:
    """A profile with the runs that moved it, and how far they did."""

    profile: HardwareProfile
    machine: Machine
    """That all runs are of."""
    refinement: Refinement = field(repr=False)
    reports: tuple[RunReport, ...] = field(repr=False)

    file: Path | None = None
    """Where the profile was written."""

    def runs(self) -> list[dict[str, Any]]:
        """A record for each run and quantity: measured, the errors of its plan and of the new profile, the noise."""
        return run_records(self.refinement, self.reports)

    def factors(self) -> list[dict[str, Any]]:
        """A record for each kind of seconds: how much longer than measured apart, and how far the runs settle it."""
        return factor_records(self.refinement)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The records of `runs`, for `--csv`."""
        return self.runs()

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "file": None if self.file is None else str(self.file),
            "machine": str(self.machine),
            "started_from": self.refinement.start.source,
            "runs": self.runs(),
            "factors": self.factors(),
            "profile": self.profile.model_dump(mode="json"),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright calibrate --from-run` prints."""
        number, start = len(self.reports), self.refinement.start.source
        said = f"{self.profile.name}: moved by {counted(number, 'run')} on {self.machine}; from: {start}"
        return wrapped(said), "", *refinement_text(self.runs(), self.factors())

    def runs_to_frame(self) -> pd.DataFrame:
        """`runs` as a table."""
        import pandas as pd

        return pd.DataFrame(self.runs())

    def factors_to_frame(self) -> pd.DataFrame:
        """`factors` as a table."""
        import pandas as pd

        return pd.DataFrame(self.factors())

    def save(self, path: str | Path) -> None:
        """Write the profile, for `--profile`."""
        save_spec(self.profile, Path(path))

    def __repr__(self) -> str:
        return str(runs_table(self.runs()))

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of runs of `meshwright calibrate --from-run`."""
        import pandas as pd

        return pd.DataFrame(map(run_cells, self.runs()), columns=list(RUN_HEADERS))
