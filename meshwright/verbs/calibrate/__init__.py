"""`calibrate`: write a hardware profile measured on this machine, updated by runs here, or fitted to tables of
runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import Options, argument, flag, switch
from meshwright.inputs.problems import refuse
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.terminal.output import Output


class CalibrateFlags(Options, kw_only=True):
    """Options of `meshwright calibrate`: what to calibrate from (this machine, run reports, tables), and the profile
    to write."""

    out: str = flag("FILE", default="profile.yaml", names=("-o", "--out"))
    """Profile to write; for runs also FOLDER/."""
    processes: int | None = flag("N", minimum=1)
    """Processes; default: one per device."""
    quick: bool = switch()
    """Fewer repeats, about half the time."""
    more: tuple[Path, ...] = field(default=(), metadata=argument("[REPORT]...", kind=list[Path]))
    """More reports for --from-run."""
    from_run: tuple[Path, ...] = flag("REPORT", kind=list[Path], default=())
    """Update the profile by runs on this machine (run-report.json)."""
    profile: str | None = flag("NAME")
    """Profile that --from-run starts from; default: the plan's."""
    from_runs: tuple[Path, ...] = flag("FILE.csv", kind=list[Path], default=())
    """Fit to a table of timed runs of any cluster; repeatable."""
    stack: str | None = flag("NAME", completion="stacks")
    """Runs of this stack only."""
    gpu: str | None = flag("NAME", completion="gpus")
    """Runs on this GPU only."""
    cross_validate: bool = switch()
    """Also print errors of sources left out of every fit."""


@command(CalibrateFlags)
def calibrate_command(options: CalibrateFlags, output: Output) -> None:
    """Write a hardware profile, measured here or fitted to runs."""
    measuring = {"--processes": options.processes, "--quick": options.quick}
    choosing = {"--stack": options.stack, "--gpu": options.gpu, "--cross-validate": options.cross_validate}
    if options.from_run:
        flags = {"--from-runs": bool(options.from_runs), **measuring, **choosing}
        problems = _flag_problems(flags, "leave it out, or `--from-run`")
        refuse("`--from-run` learns from run reports alone", problems)
        _from_run(options, output)
        return
    stray = [Problem(str(path), "is not asked for") for path in options.more]
    stray += _flag_problems({"--profile": options.profile}, "is where `--from-run` starts")
    example = "meshwright calibrate --from-run run-report.json -o profile.yaml"
    refuse("without `--from-run` no run report is read", stray, example)
    if options.from_runs:
        _from_runs(options, output, _flag_problems(measuring, "is of a measurement"))
        return
    stray = _flag_problems(choosing, "chooses among runs")
    refuse("without `--from-runs` this machine is measured", stray, "name the tables: --from-runs FILE.csv")
    _measure(options, output)


def _flag_problems(flags: Mapping[str, object], text: str) -> list[Problem]:
    """Problem with the text `text` for each flag that was given."""
    return [Problem(name, text) for name, value in flags.items() if value is not None and value is not False]


def _measure(options: CalibrateFlags, output: Output) -> None:
    """Measure matrix products, memory and collectives on this machine, and write the profile."""
    from cost_models.files.catalog import local_cluster, save_spec
    from executor.microbenchmarks.calibrate import calibrate
    from meshwright.terminal.progress import progress
    from meshwright.verbs.calibrate.profiles import MeasuredProfile

    file = Path(options.out)
    output.check_places(file)
    with progress(output) as reporter:
        cluster = local_cluster(options.processes)
        profile = calibrate(cluster.num_gpus, quick=options.quick, on_progress=reporter.say, cluster=cluster)
    output.show(MeasuredProfile(profile=profile, file=file), files=[lambda: save_spec(profile, file)])
    output.wrote(file, f"meshwright plan gpt2-tiny local --gpus 2 --profile {file}")


def _from_run(options: CalibrateFlags, output: Output) -> None:
    """Update a profile by the run reports of `--from-run`, and write it."""
    from meshwright.verbs.calibrate.profiles import calibrate_from_run

    file, reports = Path(options.out), (*options.from_run, *options.more)
    output.check_places(file)
    tables = [Problem(str(path), "is a table") for path in reports if path.suffix == ".csv"]
    refuse("`--from-run` reads run reports", tables, "tables: --from-runs FILE.csv")
    if len({path.resolve() for path in reports}) < len(reports):
        raise InputError("a run counts once, and one is named twice")
    calibrated = replace(calibrate_from_run(*reports, profile=options.profile), file=file)
    output.show(calibrated, file)
    output.wrote(file, f"plan and run another layout with --profile {file}")


def _from_runs(options: CalibrateFlags, output: Output, measuring: Sequence[Problem]) -> None:
    """Fit a profile to tables of timed runs and write it; if `out` is a folder, one profile for each GPU and
    stack."""
    from meshwright.terminal.progress import progress
    from meshwright.verbs.calibrate.profiles import fit_tables, read_tables

    def check_places() -> None:  # a file, or a folder that need not exist yet
        """Check that the profile's file or folder can be written. Raises InputError."""
        path = Path(out)
        output.check_places(path / "profile.yaml" if path.is_dir() else path)
        is_file = out.endswith("/") and path.exists() and not path.is_dir()
        refuse("the answer cannot be written", [Problem(f"-o {out}", "is a file, not a folder")] * is_file)

    out = options.out
    rows = output.read(
        lambda: read_tables(options),
        lambda: refuse("`--from-runs` fits to tables alone, without measuring", measuring),
        places=check_places,
    )
    with progress(output) as reporter:
        answer = fit_tables(rows, options, out, reporter.say)
    output.show(answer, files=answer.writers)
    for file in answer.files:
        output.wrote(file)
    if len(answer.files) == 1:
        runs = " ".join(f"--runs {path}" for path in options.from_runs)
        output.note(f"Next: meshwright validate {runs} --profile {answer.files[0]}")
