"""A run of a transformer's plan as it is told: before it, at each step, and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.measure.any_report import AnyReport
from executor.measure.observed_run import tells_of_its_device
from executor.measure.report import RunReport
from executor.requirements import require_torch
from meshwright.answers.built import Built
from meshwright.answers.emulated import Emulated
from meshwright.answers.run import Ran
from meshwright.families.verbs import Running
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.run import next_step, of_another_stack, step_line
from planner.plan import Plan


@dataclass(frozen=True, slots=True)
class TransformerRun(Running):
    """A plan that is run."""

    plan: Plan

    def before(self, *, compiled: bool) -> str | None:
        return of_another_stack(self.plan.stack.name, compiled=compiled)

    def step_line(self, step: Mapping[str, Any]) -> str:
        warm_up = not step["measured"]
        return step_line(step["step"], step["loss"], step["seconds"], self.plan.prediction, warm_up=warm_up)

    def answer(self, report: AnyReport, steps: int) -> Ran:
        assert isinstance(report, RunReport)
        return Ran(report=report, steps=steps)

    def told_again(self, report: AnyReport) -> Ran:
        assert isinstance(report, RunReport)
        return self.answer(report, len(report.losses))

    def next_step(self, report: AnyReport, path: Path) -> str:
        assert isinstance(report, RunReport)
        return next_step(comparison(report) if tells_of_its_device(report) else (), path)

    def built(self) -> Built:
        require_torch("run --dry-run")
        from executor.emulate.dry_run import build_without_devices

        return Built(plan=self.plan, ranks=build_without_devices(self.plan))

    def alone(self, rank: int, *, steps: int, fake: bool) -> Emulated:
        require_torch("emulate")
        from executor.emulate.one_rank import emulate

        return Emulated(plan=self.plan, report=emulate(self.plan, rank, steps=steps, fake=fake))
