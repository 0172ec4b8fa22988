"""`run`: train with a plan on this machine."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cost_models.errors import InputError, UnknownNameError
from executor.checkpoints.saving import Saving
from executor.launch import run_plan
from executor.nodes import Nodes
from executor.rate import Rate
from meshwright.measured import comparison
from meshwright.output import JSON_SCHEMA, Output
from meshwright.render.run import built_table, comparison_table, routers_line, step_line
from meshwright.render.words import percent, wrapped
from planner.plan import load_plan

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """The optimizer's flags."""

    rate: float
    warm_up: int
    decay: int | None
    clip: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is done so that a run survives them."""

    checkpoint: Path | None
    every: int
    keep: int
    resume: bool
    restarts: int
    timeout: float

    @property
    def saving(self) -> Saving | None:
        """None without a folder. Raises InputError where the other flags need one."""
        if self.checkpoint is None:
            if self.resume:
                raise InputError("--resume needs --checkpoint", hint="the folder to go on from")
            return None
        if self.checkpoint.exists() and not self.checkpoint.is_dir():
            raise InputError(f"--checkpoint {self.checkpoint}: is no folder")
        return Saving(folder=self.checkpoint, every=self.every, keep=self.keep, resume=self.resume)


def run(
    path: Path,
    *,
    steps: int,
    data: str,
    descent: Descent,
    faults: Faults,
    nodes: Nodes,
    backend: str | None,
    out_dir: Path,
    trace: Path | None,
    output: Output,
) -> None:
    """Train, say every step on stderr, and end with predicted beside measured; write a Chrome trace where asked for.

    Under torchrun every rank trains and rank 0 speaks; of several nodes the one that has rank 0.

    Raises:
        InputError: a broken plan, or one that cannot be trained, or not with these flags.
        HostError: this machine has too few devices.
        RunError: the run failed.
        StoppedError: it was asked to stop, and did.
    """
    prediction = load_plan(path).prediction
    spoken = False

    def say(step: dict[str, Any]) -> None:
        nonlocal spoken
        spoken = True
        output.note(
            step_line(step["step"], step["loss"], step["seconds"], prediction, warm_up=not step["measured"])
        )

    report = run_plan(
        path,
        steps=steps,
        out_dir=out_dir,
        backend=_backend(backend),
        rate=Rate(peak=descent.rate, warm_up=descent.warm_up, decay=descent.decay),
        clip=descent.clip,
        data=data,
        saving=faults.saving,
        restarts=faults.restarts,
        timeout=faults.timeout,
        nodes=nodes,
        trace=trace,
        on_step=say,
        on_note=output.note,
    )
    if os.environ.get("RANK", "0") != "0" or (nodes.count > 1 and not spoken):
        return
    lines = comparison(report)
    rows = [
        {"quantity": line.quantity, "predicted": line.predicted, "measured": line.measured} for line in lines
    ]
    output.answer(
        {"schema": JSON_SCHEMA, "comparison": rows, "report": report.model_dump(mode="json")},
        rows,
        wrapped(
            f"{report.model}, {report.layout}, {steps} steps on {report.environment.device} "
            f"({report.environment.backend}); steps vary by {percent(report.step_spread)}"
        ),
        "",
        comparison_table(lines),
        *([wrapped(routers_line(report.routers))] if report.routers else []),
    )
    written = out_dir / "run-report.json"
    if trace is not None:
        output.note(f"Wrote {trace}: open it in ui.perfetto.dev or chrome://tracing")
    output.note(f"Wrote {written}. Next: meshwright plot accuracy {written}")


def dry_run(path: Path, *, output: Output) -> None:
    """Build the first rank of every stage without its devices and say what it holds.

    Raises:
        InputError: a broken plan, or one that cannot be trained.
        RunError: a rank cannot be built.
    """
    from executor.dry import build_without_devices

    plan = load_plan(path)
    layout = plan.layout
    built = build_without_devices(plan)
    rows = [asdict(rank) for rank in built]
    mesh = {axis: getattr(layout, axis) for axis in ("pp", "dp", "cp", "tp") if axis != "cp" or layout.cp > 1}
    degrees = " x ".join(f"{axis}{degree}" for axis, degree in mesh.items())
    output.answer(
        {"schema": JSON_SCHEMA, "mesh": mesh, "ranks": rows},
        rows,
        wrapped(
            f"{plan.model.name}, {layout}: built without devices on a mesh of {degrees}; the first rank of each"
            " stage holds"
        ),
        "",
        built_table(built),
    )
    output.note(f"Next: meshwright run {path}")


def _backend(name: str | None) -> Backend | None:
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]  # get_args forgets that they are literals
    if name is not None:
        raise UnknownNameError("backend", name, get_args(Backend), hint="nccl for GPUs, gloo for CPUs")
    return None
