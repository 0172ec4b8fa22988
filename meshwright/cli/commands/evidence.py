"""Verbs about what predictions rest on: measured profiles, runs that were timed, the catalogue."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output


class CatalogKind(StrEnum):
    """What the catalogue holds."""

    MODELS = "models"
    GPUS = "gpus"
    CLUSTERS = "clusters"
    STACKS = "stacks"
    PROFILES = "profiles"
    SCHEMA = "schema"


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
    """Write a hardware profile: measured here, moved by runs of this machine, or fitted to a table of timed runs."""
    from meshwright.cli.verbs.refining import calibrate_by_runs, measures_or_reads

    output = Output(json=json, csv=csv, quiet=quiet)
    given = {"--from-runs": bool(from_runs), "--processes": processes is not None, "--quick": quick}
    given |= {"--stack": stack is not None, "--gpu": gpu is not None, "--cross-validate": cross_validate}
    measures_or_reads(from_run or (), more or (), profile, given)
    if from_run:
        calibrate_by_runs((*from_run, *(more or ())), profile=profile, out=Path(out), output=output)
        return
    if from_runs:
        from meshwright.cli.verbs.fitting import Choice, fit_runs

        choice = Choice(stack=stack, gpu=gpu, processes=processes, quick=quick)
        fit_runs(from_runs, choice, cross_validate=cross_validate, out=out, output=output)
        return
    from meshwright.cli.verbs.calibrating import calibrate, nothing_of_runs

    nothing_of_runs(stack=stack, gpu=gpu, cross_validate=cross_validate)
    calibrate(processes, quick=quick, out=Path(out), output=output)


def validate(
    runs: Annotated[
        list[Path] | None,
        o.optional("--runs", "FILE.csv", "A table of runs; repeatable. Default: the shipped ones."),
    ] = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    anchors: Annotated[
        int, typer.Option("--anchors", metavar="K", min=0, help="Calibrate each sweep on K of its rows.")
    ] = 0,
    out: Annotated[Path | None, o.out("Write a page with plots.", "FOLDER")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Predict runs that were timed, and say how far off."""
    from meshwright.cli.verbs.validating import validate

    output = Output(json=json, csv=csv, quiet=quiet)
    validate(tuple(runs or ()), stack=stack, profile=profile, anchors=anchors, folder=out, output=output)


def catalog(
    kind: Annotated[CatalogKind, typer.Argument(help="What to list.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(
            help="One entry in full; for schema: model, cluster, training, ...",
            show_default=False,
            autocompletion=completion.entries,
        ),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """List what is known, or print a YAML schema."""
    from meshwright.cli.verbs.cataloguing import catalog

    catalog(kind.value, name, output=Output(json=json, csv=csv, quiet=quiet))
