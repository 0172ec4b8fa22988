"""`calibrate`: writes a hardware profile, measured here, moved by runs, or fitted to tables of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import argument, flag, switch
from meshwright.verbs.contract.answers import RunAnswer
from meshwright.verbs.contract.command import command

if TYPE_CHECKING:
    from cost_models.specs.hardware import HardwareProfile
    from executor.measure.report import RunReport
    from meshwright.terminal.output import Output
    from meshwright.verbs.calibrate.calibrated import Calibrated
    from meshwright.verbs.calibrate.fitted import Fitted


def calibrate_from_run(
    *runs: str | Path | RunAnswer | RunReport,
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
    from meshwright.verbs.calibrate.reading import moved_by_runs

    return moved_by_runs(runs, profile, out)


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
    from meshwright.verbs.calibrate.reading import ask_tables

    files = None if out is None else str(out)
    fitted = ask_tables(tables, stack=stack, gpu=gpu).answer(cross_validate=cross_validate, out=files)
    fitted.save()
    return fitted


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags:
    """What `meshwright calibrate` takes."""

    out: str = flag(
        "FILE", "Profile to write; for runs also FOLDER/.", default="profile.yaml", names=("-o", "--out")
    )
    processes: int | None = flag("N", "Default: one per device.", kind=int, minimum=1)
    quick: bool = switch("Fewer repeats, about half the time.")
    more: tuple[Path, ...] = field(
        default=(), metadata=argument("[REPORT]...", "More reports for --from-run.", kind=list[Path])
    )
    from_run: tuple[Path, ...] = flag(
        "REPORT", "Move it by runs of this machine, by their run-report.json.", kind=list[Path], default=()
    )
    profile: str | None = flag("NAME", "Where --from-run starts. Default: what its plan was made with.")
    from_runs: tuple[Path, ...] = flag(
        "FILE.csv", "Fit to a table of timed runs of any cluster; repeatable.", kind=list[Path], default=()
    )
    stack: str | None = flag("NAME", "Runs of this stack only.", completion="stacks")
    gpu: str | None = flag("NAME", "Runs on this GPU only.", completion="gpus")
    cross_validate: bool = switch("Errors of sources left out of every fit.")

    @property
    def reports(self) -> tuple[Path, ...]:
        """Reports of runs, behind the flag and after it."""
        return (*self.from_run, *self.more)

    @property
    def measuring(self) -> Mapping[str, bool]:
        """Flags of a measurement → whether they were given."""
        return {"--processes": self.processes is not None, "--quick": self.quick}

    @property
    def choosing(self) -> Mapping[str, bool]:
        """Flags that choose among runs → whether they were given."""
        given = {"--stack": self.stack, "--gpu": self.gpu}
        return {name: value is not None for name, value in given.items()} | {
            "--cross-validate": self.cross_validate
        }


@command(CalibrateFlags, name="calibrate")
def calibrate_command(options: CalibrateFlags, output: Output) -> None:
    """Write a hardware profile, measured here or fitted to runs."""
    if options.from_run:
        _refuse(
            "`--from-run` reads run reports and measures nothing",
            {"--from-runs": bool(options.from_runs), **options.measuring, **options.choosing},
            "means nothing beside `--from-run`",
        )
        _from_run(options, output)
        return
    _refuse_reports(options)
    if options.from_runs:
        _from_runs(options, output)
        return
    _refuse(
        "without `--from-runs` this machine is measured",
        options.choosing,
        "chooses among runs",
        hint="name the tables: --from-runs FILE.csv",
    )
    _measure(options, output)


def _measure(options: CalibrateFlags, output: Output) -> None:
    """Measure matrix products, memory and collectives between processes, and write the profile they fit."""
    from cost_models.files.catalog import local_cluster, save_spec
    from executor.microbenchmarks.calibrate import calibrate
    from meshwright.terminal.progress import progress
    from meshwright.verbs.calibrate.measured import MeasuredProfile

    file = Path(options.out)
    output.check_places(file)
    with progress(output) as reporter:
        cluster = local_cluster(options.processes)
        profile = calibrate(cluster.num_gpus, quick=options.quick, on_progress=reporter.say, cluster=cluster)
    output.show(MeasuredProfile(profile=profile, file=file), files=[lambda: save_spec(profile, file)])
    output.wrote(file, f"meshwright plan gpt2-tiny local --gpus 2 --profile {file}")


def _from_run(options: CalibrateFlags, output: Output) -> None:
    """Write the profile that explains the run reports."""
    from dataclasses import replace

    file, reports = Path(options.out), options.reports
    output.check_places(file)
    if tables := [path for path in reports if path.suffix == ".csv"]:
        problems = [Problem(str(path), "is a table") for path in tables]
        raise InputError(
            "`--from-run` reads run reports", problems=problems, hint="tables: --from-runs FILE.csv"
        )
    if len({path.resolve() for path in reports}) < len(reports):
        raise InputError("a run counts once, and one is named twice")
    found = replace(calibrate_from_run(*reports, profile=options.profile), file=file)
    output.show(found, file)
    output.wrote(file, f"plan and run another layout with --profile {file}")


def _from_runs(options: CalibrateFlags, output: Output) -> None:
    """Fit one profile to tables of timed runs, or with a folder as `out` one for each GPU and stack."""
    from functools import partial

    from meshwright.inputs.problems import Problems
    from meshwright.terminal.progress import progress
    from meshwright.verbs.calibrate.fitted import save_one
    from meshwright.verbs.calibrate.reading import ask_tables

    problems, tables, out = Problems(), options.from_runs, options.out
    problems.read(lambda: _refuse("`--from-runs` measures nothing", options.measuring, "is of a measurement"))
    question = problems.read(lambda: ask_tables(tables, stack=options.stack, gpu=options.gpu))
    problems.read(lambda: _check_profile_places(out, output))
    problems.require()
    assert question is not None
    with progress(output) as reporter:
        answer = question.answer(cross_validate=options.cross_validate, out=out, on_status=reporter.say)
    filed = zip(answer.profiles, answer.files, strict=True)
    output.show(answer, files=[partial(save_one, profile, file) for profile, file in filed])
    for file in answer.files:
        output.wrote(file)
    if len(answer.files) == 1:
        runs = " ".join(f"--runs {path}" for path in tables)
        output.note(f"Next: meshwright validate {runs} --profile {answer.files[0]}")


def _check_profile_places(out: str, output: Output) -> None:
    """A folder need not exist yet; what it is to hold is checked as any file. Raises InputError."""
    from meshwright.verbs.calibrate.reading import is_folder

    path = Path(out)
    output.check_places(path / "profile.yaml" if path.is_dir() else path)
    if is_folder(out) and path.exists() and not path.is_dir():
        problem = Problem(f"-o {out}", "is a file, not a folder")
        raise InputError("the answer cannot be written", problems=[problem])


def _refuse(headline: str, flags: Mapping[str, bool], what: str, *, hint: str = "") -> None:
    """Raises InputError with each of the flags that was given."""
    if problems := [Problem(name, what) for name, given in flags.items() if given]:
        raise InputError(headline, problems=problems, hint=hint)


def _refuse_reports(options: CalibrateFlags) -> None:
    """Raises InputError where something is given that belongs to `--from-run`."""
    problems = [Problem(str(path), "is not asked for") for path in options.reports]
    if options.profile is not None:
        problems.append(Problem("--profile", "is where `--from-run` starts"))
    if problems:
        raise InputError(
            "without `--from-run` no run report is read",
            problems=problems,
            hint="meshwright calibrate --from-run run-report.json -o profile.yaml",
        )
