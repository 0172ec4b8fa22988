"""`calibrate`: measure this machine."""

from __future__ import annotations

from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.evidence.calibration.saving import save_profile
from cost_models.files.catalog import local_cluster
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import format_bandwidth, format_seconds
from executor.microbenchmarks.calibrate import calibrate as measure
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import progress
from meshwright.records import JSON_SCHEMA
from meshwright.render.tables import table
from meshwright.render.words import percent, wrapped


def calibrate(processes: int | None, *, quick: bool, out: Path, output: Output) -> None:
    """Measure matrix products, memory and collectives between processes, and write the profile they fit.

    Raises:
        HostError: too few devices.
        InputError: the file cannot be written.
    """
    check_places(("-o", out), ("--csv", output.csv))
    with progress(output) as reporter:
        cluster = local_cluster(processes)
        profile = measure(cluster.num_gpus, quick=quick, on_progress=reporter.say, cluster=cluster)
    rows = _rows(profile)
    output.answer(
        {"schema": JSON_SCHEMA, "file": str(out), "profile": profile.model_dump(mode="json")},
        rows,
        wrapped(f"profile {profile.name}: {profile.source}"),
        "",
        table(("constant", "value"), [(row["constant"], row["text"]) for row in rows], words=("constant",)),
        files=[lambda: save_profile(profile, out)],
    )
    output.note(f"Wrote {out}. Next: meshwright plan gpt2-tiny local --gpus 2 --profile {out}")


def nothing_of_runs(*, stack: str | None, gpu: str | None, cross_validate: bool) -> None:
    """Flags that choose among runs mean nothing where this machine is measured.

    Raises:
        InputError: one was given.
    """
    given = {"--stack": stack is not None, "--gpu": gpu is not None, "--cross-validate": cross_validate}
    if problems := [Problem(flag, "chooses among runs") for flag, there in given.items() if there]:
        raise InputError(
            "without `--from-runs` this machine is measured",
            problems=problems,
            hint="name the tables: --from-runs FILE.csv",
        )


def _rows(profile: HardwareProfile) -> list[dict[str, str]]:
    """What a person wants to check: rates and start-up times; the file has the rest."""
    shares = (
        "gemm_efficiency",
        "attention_forward_efficiency",
        "attention_backward_efficiency",
        "memory_efficiency",
        "optimizer_efficiency",
        "link_efficiency",
    )
    times = ("kernel_seconds", "host_layer_seconds", "collective_seconds", "step_seconds")
    rows = [(name, getattr(profile, name), percent(getattr(profile, name))) for name in shares]
    rows += [(name, getattr(profile, name), format_seconds(getattr(profile, name))) for name in times]
    if profile.measured_peak is not None:
        rows.insert(0, ("measured_peak", profile.measured_peak, f"{profile.measured_peak / 1e9:.4g} GFLOP/s"))
    if profile.measured_bandwidth is not None:
        rows.insert(
            1,
            ("measured_bandwidth", profile.measured_bandwidth, format_bandwidth(profile.measured_bandwidth)),
        )
    return [{"constant": name, "value": repr(value), "text": text} for name, value, text in rows]
