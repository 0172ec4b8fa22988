"""The answer of `plan`: ranked layouts with their proof, as text, as a frame, as JSON, as pictures, as a plan file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.defaults import OWN_STACKS
from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep, expected_step
from cost_models.question import Question
from cost_models.units import counted, format_seconds
from meshwright.families.transformer.planning.facts import beside_facts, plan_facts
from meshwright.families.transformer.planning.recommendation import near_sentence, recommendation_record
from meshwright.families.transformer.planning.training import training_run
from meshwright.inputs.goals import Pick, objective_of
from meshwright.inputs.options import Goal
from meshwright.records.estimates import optimum_record, optimum_rows
from meshwright.render.estimates import warning_lines
from meshwright.render.expected import expected_record, nearest_sentence
from meshwright.render.goals import changes_worth, left_out_text, worth_sentence
from meshwright.render.ranked import certificate_sentence, optimum_table, placed_on_pools, question_header
from meshwright.render.tables import Table, in_notebook
from meshwright.render.words import NOT_PROVED, Fact, facts_text
from meshwright.verbs.contract.answer import AnswerBase
from planner.answers.optimum import POINTS, PROVEN, Optimum
from planner.answers.recommend import Recommendation
from planner.formats.registry import exporter_of
from planner.formats.trainers import trainers_of
from planner.objectives import Certificate
from planner.plan import Plan, PlanCache, make_plan, priced_again, save_plan
from planner.search.branching import SearchResult
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.plots.drawn import Drawing


_ODD_FACTOR = 7
"""Prime factors of a number of GPUs from which on few degrees divide both it and a model."""
_NOT_COMPARED = (
    "warning: time ran out before simpler layouts, and those that fit more surely, were compared: this is the fastest"
    " on paper; allow more with --time-limit"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned(AnswerBase):
    """A question, its best plans and the proof."""

    optimum: Optimum
    restrictions: Restrictions
    gpus_per_node: int
    """Of a whole node of the cluster that was asked for."""
    assumptions: tuple[str, ...] = ()
    """What had to be assumed to read the model."""
    recommendation: Recommendation | None = None
    """The layout to run, beside the fastest on paper; None where something else than the fastest step was asked for,
    or the search has no proof."""
    pick: Pick = "recommended"
    compares: bool = False
    """Whether simpler layouts were to be compared with the fastest."""
    """Which of the two `plan` is."""
    ranks: bool = False
    """Whether the ranking is printed below the answer."""

    @property
    def question(self) -> Question:
        """The question that was asked, on the best plan's number of GPUs."""
        return self.optimum.question

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the question the answer leaves out."""
        return notes_of(self.question, self.restrictions)

    @property
    def result(self) -> SearchResult:
        """The ranked layouts and their certificate."""
        return self.optimum.result

    @property
    def best(self) -> Estimate:
        """The best layout."""
        return self.result.best

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """All ranked layouts, best first."""
        return self.result.estimates

    @property
    def certificate(self) -> Certificate:
        """The proof that no layout is better, or how far it got."""
        return self.result.certificate

    @property
    def plan(self) -> Plan:
        """The layout that was picked, as a plan: the recommended one where there is one, or the best."""
        objective, told = self.optimum.for_file(self.gpus_per_node), self.recommendation
        if told is None or self.pick == "fastest":
            return make_plan(self.question, self.best, self.certificate, self.restrictions, objective)
        written = told.for_file(self.restrictions, self.certificate.top)
        return make_plan(
            self.question, told.estimate, told.certificate, told.within, objective, recommendation=written
        )

    @cached_property
    def _writer(self) -> tuple[str, str]:
        """The exporter that writes the plan; else none (""), and why none does."""
        return exporter_of(self.plan)

    @property
    def exporter(self) -> tuple[str, str]:
        """The same of a recommended layout."""
        return ("", "") if self.recommendation is None else self._writer

    def save(self, path: str | Path) -> None:
        """Write the plan that was picked; what was proved of its rivals is kept for the verbs that ask next."""
        from planner.explain.reasons import RIVALS

        plan, proof = self.plan, self.certificate
        save_plan(plan, Path(path))
        own = (plan.layout, plan.restrictions.read) == (self.best.layout, self.restrictions)
        proved = self.optimum.plain and proof.proved_by == "search" and not proof.undecided
        if own and proved and proof.top >= RIVALS:
            PlanCache(plan).store("rivals", [one.layout for one in self.estimates[:RIVALS]])

    def explain(self) -> str:
        """Say what binds the plan, what it wins by, and what would change it."""
        from meshwright.families.transformer.explain import Explained
        from planner.explain.reasons import explain

        plan = self.plan
        explanation = explain(plan, priced_again(plan))
        return repr(Explained(question=self.question, explanation=explanation, plan=plan))

    def why_not(self, layout: str) -> str:
        """Say why another layout is not the plan."""
        from meshwright.render.explanation import why_not_text
        from planner.explain.reasons import why_not

        plan = self.plan
        priced = priced_again(plan)
        return why_not_text(why_not(self.question, priced, layout, plan.user_restrictions), priced)

    def frontier(
        self,
        between: tuple[str, str] = ("time", "memory"),
        *,
        gpus: Sequence[int] = (),
        points: int | None = POINTS,
        time_limit: float | None = None,
    ) -> pd.DataFrame:
        """The exact frontier of two objectives, over these numbers of GPUs (default: the plan's); a row per point.

        `points` is how many at most where memory is one of them (None: all); `time_limit` is in seconds.
        """
        from planner.answers.frontier import exact_frontier, pareto_frame

        price = self.optimum.objective.price
        goals = [Goal(objective=name, price=price if name == "cost" else None) for name in between]
        first, second = (objective_of(goal)[0] for goal in goals)
        budget = Budget(time_limit=time_limit, keep_on_interrupt=True)
        return pareto_frame(
            exact_frontier(
                self.question,
                (first, second),
                sizes=gpus,
                points=points,
                restrictions=self.restrictions,
                budget=budget,
            )
        )

    def plot(self, kind: str, *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw `frontier`, `scaling` (at these numbers of GPUs), `time`, `memory` or `timeline`."""
        from meshwright.plots.curves.drawing import draw

        return draw(kind, self.question, self.estimates, gpus, self.restrictions)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout, with the objective's value where it is not the step time."""
        return optimum_rows(self.optimum)

    def document(self) -> dict[str, Any]:
        record = optimum_record(self.optimum, self.assumptions, self.notes)
        told, expected = self.recommendation, self.expected
        training = training_run(self.optimum.question, self.optimum.objective, self.picked, expected)
        record |= {
            "expected": expected_record(self.question, self.picked.layout, expected),
            "training": None if training is None else training.record(),
        }
        if worth := changes_worth(self.question, self.picked):
            record |= {"step_seconds_without": worth}
        return record | (
            {}
            if told is None
            else {
                "recommended": recommendation_record(told),
                "pick": self.pick,
                "export": dict(zip(("to", "why_not"), self.exporter, strict=True)),
            }
        )

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright plan` prints: what to train with, the runner-up, and the ranking where it was asked for."""
        told, picked = self.recommendation, self.picked
        head: tuple[str | Table, ...] = (
            question_header(self.question, picked.trust),
            "",
            facts_text(self.facts),
            *placed_on_pools(self.question, self.best),
        )
        below = [
            *warning_lines(picked),
            worth_sentence(self.question, picked),
            "" if told is None else nearest_sentence(self.question, picked.layout, told.expected),
        ]
        answer = *head, *filter(None, below)
        return (*answer, "", *self.ranking) if self.ranks else answer

    def _repr_html_(self) -> str:
        return in_notebook(replace(self, ranks=True).text)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What to train with, its step, memory and proof, and the runner-up."""
        told = self.recommendation
        return *plan_facts(self.optimum, told), *beside_facts(self.optimum, told)

    @property
    def ranking(self) -> tuple[str | Table, ...]:
        """The best layouts on paper in their order, with how many more come close."""
        near = "" if self.recommendation is None else near_sentence(self.recommendation)
        told = (
            certificate_sentence(self.certificate, self.best.compared_seconds) if self.optimum.plain else ""
        )
        below = [text for text in (told, near) if text]
        return optimum_table(self.optimum), *([""] if below else []), *below

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """What is said below the answer: the best of other precisions, what has no answer, what is not proved."""
        others = [
            f"note: in {other.training.precision} the best is {estimate.layout.brief},"
            f" {format_seconds(estimate.step_seconds)} a step"
            for other, estimate in self.optimum.others
        ]
        left_out = [text] if (text := left_out_text(self.optimum)) else []
        odd = [text] if (text := odd_count_note(self.question.cluster.num_gpus, self.certificate)) else []
        why = self.exporter[1]
        unwritten = [f"note: `export` cannot write this plan: {why}"] if why else []
        return [*others, *left_out, *odd, *unwritten, *([] if interrupted else self._unproved())]

    def _unproved(self) -> list[str]:
        undecided = self.certificate.undecided
        if self.optimum.gap > PROVEN:
            return [NOT_PROVED]
        if undecided:
            left = counted(undecided, "layout")
            return [f"warning: only the first is proved; {left} may still belong among the others"]
        ended = self.compares and self.recommendation is None and not self.question.has_pools
        return [_NOT_COMPARED] if ended else []

    @property
    def more(self) -> str:
        """What else there is to ask for."""
        return "" if self.ranks else "--top 5 prints the ranking"

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        if self.question.has_pools and not self.best.replicas:
            return f"meshwright explain {path}"
        return f"meshwright explain {path}, {running_command(self.plan, path, self._writer[0])}"

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """What the step of the layout that is saved should take."""
        told = self.recommendation
        return expected_step(self.question, self.picked) if told is None else told.expected

    @property
    def picked(self) -> Estimate:
        """The layout that is saved as the plan."""
        told = self.recommendation
        return self.best if told is None or self.pick == "fastest" else told.estimate


def running_command(plan: Plan, path: Path, writer: str) -> str:
    """How to run a plan: here where one node is enough and the stack is our own, else as files of the trainer whose
    exporter writes it; where none does (""), of its stack's."""
    cluster = plan.question.cluster
    if plan.stack.name in OWN_STACKS:
        here = cluster.num_gpus <= cluster.gpus_per_node or cluster.gpu.kind == "cpu"
        return f"meshwright run {path}" if here else f"meshwright export {path} --to slurm"
    trainer = writer or next(iter(trainers_of(plan.stack)), "")
    return f"meshwright export {path} --to {trainer}" if trainer else f"meshwright run {path}"


def odd_count_note(gpus: int, certificate: Certificate) -> str:
    """A note where the number of GPUs has a factor that leaves few layouts; else nothing."""
    largest = _largest_factor(gpus)
    if largest < _ODD_FACTOR:
        return ""
    less = next(one for one in range(gpus, 0, -1) if _largest_factor(one) <= 3)
    more = next(one for one in count(gpus) if _largest_factor(one) <= 3)
    layouts = counted(certificate.layouts, "layout")
    return f"note: {gpus} GPUs are a multiple of {largest}, which leaves {layouts}; --gpus {less} or {more} has more"


def _largest_factor(number: int) -> int:
    """The largest prime factor; 1 of 1."""
    largest, factor = 1, 2
    while number > 1:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return largest
