"""`run` and `emulate` of a transformer's plan: predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.measure.any_report import AnyReport
from executor.measure.observed_run import tells_of_its_device
from executor.measure.report import RunReport
from executor.requirements import require_torch
from meshwright.records import frame_of
from meshwright.records.runs import comparison, emulated, planned_memory
from meshwright.render import measured
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.verbs.contract.answer import AnswerBase
from meshwright.verbs.contract.any_run import AnyEmulated, AnyRan
from meshwright.verbs.contract.family import Running
from planner.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from executor.emulate.dry_run import BuiltRank
    from executor.emulate.one_rank import EmulationReport


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran(AnyRan[RunReport]):
    """What a run measured; notebooks show it beside what was predicted."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "quantity": line.quantity,
                "predicted": line.predicted,
                "measured": line.measured,
                "noise": line.noise,
                "beyond_noise": line.beyond_noise if line.noise is not None else None,
            }
            for line in comparison(self.report)
        ]

    def document(self) -> dict[str, Any]:
        first = self.report.first_measured_step
        slow = [
            {
                "rank": one.rank,
                "part": one.part,
                "excess": one.excess,
                "since_step": first + one.since,
                "z": one.z,
            }
            for one in self.report.slow_ranks
        ]
        return super().document() | {"slow_ranks": slow}

    def told(self) -> Iterable[str | Table]:
        return measured.run_text(self.report, self.steps)

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units, and `noise`, the share of `measured`
        that the middle half of the steps spans."""
        return frame_of([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        return str(measured.comparison_table(comparison(self.report)))


@dataclass(frozen=True, kw_only=True, repr=False)
class Built(AnswerBase):
    """A plan and the ranks that were built of it."""

    plan: Plan
    ranks: Sequence[BuiltRank]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each rank."""
        return [asdict(rank) for rank in self.ranks]

    @property
    def mesh(self) -> dict[str, int]:
        """Degrees by axis; `cp` where there is any."""
        layout = self.plan.layout
        axes = ("pp", "dp", "cp", "tp") if layout.cp > 1 else ("pp", "dp", "tp")
        return {axis: getattr(layout, axis) for axis in axes}

    def document(self) -> dict[str, Any]:
        return {"mesh": self.mesh, "ranks": self.rows}

    @property
    def text(self) -> tuple[str | Table, ...]:
        degrees = " x ".join(f"{axis}{degree}" for axis, degree in self.mesh.items())
        told = wrapped(
            f"{self.plan.model.name}, {self.plan.layout}: built without devices on a mesh of {degrees}; the first"
            " rank of each stage holds"
        )
        return told, "", measured.built_table(self.ranks)


@dataclass(frozen=True, kw_only=True, repr=False)
class Emulated(AnyEmulated["EmulationReport"]):
    """A plan and the report of one of its ranks."""

    plan: Plan

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity: of the plan, predicted for what ran, and emulated."""
        planned = planned_memory(self.report)
        return [
            {
                "quantity": line.quantity,
                "plan": planned.get(line.quantity, line.predicted),
                "predicted": line.predicted,
                "emulated": line.measured,
            }
            for line in emulated(self.report)
        ]

    def told(self) -> Iterator[str | Table]:
        return emulation_text(self.report, self.plan)


@dataclass(frozen=True, slots=True)
class TransformerRun(Running):
    """A plan that is run."""

    plan: Plan

    def before(self, *, compiled: bool) -> str | None:
        return measured.of_another_stack(self.plan.stack.name, compiled=compiled)

    def step_line(self, step: Mapping[str, Any]) -> str:
        warm_up = not step["measured"]
        return measured.step_line(
            step["step"], step["loss"], step["seconds"], self.plan.prediction, warm_up=warm_up
        )

    def answer(self, report: AnyReport, steps: int) -> Ran:
        assert isinstance(report, RunReport)
        return Ran(report=report, steps=steps)

    def told_again(self, report: AnyReport) -> Ran:
        assert isinstance(report, RunReport)
        return self.answer(report, len(report.losses))

    def next_step(self, report: AnyReport, path: Path) -> str:
        assert isinstance(report, RunReport)
        return measured.next_step(comparison(report) if tells_of_its_device(report) else (), path)

    def built(self, config: Mapping[str, Any]) -> Built:
        require_torch("run --dry-run")
        from executor.emulate.dry_run import build_without_devices
        from executor.hugging_face.reading import Folder
        from executor.run_config import RunConfig, require_places
        from executor.transformer.training import require_inputs

        inputs = RunConfig(**{name: value for name, value in config.items() if name != "every"})
        require_places(inputs)
        require_inputs(self.plan, inputs, lambda note: None)
        if inputs.weights is not None:
            Folder(inputs.weights, self.plan.model).require_finite()
        return Built(plan=self.plan, ranks=build_without_devices(self.plan))

    def alone(self, rank: int, *, steps: int, fake: bool) -> Emulated:
        require_torch("emulate")
        from executor.emulate.one_rank import emulate

        return Emulated(plan=self.plan, report=emulate(self.plan, rank, steps=steps, fake=fake))


def emulation_text(report: EmulationReport, plan: Plan) -> Iterator[str | Table]:
    """What was emulated, the figures, and what to know of them."""
    yield wrapped(
        f"{report.model}, {report.layout}: rank {report.rank} of {report.layout.num_gpus} (stage"
        f" {report.pipeline_rank}) {'alone on ' + report.device if report.on_a_device else 'without a device'}"
    )
    yield ""
    yield _table(report)
    for sentence in _reasons(report, plan):
        yield wrapped(sentence)


def _table(report: EmulationReport) -> Table:
    """With a column for the plan where it is for something else than what ran."""
    planned = planned_memory(report)
    cells = [
        (
            measured.quantity_label(line.quantity),
            measured.quantity_text(line.quantity, planned.get(line.quantity, line.predicted)),
            measured.quantity_text(line.quantity, line.predicted),
            measured.quantity_text(line.quantity, line.measured),
            measured.error_text(line),
        )
        for line in emulated(report)
    ]
    if report.runs_otherwise:
        return table(("", "plan", "as run", "emulated", "error"), cells, words=("",))
    return table(("", "predicted", "emulated", "error"), [(one[0], *one[2:]) for one in cells], words=("",))


def _reasons(report: EmulationReport, plan: Plan) -> Iterator[str]:
    """Why columns differ, and what none of them has."""
    if report.runs_otherwise:
        here = report.device if report.on_a_device else "a CPU"
        yield (
            f"The plan is for stack {plan.stack.name} on {plan.question.cluster.gpu.name}. The executor's own"
            f" operators ran, on {here}, and keep other tensors: `as run` is the prediction for these, and the error"
            " is against it."
        )
    if not report.on_a_device:
        yield "Without a device, memory that kernels and libraries allocate for themselves is not counted."
        if report.layout.tp > 1:
            yield (
                "Under tp, activations being gathered count differently than on a device: 3 to 13 % of the peak where"
                " it was tried."
            )
    elif not report.on_planned_device:
        yield "Compute on another kind of device than the plan's says nothing of it, so none is shown."
