"""Calibration from runs: a profile moved by runs of this machine, or fitted to tables of timed runs of any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import Pair, UnseenSource, refit, select_runs
from cost_models.measured.calibration.profile_fits import cross_validate as leave_sources_out
from cost_models.measured.calibration.refinement import ObservedRun, refine
from cost_models.measured.calibration.step_time_fit import StepTimeFit
from cost_models.measured.runs.cases import Case, read_rows
from cost_models.measured.runs.rows import Row
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, grouped
from executor.measure.observed_run import machine_of, observed_run
from executor.measure.report import RunReport
from meshwright.inputs.problems import Problems
from meshwright.records.runs import read_report
from meshwright.render.words import percent
from meshwright.verbs.calibrate.calibrated import Calibrated
from meshwright.verbs.calibrate.fitted import MAX_REASONS, Fitted
from meshwright.verbs.ran import AnyRan


def calibrate_from_run(
    *runs: str | Path | AnyRan[Any] | RunReport,
    profile: str | HardwareProfile | None = None,
    out: str | Path | None = None,
) -> Calibrated:
    """Move the profile of this machine by what training runs on it measured: reports, or what `run` returned.

    It starts from `profile`, else from the one that the first run's plan was made with, and in either case from what
    was measured before any run moved it. The profile is written to `out` if given.

    Raises:
        InputError: no run, a file that is no report or too old, runs of several machines, torch versions, precisions or
            software stacks, or a profile of another GPU.
    """
    if not runs:
        raise InputError("there is no run to calibrate from", hint="meshwright run writes run-report.json")
    problems, reports, observations = Problems(), list[RunReport](), list[ObservedRun]()
    for number, run in enumerate(runs, start=1):
        if isinstance(run, (str, Path)):
            name, report = str(run), problems.read(partial(read_report, Path(run)))
        else:
            answer = run if isinstance(run, RunReport) else run.report
            assert isinstance(answer, RunReport), "profiles are moved by runs of transformers"
            name, report = f"run {number}", answer
        observation = problems.read(partial(observed_run, report, name)) if report is not None else None
        if report is not None and observation is not None:
            reports.append(report)
            observations.append(observation)
    start = problems.read(lambda: catalog.load_profile(profile)) if isinstance(profile, str) else profile
    problems.require()
    machines = {one.name: machine_of(report) for one, report in zip(observations, reports, strict=True)}
    machine, *strangers = set(machines.values())
    if strangers:
        raise InputError(
            f"{len(reports)} runs are of {1 + len(strangers)} kinds, and one profile is of one",
            problems=[Problem(name, str(machine)) for name, machine in machines.items()],
            hint="calibrate from those that are alike",
        )
    refinement = refine(start or observations[0].question.hardware, observations)
    calibrated = Calibrated(machine=machine, refinement=refinement, reports=tuple(reports))
    if out is None:
        return calibrated
    calibrated.save(out)
    return replace(calibrated, file=Path(out))


def calibrate_from_runs(
    *tables: str | Path,
    stack: str | None = None,
    gpu: str | None = None,
    cross_validate: bool = False,
    out: str | Path | None = None,
) -> Fitted:
    """Fit the catalogue's profiles to the timed rows of tables, one for each GPU and stack that they name.

    `stack` and `gpu` choose among the rows; `cross_validate` also says how far off profiles are on sources left out of
    every fit. A single profile is written to the file `out`, several into the folder `out`.

    Raises:
        InputError: a table, a stack or a GPU cannot be read, no row was timed, or rows of several GPUs or stacks for
            one file.
    """
    rows, place = read_tables(tables, stack=stack, gpu=gpu), None if out is None else str(out)
    fitted = fit_tables(rows, tables, stack=stack, gpu=gpu, cross_validate=cross_validate, out=place)
    fitted.save()
    return fitted


def read_tables(tables: Sequence[str | Path], *, stack: str | None, gpu: str | None) -> list[Row]:
    """Read tables of timed runs; `stack` and `gpu` choose rows.

    Raises:
        InputError: a table, a stack or a GPU cannot be read; everything that cannot, at once.
    """
    problems = Problems()
    read = [problems.read(partial(read_rows, Path(path))) for path in tables]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    problems.read(lambda: catalog.load_gpu(gpu) if gpu else None)
    problems.require()
    return [row for table in read for row in table or ()]


def fit_tables(
    rows: Sequence[Row],
    tables: Sequence[str | Path],
    *,
    stack: str | None,
    gpu: str | None,
    cross_validate: bool,
    out: str | None,
    on_status: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Fit one profile to the `rows` of `tables`, or with a folder as `out` (or none) one for each GPU and stack.

    A folder ends in `/` or exists. `on_status` hears what is being done.

    Raises:
        InputError: no row was timed, or rows of several GPUs or stacks for one file.
    """

    def count_rows(rows_done: int) -> None:
        on_status(f"reading  {grouped(rows_done)}/{grouped(len(rows))} rows")

    def name_source(source: str) -> None:
        on_status(f"fitting without {printable(source, 40)}")

    selection = select_runs(rows, stack=stack, gpu=gpu, on_row=count_rows)
    pairs, has_folder = selection.pairs(), out is None or out.endswith("/") or Path(out).is_dir()
    subject = ", ".join(f"`{Path(path)}`" for path in tables) + (" has" if len(tables) == 1 else " have")
    if not pairs:
        reasons = Counter(reason for _, reason in selection.left_out).most_common(MAX_REASONS)
        raise InputError(
            f"{subject} no usable row",
            problems=[Problem(counted(count, "row"), printable(reason)) for reason, count in reasons],
            hint="a row needs `step_seconds`, of a step; see docs/guides/calibrating-from-runs.md",
        )
    if len(pairs) > 1 and not has_folder:
        raise InputError(
            f"{subject} runs for {len(pairs)} profiles",
            problems=[
                Problem(f"--gpu {die} --stack {name}", counted(len(cases), "row"))
                for (die, name), cases in pairs.items()
            ],
            hint="choose one, or write a file each: -o profiles/",
        )
    refits = tuple(_refitted(pair, cases, on_status) for pair, cases in pairs.items())
    unseen: tuple[UnseenSource, ...] | None = None
    if cross_validate:
        errors = {run: error for one in refits for run, error in one.residuals.items()}
        unseen = leave_sources_out(selection.cases, errors, on_source=name_source)
    files = []
    if out is not None:
        names = (one.profile.name.replace("/", "-") for one in refits)
        files = [Path(out) / f"{name}.yaml" for name in names] if has_folder else [Path(out)]
    return Fitted(refits=refits, selection=selection, stack=stack, unseen=unseen, files=tuple(files))


def _refitted(pair: Pair, cases: Sequence[Case], on_status: Callable[[str], None]) -> StepTimeFit:
    """Fit one profile, and say how far the fit is."""
    fitting = f"fitting {pair[0]} {pair[1]}  {counted(len(cases), 'row')}"
    on_status(fitting)

    def count_rounds(round_: int, error: float) -> None:
        on_status(f"{fitting}  round {round_}  median error {percent(error)}")

    return refit(pair, cases, on_round=count_rounds)
