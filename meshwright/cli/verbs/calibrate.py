"""`meshwright calibrate`: write a hardware profile, measured here, moved by runs, or fitted to tables of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def calibrate(
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="FILE", help="Profile to write; for runs also FOLDER/.")
    ] = "profile.yaml",
    processes: Annotated[
        int | None, o.optional("--processes", "N", "Default: one per device.", min=1)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats, about half the time.")] = False,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[REPORT]...", help="More reports for --from-run.", show_default=False),
    ] = None,
    from_run: Annotated[
        list[Path] | None,
        o.optional("--from-run", "REPORT", "Move it by runs of this machine, by their run-report.json."),
    ] = None,
    profile: Annotated[
        str | None,
        o.optional("--profile", "NAME", "Where --from-run starts. Default: what its plan was made with."),
    ] = None,
    from_runs: Annotated[
        list[Path] | None,
        o.optional("--from-runs", "FILE.csv", "Fit to a table of timed runs of any cluster; repeatable."),
    ] = None,
    stack: Annotated[
        str | None, o.optional("--stack", "NAME", "Runs of this stack only.", offers=completion.stacks)
    ] = None,
    gpu: Annotated[
        str | None, o.optional("--gpu", "NAME", "Runs on this GPU only.", offers=completion.gpus)
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="Errors of sources left out of every fit.")
    ] = False,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Write a hardware profile, measured here or fitted to runs."""
    output = Output(json=json, csv=csv, quiet=quiet)
    measuring = {"--processes": processes is not None, "--quick": quick}
    choosing = {"--stack": stack is not None, "--gpu": gpu is not None, "--cross-validate": cross_validate}
    reports = (*(from_run or ()), *(more or ()))
    if from_run:
        _refuse(
            "`--from-run` reads run reports and measures nothing",
            {"--from-runs": bool(from_runs), **measuring, **choosing},
            "means nothing beside `--from-run`",
        )
        _from_run(reports, profile, Path(out), output)
        return
    _refuse_reports(reports, profile)
    if from_runs:
        _from_runs(from_runs, measuring, stack, gpu, cross_validate, out, output)
        return
    _refuse(
        "without `--from-runs` this machine is measured",
        choosing,
        "chooses among runs",
        hint="name the tables: --from-runs FILE.csv",
    )
    _measure(processes, quick, Path(out), output)


def _measure(processes: int | None, quick: bool, out: Path, output: Output) -> None:
    """Measure matrix products, memory and collectives between processes, and write the profile they fit."""
    from cost_models.files.catalog import local_cluster
    from cost_models.files.parsing import save_spec
    from executor.microbenchmarks.calibrate import calibrate
    from meshwright.answers.measured_profile import MeasuredProfile
    from meshwright.cli.progress import progress

    check_places(("-o", out), ("--csv", output.csv))
    with progress(output) as reporter:
        cluster = local_cluster(processes)
        profile = calibrate(cluster.num_gpus, quick=quick, on_progress=reporter.say, cluster=cluster)
    output.show(MeasuredProfile(profile=profile, file=out), files=[lambda: save_spec(profile, out)])
    output.note(f"Wrote {out}. Next: meshwright plan gpt2-tiny local --gpus 2 --profile {out}")


def _from_run(reports: Sequence[Path], profile: str | None, out: Path, output: Output) -> None:
    """Write the profile that explains the run reports."""
    from dataclasses import replace

    from cost_models.errors import InputError, Problem
    from meshwright.api.calibrate import calibrate_from_run

    check_places(("-o", out), ("--csv", output.csv))
    if tables := [path for path in reports if path.suffix == ".csv"]:
        problems = [Problem(str(path), "is a table") for path in tables]
        raise InputError(
            "`--from-run` reads run reports", problems=problems, hint="tables: --from-runs FILE.csv"
        )
    if len({path.resolve() for path in reports}) < len(reports):
        raise InputError("a run counts once, and one is named twice")
    found = replace(calibrate_from_run(*reports, profile=profile), file=out)
    output.show(found, files=[lambda: found.save(out)])
    output.note(f"Wrote {out}. Next: plan and run another layout with --profile {out}")


def _from_runs(
    tables: Sequence[Path],
    measuring: dict[str, bool],
    stack: str | None,
    gpu: str | None,
    cross_validate: bool,
    out: str,
    output: Output,
) -> None:
    """Fit one profile to tables of timed runs, or with a folder as `out` one for each GPU and stack."""
    from functools import partial

    from meshwright.answers.fitted import save_one
    from meshwright.api.calibrate import ask_tables
    from meshwright.cli.progress import progress
    from meshwright.inputs.problems import Problems

    problems = Problems()
    problems.read(lambda: _refuse("`--from-runs` measures nothing", measuring, "is of a measurement"))
    question = problems.read(lambda: ask_tables(tables, stack=stack, gpu=gpu))
    problems.read(lambda: _check_profile_places(out, output))
    problems.require()
    assert question is not None
    with progress(output) as reporter:
        answer = question.answer(cross_validate=cross_validate, out=out, on_status=reporter.say)
    filed = zip(answer.profiles, answer.files, strict=True)
    output.show(answer, files=[partial(save_one, profile, file) for profile, file in filed])
    for file in answer.files:
        output.note(f"Wrote {file}")
    if len(answer.files) == 1:
        runs = " ".join(f"--runs {path}" for path in tables)
        output.note(f"Next: meshwright validate {runs} --profile {answer.files[0]}")


def _check_profile_places(out: str, output: Output) -> None:
    """A folder need not exist yet; what it is to hold is checked as any file. Raises InputError."""
    from cost_models.errors import InputError, Problem
    from meshwright.api.calibrate import is_folder

    path = Path(out)
    check_places(("-o", path / "profile.yaml" if path.is_dir() else path), ("--csv", output.csv))
    if is_folder(out) and path.exists() and not path.is_dir():
        problem = Problem(f"-o {out}", "is a file, not a folder")
        raise InputError("the answer cannot be written", problems=[problem])


def _refuse(headline: str, flags: dict[str, bool], what: str, *, hint: str = "") -> None:
    """Raises InputError with each of the flags that was given."""
    from cost_models.errors import InputError, Problem

    if problems := [Problem(flag, what) for flag, given in flags.items() if given]:
        raise InputError(headline, problems=problems, hint=hint)


def _refuse_reports(reports: Sequence[Path], profile: str | None) -> None:
    """Raises InputError where something is given that belongs to `--from-run`."""
    from cost_models.errors import InputError, Problem

    problems = [Problem(str(path), "is not asked for") for path in reports]
    if profile is not None:
        problems.append(Problem("--profile", "is where `--from-run` starts"))
    if problems:
        raise InputError(
            "without `--from-run` no run report is read",
            problems=problems,
            hint="meshwright calibrate --from-run run-report.json -o profile.yaml",
        )
