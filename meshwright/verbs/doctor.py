"""`doctor`: measure every device and link before a job starts, and report slow ones."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.flags import Options, as_keywords, flag
from cost_models.units import counted, format_bytes, format_seconds
from meshwright.records import fields_of
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from executor.doctor.examine import Examination, Finding, Judgement
    from meshwright.inputs.plans import HasPlan
    from meshwright.render.tables import Table
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan


class DoctorOptions(Options):
    """Options of `doctor`: the plan to compare devices with, and the number of processes."""

    plan: AnyPlan | HasPlan | str | Path | None = flag("PLAN", kind=Path, completion="plans")
    """Compare the devices with the constants this plan assumes.

    Plan to compare devices with; None: devices are compared with one another only.
    """
    processes: int | None = flag("N", minimum=1, kw_only=True)
    """Processes; default: one per device, or the plan's.

    Processes measured at once; None: those of the job, or of the plan, as far as devices allow.
    """


@as_keywords(DoctorOptions)
def doctor(options: DoctorOptions) -> Examined:
    """Measure matrix products, memory, kernel launches and links of every device, and report slow ones.

    Started by torchrun on each node of a job, it examines all nodes, and every rank gets the answer; otherwise it
    examines this machine.

    Raises:
        InputError: not a plan file, or no process.
        HostError: no torch, too few devices, or another number than the job has.
        RunError: a process failed.
    """
    from cost_models.files.catalog import local_cluster
    from executor.doctor import examine as examining
    from executor.requirements import require_torch
    from meshwright.inputs.plans import any_plan_of
    from planner.plan import Plan

    processes = options.processes
    if processes is not None and processes < 1:
        raise InputError(f"{processes} processes measure nothing")
    plan = None if options.plan is None else any_plan_of(options.plan)
    require_torch("doctor")
    cluster = local_cluster(processes)
    on_gpu = cluster.gpu.kind != "cpu"
    alike = plan is not None and (plan.gpu.kind != "cpu") == on_gpu
    of_job = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else None
    planned = None
    if plan is not None and alike:  # as far as there are GPUs here; processes of a CPU share it
        planned = min(plan.num_ranks, cluster.num_gpus) if on_gpu else plan.num_ranks
    count = processes or of_job or planned or cluster.num_gpus
    seen = examining.examine(count, device="cuda" if on_gpu else "cpu")
    assumed, notes = None, tuple[str, ...]()
    if isinstance(plan, Plan) and alike:
        assumed = examining.assumptions_of(plan)
        if not assumed.known:
            notes = ("The plan's figures are from a datasheet: a device slower than them is not reported",)
    elif alike:
        notes = ("A plan of a recommender has no rates of products and links to compare with",)
    elif plan is not None:
        device = cluster.gpu.name
        notes = (f"The plan is for {plan.gpu.name}, so its figures are not compared with this {device}",)
    judgement = examining.judge(seen, assumed)
    return Examined(seen=seen, judgement=judgement, assumes=assumed is not None, notes=notes)


@command(DoctorOptions)
def doctor_command(options: DoctorOptions, output: Output) -> None:
    """Look for slow devices and links before a job."""
    from meshwright.terminal.progress import progress

    with progress(output) as reporter:
        reporter.say("examining devices and links")
        answer = doctor(options.plan, processes=options.processes)
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank examines, and rank 0 tells of it
        output.show(answer)
    if not answer.passed:
        output.end_with_no()


_BUSY = 1.0
"""Runnable processes per core, beyond those that measure, above which a host counts as busy with other work."""


class Examined(Answer):
    """Answer of `doctor`: measured devices and links, and which of them are slow."""

    seen: Examination
    judgement: Judgement
    assumes: bool = False
    """Whether a plan's assumed speeds are in the table."""
    notes: tuple[str, ...] = ()
    """Notes on the comparison with the plan."""

    @property
    def passed(self) -> bool:
        """Whether no device or link is slower than it should be."""
        return self.judgement.passed

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each check, in base units: rates per second; seconds of a launch and of a small message."""
        return [asdict(one) for one in self.judgement.checks]

    def document(self) -> dict[str, Any]:
        """JSON document: checks, findings, hosts and readings."""
        return {
            "passed": self.passed,
            **fields_of(self.seen, "backend", "seconds"),
            "checks": self.rows,
            "findings": [asdict(one) | {"sentence": sentence(one)} for one in self.judgement.findings],
            "hosts": [one.model_dump(mode="json") for one in self.seen.hosts],
            "readings": [one.model_dump(mode="json") for one in self.seen.readings],
            "notes": list(self.notes),
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: devices, the table of checks, and what is slow."""
        from meshwright.render.tables import table_of
        from meshwright.render.words import percent, wrapped

        seen, checks = self.seen, self.judgement.checks
        processes = Counter(one.host for one in seen.hosts)
        subject = f"{counted(len(seen.hosts), 'process')} on {counted(len(processes), 'host')}"
        devices = ", ".join(sorted({one.device for one in seen.hosts}))
        examined = f"{devices} ({seen.backend}), examined in {format_seconds(seen.seconds)}"
        columns = {
            "": [one.check for one in checks],
            "median": [_amount(one.check, one.typical) for one in checks],
            "worst": [_amount(one.check, one.worst) for one in checks],
            "where": [one.worst_of for one in checks],
            "noise": ["" if one.noise is None else percent(one.noise) for one in checks],
        }
        if self.assumes:
            assumed = [(one.check, one.assumed) for one in checks]
            columns["plan"] = ["" if size is None else _amount(check, size) for check, size in assumed]
        busy = sorted({one.host for one in seen.hosts if one.load > _BUSY * one.cores + processes[one.host]})
        reason = "runs other work, too: its links look slower than they are"
        ends = [f"{host} {reason}" for host in busy] + list(self.notes)
        ends += ["No device or link is slower than it should be."] * self.passed
        ends += [sentence(one) for one in self.judgement.findings]
        table = table_of(columns, words=("", "where"))
        return wrapped(f"{subject}, {examined}"), "", table, "", *map(wrapped, ends)


def sentence(finding: Finding) -> str:
    """Sentence on a slow device or link: "rank 2 (gpu17): matmul 30 % slower than the median"."""
    from meshwright.render.words import percent

    if not finding.than:
        return f"{finding.who}: {finding.check} gives wrong results"
    less = finding.check in ("free memory", "cores", "clock")
    return f"{finding.who}: {finding.check} {percent(finding.share)} {'less' if less else 'slower'} than {finding.than}"


_UNITS = {"matmul": (1e12, ".4g", " TFLOP/s"), "clock": (1e9, ".2f", " GHz"), "cores": (1.0, ".0f", "")}
"""Check → base units in its unit, format, and unit; other checks are in GB/s."""


def _amount(check: str, value: float) -> str:
    """Measured value of a check as text, in its unit."""
    if check.startswith(("launch", "latency")):
        return f"{value * 1e6:.1f} us"
    if check == "free memory":
        return format_bytes(value)
    scale, digits, unit = _UNITS.get(check, (1e9, ".3g", " GB/s"))
    return f"{value / scale:{digits}}{unit}"
