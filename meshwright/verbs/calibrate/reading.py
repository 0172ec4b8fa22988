"""Calibration from runs: a profile moved by runs of this machine, or fitted to tables of timed runs of any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import (
    Pair,
    Refit,
    Selection,
    UnseenSource,
    refit,
    select_runs,
)
from cost_models.measured.calibration.profile_fits import cross_validate as leave_sources_out
from cost_models.measured.calibration.refinement import ObservedRun, refine
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row, read_rows
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, grouped
from executor.measure.observed_run import Machine, machine_of, observed_run
from executor.measure.report import RunReport
from meshwright.inputs.problems import Problems
from meshwright.records.runs import read_report
from meshwright.render.words import percent
from meshwright.verbs.calibrate.calibrated import Calibrated
from meshwright.verbs.calibrate.fitted import Fitted
from meshwright.verbs.contract.answers import RunAnswer

OnStatus = Callable[[str], None]
"""Told what is being done now."""
_MAX_REASONS = 8


def moved_by_runs(
    runs: Sequence[str | Path | RunAnswer | RunReport],
    profile: str | HardwareProfile | None,
    out: str | Path | None,
) -> Calibrated:
    """Move the profile of this machine by runs on it, and write it to `out`. Raises InputError."""
    found = _calibrated(_named(runs), profile)
    if out is not None:
        found.save(out)
        return replace(found, file=Path(out))
    return found


def _named(runs: Sequence[str | Path | RunAnswer | RunReport]) -> list[tuple[str, Callable[[], RunReport]]]:
    named: list[tuple[str, Callable[[], RunReport]]] = []
    for number, run in enumerate(runs, start=1):
        if isinstance(run, (str, Path)):
            named.append((str(run), partial(read_report, Path(run))))
        else:
            report = run if isinstance(run, RunReport) else run.report
            assert isinstance(report, RunReport), "profiles are moved by runs of transformers"
            named.append((f"run {number}", partial(_itself, report)))
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
    """The machine that all runs are of. Raises InputError where they differ."""
    machines = {run.name: machine_of(report) for run, report in zip(runs, reports, strict=True)}
    different = set(machines.values())
    if len(different) > 1:
        raise InputError(
            f"{len(runs)} runs are of {len(different)} kinds, and one profile is of one",
            problems=[Problem(name, str(machine)) for name, machine in machines.items()],
            hint="calibrate from those that are alike",
        )
    return different.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """Tables that were read: what is left is to fit profiles to their rows."""

    tables: tuple[Path, ...]
    rows: tuple[Row, ...]
    stack: str | None
    gpu: str | None

    def answer(
        self, *, cross_validate: bool = False, out: str | None = None, on_status: OnStatus | None = None
    ) -> Fitted:
        """Fit one profile, or with a folder as `out` (or none) one for each GPU and stack.

        Raises:
            InputError: no row was timed, or rows of several GPUs or stacks for one file.
        """
        say = on_status or (lambda _: None)
        selection = select_runs(
            self.rows,
            stack=self.stack,
            gpu=self.gpu,
            on_row=lambda done: say(f"reading  {grouped(done)}/{grouped(len(self.rows))} rows"),
        )
        pairs = selection.pairs()
        _require_one_answer(pairs, selection, self.tables, folder=out is None or is_folder(out))
        refits = tuple(_refitted(pair, cases, say) for pair, cases in pairs.items())
        return Fitted(
            refits=refits,
            selection=selection,
            stack=self.stack,
            unseen=_unseen(selection, refits, say) if cross_validate else None,
            files=() if out is None else _files(refits, out),
        )


def ask_tables(tables: Sequence[str | Path], *, stack: str | None, gpu: str | None) -> FitQuestion:
    """Read tables of timed runs, of which `stack` and `gpu` choose rows.

    Raises:
        InputError: a table, a stack or a GPU cannot be read; everything that cannot, at once.
    """
    problems = Problems()
    read = [problems.read(partial(read_rows, Path(path))) for path in tables]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    problems.read(lambda: catalog.load_gpu(gpu) if gpu else None)
    problems.require()
    rows = tuple(row for table in read for row in table or ())
    return FitQuestion(tables=tuple(map(Path, tables)), rows=rows, stack=stack, gpu=gpu)


def is_folder(out: str) -> bool:
    """Whether profiles go into a folder, which need not exist yet."""
    return out.endswith("/") or Path(out).is_dir()


def _require_one_answer(
    pairs: Mapping[Pair, Sequence[Case]], selection: Selection, tables: Sequence[Path], *, folder: bool
) -> None:
    """Raises InputError without a row to fit to, or with several GPUs or stacks for one file."""
    named = ", ".join(f"`{path}`" for path in tables)
    if not pairs:
        reasons = Counter(reason for _, reason in selection.left_out).most_common(_MAX_REASONS)
        raise InputError(
            f"{named} {'has' if len(tables) == 1 else 'have'} no row to fit to",
            problems=[Problem(counted(rows, "row"), printable(reason)) for reason, rows in reasons],
            hint="a row needs `step_time_best_s`, seconds of a step; see docs/guides/calibrating-from-runs.md",
        )
    if len(pairs) > 1 and not folder:
        raise InputError(
            f"{named} {'has' if len(tables) == 1 else 'have'} runs for {len(pairs)} profiles",
            problems=[
                Problem(f"--gpu {die} --stack {stack}", counted(len(cases), "row"))
                for (die, stack), cases in pairs.items()
            ],
            hint="choose one, or write a file each: -o profiles/",
        )


def _refitted(pair: Pair, cases: Sequence[Case], say: OnStatus) -> Refit:
    """Fit one profile, and say how far the fit is."""
    name = f"{pair[0]} {pair[1]}"
    say(f"fitting {name}  {counted(len(cases), 'row')}")
    return refit(
        pair,
        cases,
        on_round=lambda round_, error: say(
            f"fitting {name}  {counted(len(cases), 'row')}  round {round_}  median error {percent(error)}"
        ),
    )


def _unseen(selection: Selection, refits: Sequence[Refit], say: OnStatus) -> tuple[UnseenSource, ...]:
    """Fit without each source in turn, and say which is left out."""
    errors = {run: error for one in refits for run, error in one.fit.residuals.items()}
    return leave_sources_out(
        selection.cases,
        errors,
        on_source=lambda source: say(f"fitting without {printable(source, 40)}"),
    )


def _files(refits: Sequence[Refit], out: str) -> tuple[Path, ...]:
    """Name a file for each profile."""
    path = Path(out)
    if not is_folder(out):
        assert len(refits) == 1, "a file holds one profile"
        return (path,)
    return tuple(path / f"{one.profile.name.replace('/', '-')}.yaml" for one in refits)
