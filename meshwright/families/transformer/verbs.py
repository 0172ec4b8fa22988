"""The verbs for transformers; each imports its work when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.inputs.options import TUNING
from meshwright.verbs.contract.family import Verbs
from planner.any_plan import AnyPlan
from planner.plan import Plan

if TYPE_CHECKING:
    from meshwright.families.transformer.advise import Advised
    from meshwright.families.transformer.compare import Compared
    from meshwright.families.transformer.estimate import EstimateQuestion
    from meshwright.families.transformer.explain import Explained, NotChosen
    from meshwright.families.transformer.measured import Measured
    from meshwright.families.transformer.planning.clusters import ClustersQuestion
    from meshwright.families.transformer.planning.largest import LargestQuestion
    from meshwright.families.transformer.planning.question import PlanQuestion
    from meshwright.families.transformer.reshard import Resharded
    from meshwright.families.transformer.run import TransformerRun
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawn import Drawing
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.export import ImportOptions
    from meshwright.verbs.largest import LargestOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.plot.requests import PictureRequest
    from meshwright.verbs.report.requests import PageRequest
    from planner.proof.checks import Check
    from planner.search.budget import Budget

_JOB = frozenset(
    {"gpus", "global_batch", "sequence", "precision", "dropout", "training", "stack", "profile"}
    | {"optimizer", "state_dtype"}
) | frozenset(TUNING)
_FITTING = frozenset({"confidence", "host_memory", "trainer"})
_LIMITS = frozenset({"fix", "forbid", "allow", "max_memory"})
_GOAL = frozenset(
    {"objective", "tokens", "samples", "epochs", "price", "deadline", "operations", "pick", "risk", "solver"}
)
_NONE: frozenset[str] = frozenset()

TAKES: Mapping[str, frozenset[str]] = {
    "plan": _JOB | _FITTING | _LIMITS | _GOAL | {"clusters", "largest", "longest", "by"},
    "estimate": _JOB | _FITTING | {"tokens", "samples", "epochs", "price"},
    "compare": frozenset({"trainer"}),
    "reshard": frozenset({"states"}),
    "explain": frozenset({"why_not"}),
    "advise": frozenset({"layout"}),
    "verify": frozenset({"solver"}),
    "report": frozenset({"tokens", "operations", "price", "start"}),
    "explore": (_JOB - {"dropout", "optimizer", "state_dtype", *TUNING})
    | frozenset({"trainer", "fix", "forbid", "allow", "tokens", "operations"}),
    "run": frozenset(
        {
            "compile",
            "clip",
            "rate_decay",
            "rate_warm_up",
            "trace",
            "profiler",
            "dry_run",
            "weights",
            "save_weights",
        }
    ),
    "emulate": frozenset({"rank", "fake", "steps"}),
    "measure": _NONE,
}


class TransformerVerbs(Verbs[Plan]):
    """Layouts of tensor, pipeline, context, expert and data parallelism."""

    noun = "a transformer"
    takes = TAKES

    @property
    def pictures(self) -> Mapping[str, Callable[[PictureRequest], Drawing]]:
        from meshwright.families.transformer.pictures import PICTURES

        return PICTURES

    def ask(self, options: PlanOptions) -> PlanQuestion | ClustersQuestion:
        from meshwright.families.transformer.planning.question import ask

        return ask(options)

    def ask_again(self, plan: Plan) -> PlanQuestion | ClustersQuestion:
        from meshwright.families.transformer.planning.question import ask_again

        return ask_again(plan)

    def ask_estimate(self, options: EstimateOptions) -> EstimateQuestion:
        from meshwright.families.transformer.estimate import ask

        return ask(options)

    trainers = frozenset({"megatron", "torchtitan", "deepspeed", "nemo", "accelerate", "axolotl"})

    def ask_import(self, trainer: str, options: ImportOptions) -> EstimateQuestion:
        from meshwright.families.transformer.importing import ask_import

        return ask_import(trainer, options)

    def largest(self, options: LargestOptions) -> LargestQuestion:
        from meshwright.families.transformer.planning.largest import ask

        return ask(options)

    def about(self, plan: Plan) -> str:
        from meshwright.render.goals import gpus_in_words

        return f"{plan.model.name} on {gpus_in_words(plan.question)}"

    def notes(self, plan: Plan) -> tuple[str, ...]:
        from planner.space.notes import notes_of

        return notes_of(plan.question, plan.restrictions.read)

    def figures(self, plan: Plan) -> dict[str, Any]:
        from cost_models.expected.steps import expected_step
        from meshwright.families.transformer.explain import figures_of
        from planner.repricing import priced_again

        priced = priced_again(plan)
        return figures_of(plan.question, priced, expected_step(plan.question, priced))

    def drift(self, plan: Plan, name: object) -> str:
        from meshwright.families.transformer.explain import drift_of

        return drift_of(plan, name)

    def explain(self, plan: Plan) -> Explained:
        from meshwright.families.transformer.explain import explain

        return explain(plan)

    def chapters(self, plan: Plan, request: PageRequest) -> Iterator[Chapter]:
        from meshwright.families.transformer.chapters import chapters

        return chapters(plan, request)

    def measure(self, plan: Plan, logs: Sequence[Path], traces: Sequence[Path]) -> Measured:
        from meshwright.families.transformer.measured import measure

        return measure(plan, logs, traces)

    def why_not(self, plan: Plan, layout: str) -> NotChosen:
        from meshwright.families.transformer.explain import why_not

        return why_not(plan, layout)

    def advise(self, plan: Plan, layout: str | None, budget: Budget) -> Advised:
        from cost_models.axes.layout import parse_layout
        from meshwright.families.transformer.advise import Advised
        from planner.explaining.advice import advise
        from planner.formats.registry import switch_words

        today, restrictions = plan.layout if layout is None else parse_layout(layout), plan.restrictions.read
        advice = advise(plan.question, today, restrictions, budget, switch_words)
        return Advised(advice=advice, restrictions=restrictions)

    def reshard(self, first: Plan, second: str | Path | AnyPlan, *, states: bool) -> Resharded:
        from meshwright.families.transformer.reshard import reshard

        return reshard(first, second, states=states)

    def compare(self, first: Plan, others: Sequence[str | Path | AnyPlan], trainer: str | None) -> Compared:
        from meshwright.families.transformer.compare import compare

        return compare(first, others, trainer)

    def verify(self, plan: Plan, budget: Budget) -> tuple[Check, ...]:
        from planner.proof.verifying import verify

        return tuple(verify(plan, budget))

    def running(self, plan: Plan) -> TransformerRun:
        from meshwright.families.transformer.run import TransformerRun

        return TransformerRun(plan)
