"""A profile moved by runs of this machine, from Python: what it was, what it is, and what it says of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError, Problem
from cost_models.evidence.calibration.refining import STEP, ObservedRun, Refinement, quantities, refine
from cost_models.evidence.calibration.saving import save_profile
from cost_models.files import catalog
from cost_models.specs.hardware import HardwareProfile
from executor.measure.observed_run import Machine, machine_of, observed_run
from executor.measure.report import RunReport
from meshwright.answers.run import Ran
from meshwright.inputs.problems import Problems
from meshwright.records.run_comparison import comparison, read_report
from meshwright.render.runs.refinements import RUN_HEADERS, run_cells, runs_table

if TYPE_CHECKING:
    import pandas as pd

_COMPARED = {STEP: "step_seconds", "thread": "thread_cpu_seconds"}
"""Quantities that a person is told of → their names beside a run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibrated:
    """The profile, the runs that moved it, and how far."""

    profile: HardwareProfile
    machine: Machine
    """That all runs are of."""
    refinement: Refinement = field(repr=False)
    reports: tuple[RunReport, ...] = field(repr=False)

    def runs(self) -> list[dict[str, Any]]:
        """A record for each run and quantity: measured, the errors of its plan and of the new profile, the noise."""
        records = []
        told = zip(self.refinement.runs, self.reports, self.refinement.estimates, strict=True)
        for run, report, estimate in told:
            before = {line.quantity: line for line in comparison(report)}
            after = quantities(estimate)
            for quantity, name in _COMPARED.items():
                if quantity not in run.seen:
                    continue
                measured = run.seen[quantity].seconds
                records.append(
                    {
                        "run": run.name,
                        "layout": report.layout.brief,
                        "quantity": name,
                        "measured": measured,
                        "before": before[name].predicted / measured - 1,
                        "after": after[quantity] / measured - 1,
                        "noise": run.seen[quantity].noise,
                    }
                )
        return records

    def factors(self) -> list[dict[str, Any]]:
        """A record for each kind of seconds: how much longer than measured apart, and how far the runs settle it."""
        return [
            {"kind": kind, "factor": one.factor, "low": one.low, "high": one.high, "told": one.told}
            for kind, one in self.refinement.factors.items()
        ]

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
        save_profile(self.profile, Path(path))

    def __repr__(self) -> str:
        return str(runs_table(self))

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of runs of `meshwright calibrate --from-run`."""
        import pandas as pd

        return pd.DataFrame(map(run_cells, self.runs()), columns=list(RUN_HEADERS))


def calibrate_from_run(
    *runs: str | Path | Ran | RunReport,
    profile: str | HardwareProfile | None = None,
    out: str | Path | None = None,
) -> Calibrated:
    """The profile of this machine, moved by what training runs on it measured: reports, or what `run` returned.

    It starts from `profile`, else from the one that the first run's plan was made with, and in either case from what
    was measured before any run moved it. The profile is written to `out` if given.

    Raises:
        InputError: no run, a file that is no report or too old, runs of several machines, torch versions, precisions or
            software stacks, or a profile of another GPU.
    """
    found = _calibrated(_named(runs), profile)
    if out is not None:
        found.save(out)
    return found


def _named(runs: Sequence[str | Path | Ran | RunReport]) -> list[tuple[str, Callable[[], RunReport]]]:
    named: list[tuple[str, Callable[[], RunReport]]] = []
    for number, run in enumerate(runs, start=1):
        if isinstance(run, (Ran, RunReport)):
            report = run.report if isinstance(run, Ran) else run
            named.append((f"run {number}", partial(_itself, report)))
        else:
            named.append((str(run), partial(read_report, Path(run))))
    return named


def _itself(report: RunReport) -> RunReport:
    return report


def _calibrated(
    named: Sequence[tuple[str, Callable[[], RunReport]]],
    profile: str | HardwareProfile | None,
) -> Calibrated:
    if not named:
        raise InputError("there is no run to calibrate from", hint="meshwright run writes run-report.json")
    problems = Problems()
    reports: list[RunReport] = []
    runs: list[ObservedRun] = []
    for name, read in named:
        report = problems.read(read)
        run = problems.read(partial(observed_run, report, name)) if report is not None else None
        if report is not None and run is not None:
            reports.append(report)
            runs.append(run)
    start = problems.read(lambda: catalog.load_profile(profile)) if isinstance(profile, str) else profile
    problems.require()
    machine = _one_machine(runs, reports)
    refinement = refine(start or runs[0].question.hardware, runs)
    return Calibrated(
        profile=refinement.profile, machine=machine, refinement=refinement, reports=tuple(reports)
    )


def _one_machine(runs: Sequence[ObservedRun], reports: Sequence[RunReport]) -> Machine:
    """What all runs are of. Raises InputError where they differ."""
    machines = {run.name: machine_of(report) for run, report in zip(runs, reports, strict=True)}
    different = set(machines.values())
    if len(different) > 1:
        raise InputError(
            f"{len(runs)} runs are of {len(different)} kinds, and one profile is of one",
            problems=[Problem(name, str(machine)) for name, machine in machines.items()],
            hint="calibrate from those that are alike",
        )
    return different.pop()
