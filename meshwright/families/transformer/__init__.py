"""Verbs for transformers: each method answers a verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from meshwright.inputs.options import Amount, Fitting, Goal, Job
from meshwright.verbs.contract import Choices, Verbs
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.measure.report import RunReport
    from meshwright.families.transformer.compare import Compared
    from meshwright.families.transformer.estimate import Estimated
    from meshwright.families.transformer.explain import Advised, Explained, NotChosen
    from meshwright.families.transformer.question import ClustersQuestion, PlanQuestion
    from meshwright.families.transformer.run import Built, Emulated, Ran
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.report import PageRequest
    from planner.search.search import Budget
    from planner.verify import Check

_SHOWN_JOB = frozenset({"gpus", "global_batch", "sequence", "precision", "training", "stack", "profile"})
_JOB, _FITTING, _AMOUNT, _GOAL = (
    frozenset(option.name for option in fields(group)) for group in (Job, Fitting, Amount, Goal)
)
_SEARCH = _GOAL | {"fix", "forbid", "allow", "max_memory", "pick", "risk", "solver"}
_RATE = frozenset({"clip", "rate_decay", "rate_warm_up"})


class TransformerVerbs(Verbs[Plan]):
    """Verbs for transformers, whose plans are layouts of tensor, pipeline, context, expert and data parallelism."""

    noun = "a transformer"
    options: ClassVar[Mapping[str, frozenset[str]]] = {
        "plan": _JOB | _FITTING | _SEARCH | {"clusters", "largest", "longest", "by", "today", "measured"},
        "estimate": _JOB | _FITTING | _AMOUNT | {"measured"},
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

    @property
    def pictures(self) -> Mapping[str, Draw]:
        """Kinds of pictures of a transformer's plan → function that draws the kind."""
        from meshwright.families.transformer.pictures import frontier
        from meshwright.plots.pictures import pictures_of

        return pictures_of(Plan) | {"frontier": frontier}

    def ask(self, options: PlanOptions) -> PlanQuestion | ClustersQuestion:
        """Read the options of `plan` for a transformer."""
        from meshwright.families.transformer.question import ask

        return ask(options)

    def ask_again(self, plan: Plan) -> PlanQuestion | ClustersQuestion:
        """Question that a transformer's plan file answers, with its restrictions."""
        from cost_models.specs.cluster import Precision
        from meshwright.families.transformer.question import TOP, ClustersQuestion, PlanQuestion
        from planner.answers.optimum import answered_question, offers_of
        from planner.objectives import Objective

        advice, objective = plan.recommendation, plan.objective
        question = replace(answered_question(plan), risk=plan.risk if advice is None else advice.risk)
        terms, precisions = Objective(), tuple[Precision, ...]()
        if objective is not None:
            terms, precisions = objective.terms, objective.precisions
            if offers := offers_of(plan):
                terms, limits = replace(terms, price=None), plan.restrictions.read
                asked = ClustersQuestion(offers=offers, objective=terms, restrictions=limits, pick="fastest")
                return replace(asked, precisions=precisions)
        return PlanQuestion(
            question=question,
            objective=terms,
            sizes=() if objective is None else objective.gpus,
            precisions=precisions,
            restrictions=plan.user_restrictions,
            top=TOP if advice is None else advice.top,
            pick="fastest" if advice is None else "recommended",
        )

    def ask_estimate(self, options: EstimateOptions) -> Estimated:
        """Read the options of `estimate` for a transformer."""
        from cost_models.axes.layout import parse_layout
        from meshwright.families.transformer.estimate import Estimated
        from meshwright.inputs.goals import trained_at
        from meshwright.inputs.measured import with_measured
        from meshwright.inputs.problems import Problems
        from meshwright.inputs.questions import question_of

        problems = Problems()
        answer = problems.read(question_of, options)
        problems.read(parse_layout, options.layout)
        problems.require()
        question, objective, words = trained_at(options, answer[0])
        if options.measured is not None:
            question = with_measured(question, options.layout, options.measured)
        return Estimated(
            question=question,
            layout=options.layout,
            trainer=options.trainer,
            assumptions=(*answer[1], *words),
            objective=objective,
        )

    def about(self, plan: Plan) -> str:
        """Title of a plan: model and GPUs."""
        from meshwright.render.goals import gpus_in_words

        return f"{plan.model.name} on {gpus_in_words(plan.question)}"

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """Notes on effects that the plan's prices leave out."""
        from planner.space.obstacles import notes_of

        return (*plan.notes, *notes_of(plan.question, plan.restrictions.read))

    def figures(self, plan: Plan) -> dict[str, Any]:
        """JSON fields of a transformer's plan: the price predicted today, and the step time expected in a real run."""
        from meshwright.families.transformer.explain import figures_of
        from planner.plan import priced_again

        return figures_of(plan.question, priced_again(plan))

    def drift(self, plan: Plan, name: object) -> str:
        """Note that the plan's predicted step time has changed since the plan was written to its file; empty if
        unchanged."""
        from cost_models.units import format_seconds
        from meshwright.render.words import drift_note
        from planner.plan import priced_again

        return drift_note(name, plan.prediction.step_seconds, priced_again(plan).step_seconds, format_seconds)

    def explain(self, plan: Plan) -> Explained:
        """Explain the plan's bottleneck, its rivals, and changes that would make it faster."""
        from meshwright.families.transformer.explain import Explained
        from planner.explain.reasons import explain
        from planner.plan import priced_again

        return Explained(explanation=explain(plan, priced_again(plan)), notes=self.notes(plan))

    def chapters(self, plan: Plan, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of an HTML page about the plan, in order."""
        from meshwright.families.transformer.pictures import chapters

        return chapters(plan, request)

    def why_not(self, plan: Plan, layout: str) -> NotChosen:
        """Explain why a layout is not the plan; if the layout names only some axes, a search sets the others. Raises
        InputError if it is no layout."""
        from meshwright.families.transformer.explain import NotChosen
        from planner.explain.reasons import why_not
        from planner.plan import priced_again

        priced = priced_again(plan)
        answer = why_not(plan.question, priced, layout, plan.user_restrictions)
        return NotChosen(answer=answer, plan=priced)

    def advise(self, plan: Plan, layout: str | None, budget: Budget) -> Advised:
        """Advise how to change the plan, or the layout `layout` that is run today."""
        from cost_models.axes.layout import parse_layout
        from meshwright.families.transformer.explain import Advised
        from planner.explain.advice import advise
        from planner.formats.registry import switch_words

        today, limits = plan.layout if layout is None else parse_layout(layout), plan.restrictions.read
        advice = advise(plan.question, today, limits, budget, switch_words)
        return Advised(advice=advice, restrictions=limits)

    def compare(self, first: Plan, choices: Choices, trainer: str | None) -> Compared:
        """Price the plan beside other plans and layouts, under the trainer's rules. Raises InputError listing all that
        cannot run."""
        from meshwright.families.transformer.compare import Compared, PricedPlan
        from meshwright.inputs.plans import is_plan, plan_of
        from meshwright.inputs.problems import Problems
        from planner.explain.reasons import complete_layout
        from planner.formats.trainers import trainer_named
        from planner.plan import priced_again
        from planner.rules.legality import require_legal

        if trainer is not None:
            trainer_named(trainer)

        def priced(choice: Any) -> PricedPlan:
            """Price a choice: a plan, or a layout for the first plan's question."""
            if is_plan(choice):
                plan = plan_of(choice)
                require_legal(plan.question, plan.layout, trainer)
                return PricedPlan(question=plan.question, estimate=priced_again(plan))
            limits = replace(first.user_restrictions, trainer=trainer or first.user_restrictions.trainer)
            completed = complete_layout(first.question, str(choice), limits)
            return PricedPlan(question=first.question, estimate=completed.estimate, completed=completed)

        problems = Problems()
        plans = [problems.read(priced, choice) for choice in (first, *choices)]
        problems.require()
        return Compared(plans=tuple(plans))

    def verify(self, plan: Plan, budget: Budget) -> Iterable[Check]:
        """Price the plan again and check its proof."""
        from planner.verify.plans import verify

        return verify(plan, budget)

    def caution(self, plan: Plan, *, compiled: bool) -> str:
        """Warning that the plan was made for another software stack than the one it runs on; empty if both are the
        same."""
        from cost_models.defaults import OWN_COMPILED, OWN_STACK

        stack = plan.stack.name
        runs = OWN_COMPILED if compiled or stack == OWN_COMPILED else OWN_STACK
        reason = f"the plan is for stack {stack}, but it runs on stack {runs}, where memory and times differ"
        return "" if stack == runs else f"note: {reason}; `plan --stack {runs}` makes a plan for it"

    def step_line(self, plan: Plan, step: Mapping[str, Any]) -> str:
        """Line on one training step: loss, measured and predicted seconds, MFU."""
        from meshwright.render.measured import step_line
        from meshwright.render.words import percent

        predicted = plan.prediction
        mfu = predicted.mfu * predicted.step_seconds / step["seconds"]
        return step_line(step, predicted.step_seconds, f"MFU {percent(mfu)} ({percent(predicted.mfu)})")

    def ran(self, report: RunReport, steps: int | None = None) -> Ran:
        """Answer of `run` from a run's report."""
        from meshwright.families.transformer.run import Ran

        return Ran(report=report, steps=steps or len(report.losses))

    def next_step(self, report: RunReport, path: Path) -> str:
        """Suggestion after the run: calibrate if errors exceed the noise, else draw the comparison."""
        from executor.measure.observed_run import tells_of_its_device
        from meshwright.records.runs import comparison
        from meshwright.render.measured import error_text, quantity_label
        from meshwright.render.words import sentence_list

        lines = comparison(report) if tells_of_its_device(report) else ()
        off = [f"{quantity_label(line.quantity)} {error_text(line)}" for line in lines if line.beyond_noise]
        if not off:
            return f"Next: meshwright plot accuracy {path}"
        command = f"Next: meshwright calibrate --from-run {path} -o profile.yaml"
        return f"Off by more than the noise: {sentence_list(off)}. {command}"

    def build(self, plan: Plan, config: Mapping[str, Any]) -> Built:
        """Build one rank of each pipeline stage without devices, after checking files, for `run --dry-run`."""
        from executor.requirements import require_torch

        require_torch("run --dry-run")
        from executor.emulate.dry_run import build_without_devices
        from executor.hugging_face.reading import Folder
        from executor.run_config import RunConfig, require_places
        from executor.transformer.training import require_inputs
        from meshwright.families.transformer.run import Built

        inputs = RunConfig(**{name: value for name, value in config.items() if name != "every"})
        require_places(inputs)
        require_inputs(plan, inputs, lambda note: None)
        if inputs.weights is not None:
            Folder(inputs.weights, plan.model).require_finite()
        return Built(plan=plan, ranks=build_without_devices(plan))

    def emulate(self, plan: Plan, rank: int, *, steps: int, fake: bool) -> Emulated:
        """Run one rank of the plan alone on this machine, for `emulate`."""
        from executor.requirements import require_torch

        require_torch("emulate")
        from executor.emulate.one_rank import emulate
        from meshwright.families.transformer.run import Emulated

        return Emulated(plan=plan, report=emulate(plan, rank, steps=steps, fake=fake))
