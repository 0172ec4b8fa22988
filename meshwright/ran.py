"""Train with a plan from Python, and the answer: measured beside predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor.checkpoints.saving import EVERY, KEEP, Saving
from executor.launch import run_plan
from executor.report import RunReport
from meshwright.answers import Estimated, Planned
from meshwright.measured import comparison
from meshwright.render.run import comparison_rows
from planner.plan import Plan

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran:
    """What a run measured; notebooks show it beside what was predicted."""

    report: RunReport

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""
        return self.report.losses

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        return self._in_words().to_string(index=False)

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright run`."""
        import pandas as pd

        rows = comparison_rows(comparison(self.report))
        return pd.DataFrame(rows, columns=["", "predicted", "measured", "error"])


def run(
    plan: Planned | Estimated | Plan | str | Path,
    *,
    steps: int = 20,
    out: str | Path | None = None,
    data: str | Path = "text",
    checkpoint: str | Path | None = None,
    every: int = EVERY,
    keep: int = KEEP,
    resume: bool = False,
) -> Ran:
    """Train `steps` measured steps with a plan or a plan file on this machine, each rank in its own process.

    `out` is a folder that keeps `run-report.json`. `data` is `text`, `random`, or a folder that `meshwright tokens`
    made. With `checkpoint`, a folder, the state is saved every so many steps; `resume` goes on from there, on this
    plan or on another.

    Raises:
        InputError: the plan cannot be trained, or the checkpoint is another run's.
        HostError: this machine has too few devices.
        RunError: a rank failed or ran out of memory.
    """
    saving = None
    if checkpoint is not None:
        saving = Saving(folder=Path(checkpoint), every=every, keep=keep, resume=resume)
    subject = plan.plan if isinstance(plan, (Planned, Estimated)) else plan
    return Ran(report=run_plan(subject, steps=steps, out_dir=out, data=data, saving=saving))
