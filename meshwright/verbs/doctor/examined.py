"""Examines every device and link, and reports slow ones."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import local_cluster
from cost_models.units import counted, format_bytes, format_seconds
from executor.doctor.examine import Assumptions, Examination, Finding, Judgement, examine, judge
from executor.requirements import require_torch
from meshwright.inputs.plans import any_plan_of
from meshwright.records import fields_of
from meshwright.render.tables import Table, table_of
from meshwright.render.words import percent, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.doctor import DoctorOptions
from planner.plan import AnyPlan, Plan


def examine_machine(options: DoctorOptions) -> Examined:
    """Measure every device and link. Raises InputError, HostError, RunError."""
    processes = options.processes
    if processes is not None and processes < 1:
        raise InputError(f"{processes} processes measure nothing")
    loaded = None if options.plan is None else any_plan_of(options.plan)
    require_torch("doctor")
    cluster = local_cluster(processes)
    on_gpu = cluster.gpu.kind != "cpu"
    of_job = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else None
    count = processes or of_job or _of_the_plan(loaded, cluster.num_gpus, on_gpu=on_gpu) or cluster.num_gpus
    assumed, notes = _assumed(loaded, cluster.gpu.name, on_gpu=on_gpu)
    seen = examine(count, device="cuda" if on_gpu else "cpu")
    return Examined(seen=seen, judgement=judge(seen, assumed), assumes=assumed is not None, notes=notes)


def _of_the_plan(plan: AnyPlan | None, devices: int, *, on_gpu: bool) -> int | None:
    """The plan's ranks, as far as there are GPUs here; processes of a CPU share it."""
    if plan is None or (plan.gpu.kind != "cpu") != on_gpu:
        return None
    return min(plan.num_ranks, devices) if on_gpu else plan.num_ranks


def _assumed(
    plan: AnyPlan | None, device: str, *, on_gpu: bool
) -> tuple[Assumptions | None, tuple[str, ...]]:
    """Speeds that the plan's prediction assumes, and notes on them."""
    if plan is None:
        return None, ()
    if (plan.gpu.kind != "cpu") != on_gpu:
        return None, (f"The plan is for {plan.gpu.name}, so its figures are not compared with this {device}",)
    if not isinstance(plan, Plan):
        return None, ("A plan of a recommender has no rates of products and links to compare with",)
    from executor.doctor.examine import assumptions_of

    basis = assumptions_of(plan)
    if basis.known:
        return basis, ()
    return basis, ("The plan's figures are from a datasheet: a device slower than them is not reported",)


_BUSY = 1.0
"""Processes that want a core, for each there is, from which on a host is busy with other work."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Examined(Answer):
    """A machine before a job."""

    seen: Examination
    judgement: Judgement
    assumes: bool = False
    """Whether a plan states the speeds that it assumes."""
    notes: tuple[str, ...] = ()
    """Notes on the comparison."""

    @property
    def passed(self) -> bool:
        """Whether nothing is slower than it should be."""
        return self.judgement.passed

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each check, in base units: work in a second; seconds of a launch and of a small message."""
        return [asdict(one) for one in self.judgement.checks]

    def document(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            **fields_of(self.seen, "backend", "seconds"),
            "checks": self.rows,
            "findings": [asdict(one) | {"sentence": sentence(one)} for one in self.judgement.findings],
            "hosts": [one.model_dump(mode="json") for one in self.seen.hosts],
            "readings": [one.model_dump(mode="json") for one in self.seen.readings],
            "notes": list(self.notes),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        seen = self.seen
        processes = Counter(one.host for one in seen.hosts)
        subject = f"{counted(len(seen.hosts), 'process')} on {counted(len(processes), 'host')}"
        devices = ", ".join(sorted({one.device for one in seen.hosts}))
        examined = f"{devices} ({seen.backend}), examined in {format_seconds(seen.seconds)}"
        lines: list[str | Table] = [wrapped(f"{subject}, {examined}"), "", self._table, ""]
        busy = sorted({one.host for one in seen.hosts if one.load > _BUSY * one.cores + processes[one.host]})
        reason = "runs other work, too: its links look slower than they are"
        lines += [wrapped(note) for note in (*(f"{host} {reason}" for host in busy), *self.notes)]
        if self.passed:
            lines.append("No device or link is slower than it should be.")
        return (*lines, *(wrapped(sentence(one)) for one in self.judgement.findings))

    @property
    def _table(self) -> Table:
        checks = self.judgement.checks
        columns = {
            "": [one.check for one in checks],
            "median": [_amount(one.check, one.typical) for one in checks],
            "worst": [_amount(one.check, one.worst) for one in checks],
            "where": [one.worst_of for one in checks],
            "noise": ["" if one.noise is None else percent(one.noise) for one in checks],
        }
        if self.assumes:
            assumed = [(one.check, one.assumed) for one in checks]
            columns["plan"] = ["" if value is None else _amount(check, value) for check, value in assumed]
        return table_of(columns, words=("", "where"))


def sentence(finding: Finding) -> str:
    """ "rank 2 (gpu17): matmul 30 % slower than the median"."""
    if not finding.than:
        return f"{finding.who}: {finding.check} gives wrong results"
    less = finding.check in ("free memory", "cores", "clock")
    return f"{finding.who}: {finding.check} {percent(finding.share)} {'less' if less else 'slower'} than {finding.than}"


def _amount(check: str, value: float) -> str:
    if check.startswith(("launch", "latency")):
        return f"{value * 1e6:.1f} us"
    written = {
        "matmul": f"{value / 1e12:.4g} TFLOP/s",
        "free memory": format_bytes(value),
        "clock": f"{value / 1e9:.2f} GHz",
        "cores": f"{value:.0f}",
    }
    return written.get(check, f"{value / 1e9:.3g} GB/s")
