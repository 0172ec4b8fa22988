"""`calibrate --from-run`: move this machine's profile by what training runs on it measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_models.errors import InputError, Problem
from meshwright.answers.calibrated import Calibrated, calibrate_from_run
from meshwright.cli.output import Output, check_places
from meshwright.records import JSON_SCHEMA
from meshwright.render.runs.refinements import refinement_text


def calibrate_by_runs(reports: Sequence[Path], *, profile: str | None, out: Path, output: Output) -> None:
    """Write the profile that explains the run reports.

    Raises:
        InputError: a report that cannot be read or is named twice, reports of several machines, or a place that cannot
            be written.
    """
    check_places(("-o", out), ("--csv", output.csv))
    if tables := [path for path in reports if path.suffix == ".csv"]:
        problems = [Problem(str(path), "is a table") for path in tables]
        raise InputError(
            "`--from-run` reads run reports", problems=problems, hint="tables: --from-runs FILE.csv"
        )
    if len({path.resolve() for path in reports}) < len(reports):
        raise InputError("a run counts once, and one is named twice")
    found = calibrate_from_run(*reports, profile=profile)
    output.answer(_record(found, out), found.runs(), *refinement_text(found), files=[lambda: found.save(out)])
    output.note(f"Wrote {out}. Next: plan and run another layout with --profile {out}")


def measures_or_reads(
    from_run: Sequence[Path], more: Sequence[Path], profile: str | None, given: dict[str, bool]
) -> None:
    """What belongs to `--from-run` without it, or what belongs to a measurement or to tables with it.

    Raises:
        InputError: one of them was given.
    """
    if from_run:
        problems = [
            Problem(flag, "means nothing beside `--from-run`") for flag, there in given.items() if there
        ]
        if problems:
            raise InputError("`--from-run` reads run reports and measures nothing", problems=problems)
        return
    problems = [Problem(str(path), "is not asked for") for path in more]
    if profile is not None:
        problems.append(Problem("--profile", "is where `--from-run` starts"))
    if problems:
        raise InputError(
            "without `--from-run` no run report is read",
            problems=problems,
            hint="meshwright calibrate --from-run run-report.json -o profile.yaml",
        )


def _record(found: Calibrated, out: Path) -> dict[str, object]:
    return {
        "schema": JSON_SCHEMA,
        "file": str(out),
        "machine": str(found.machine),
        "started_from": found.refinement.start.source,
        "runs": found.runs(),
        "factors": found.factors(),
        "profile": found.profile.model_dump(mode="json"),
    }
