"""Verbs for transformers: each method calls the function that answers the verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshwright.inputs.options import TUNING
from meshwright.verbs.contract import Choices, Verbs
from planner.plan import Plan

if TYPE_CHECKING:
    from meshwright.families.transformer.compare import Compared
    from meshwright.families.transformer.estimate import Estimated
    from meshwright.families.transformer.explain import Advised, Explained, NotChosen
    from meshwright.families.transformer.question import ClustersQuestion, PlanQuestion
    from meshwright.families.transformer.run import TransformerRun
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.report import PageRequest
    from planner.search.search import Budget
    from planner.verify import Check

_SHOWN_JOB = frozenset({"gpus", "global_batch", "sequence", "precision", "training", "stack", "profile"})
_JOB = _SHOWN_JOB | {"dropout", "optimizer", "optimizer_in_backward", "state_dtype", *TUNING}
_FITTING = frozenset({"confidence", "host_memory", "trainer"})
_RATE = frozenset({"clip", "rate_decay", "rate_warm_up"})
_LIMITS = frozenset({"fix", "forbid", "allow", "max_memory"})
_AMOUNT = frozenset({"tokens", "samples", "epochs", "price"})
_GOAL = _AMOUNT | {"objective", "deadline", "operations", "pick", "risk", "solver"}

OPTIONS: Mapping[str, frozenset[str]] = {
    "plan": _JOB | _FITTING | _LIMITS | _GOAL | {"clusters", "largest", "longest", "by"},
    "estimate": _JOB | _FITTING | _AMOUNT,
    "compare": frozenset({"trainer"}),
    "reshard": frozenset({"states"}),
    "explain": frozenset({"why_not"}),
    "advise": frozenset({"layout"}),
    "verify": frozenset({"solver"}),
    "report": frozenset({"tokens", "operations", "price", "start"}),
    "explore": _SHOWN_JOB | {"trainer", "fix", "forbid", "allow", "tokens", "operations"},
    "run": _RATE | {"compile", "trace", "profiler", "dry_run", "weights", "save_weights"},
    "emulate": frozenset({"rank", "fake", "steps"}),
    "measure": frozenset(),
}


class TransformerVerbs(Verbs[Plan]):
    """Verbs for transformers, whose plans are layouts of tensor, pipeline, context, expert and data parallelism."""

    noun = "a transformer"
    options = OPTIONS

    @property
    def pictures(self) -> Mapping[str, Draw]:
        """Kinds of pictures of a transformer's plan → function that draws the kind."""
        from meshwright.families.transformer.pictures import pictures_of_plans

        return pictures_of_plans()

    def ask(self, options: PlanOptions) -> PlanQuestion | ClustersQuestion:
        """Read the options of `plan` for a transformer."""
        from meshwright.families.transformer.question import ask

        return ask(options)

    def ask_again(self, plan: Plan) -> PlanQuestion | ClustersQuestion:
        """Question that a transformer's plan file answers."""
        from meshwright.families.transformer.question import ask_again

        return ask_again(plan)

    def ask_estimate(self, options: EstimateOptions) -> Estimated:
        """Read the options of `estimate` for a transformer."""
        from meshwright.families.transformer.estimate import ask

        return ask(options)

    def about(self, plan: Plan) -> str:
        """Title of a plan: model and GPUs."""
        from meshwright.render.goals import gpus_in_words

        return f"{plan.model.name} on {gpus_in_words(plan.question)}"

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """Notes on effects that the plan's prices leave out."""
        from planner.space.obstacles import notes_of

        return (*plan.notes, *notes_of(plan.question, plan.restrictions.read))

    def figures(self, plan: Plan) -> dict[str, Any]:
        """JSON fields of a transformer's plan, with the price predicted today."""
        from meshwright.families.transformer.explain import figures

        return figures(plan)

    def drift(self, plan: Plan, name: object) -> str:
        """Note that the plan's predicted step time has changed since the plan was written to its file; empty if
        unchanged."""
        from meshwright.families.transformer.explain import drift

        return drift(plan, name)

    def explain(self, plan: Plan) -> Explained:
        """Explain the plan's bottleneck, and what would change it."""
        from meshwright.families.transformer.explain import explain

        return explain(plan)

    def chapters(self, plan: Plan, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of an HTML page about the plan, in order."""
        from meshwright.families.transformer.pictures import chapters

        return chapters(plan, request)

    def why_not(self, plan: Plan, layout: str) -> NotChosen:
        """Explain why a layout is not the plan."""
        from meshwright.families.transformer.explain import why_not

        return why_not(plan, layout)

    def advise(self, plan: Plan, layout: str | None, budget: Budget) -> Advised:
        """Advise how to change the plan, or the layout `layout` that is run today."""
        from meshwright.families.transformer.explain import advise

        return advise(plan, layout, budget)

    def compare(self, first: Plan, choices: Choices, trainer: str | None) -> Compared:
        """Price the plan beside other plans and layouts, under the trainer's rules."""
        from meshwright.families.transformer.compare import compare

        return compare(first, choices, trainer)

    def verify(self, plan: Plan, budget: Budget) -> Iterable[Check]:
        """Price the plan again and check its proof."""
        from planner.verify.plans import verify

        return verify(plan, budget)

    def running(self, plan: Plan) -> TransformerRun:
        """Plan made ready for `run` and `emulate`."""
        from meshwright.families.transformer.run import TransformerRun

        return TransformerRun(plan)
