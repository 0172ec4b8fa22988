"""Answers of the Python API: what was asked with what was found, as text, as a frame, and as HTML in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.estimate import Estimate
from cost_models.question import Question
from meshwright.api.goals import Goal, objective_of
from meshwright.cli.verbs.explaining import explained
from meshwright.plots.drawing import Drawing, draw
from meshwright.records.estimates import estimate_row
from meshwright.render.plans.estimates import estimate_text
from meshwright.render.plans.explanation import explanation_text, why_not_text
from meshwright.render.plans.ranked import answer_sentence, optimum_cells, optimum_table, question_header
from planner.answers.frontier import pareto_frame
from planner.answers.optimum import Optimum
from planner.answers.pareto import POINTS, exact_frontier
from planner.explaining.explain import Origin
from planner.explaining.why_not import why_not
from planner.plan import Certificate, Plan, make_plan
from planner.plan_files import save_plan
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.notes import notes_of
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned:
    """A question, its best plans and the proof."""

    optimum: Optimum
    restrictions: Restrictions
    gpus_per_node: int
    """Of a whole node of the cluster that was asked for."""
    assumptions: tuple[str, ...] = ()
    """What had to be assumed to read the model."""

    @property
    def question(self) -> Question:
        """On the best plan's number of GPUs."""
        return self.optimum.question

    @property
    def notes(self) -> tuple[str, ...]:
        """What the question says that its answer passes over."""
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
        """Why none is better."""
        return self.result.certificate

    @property
    def plan(self) -> Plan:
        """The best layout as a plan."""
        objective = self.optimum.written(self.gpus_per_node)
        return make_plan(self.question, self.best, self.certificate, self.restrictions, objective)

    def save(self, path: str | Path) -> None:
        """Write the best plan."""
        save_plan(self.plan, Path(path))

    def explain(self) -> str:
        """What binds the plan, what it wins by, what would change it."""
        return explanation_text(explained(self.plan, self.best))

    def why_not(self, layout: str) -> str:
        """Why a layout is not the plan."""
        origin = Origin.of(self.plan)
        return why_not_text(why_not(self.question, self.best, layout, self.restrictions, origin), self.best)

    def to_frame(self) -> pd.DataFrame:
        """A row per layout; seconds, bytes, shares."""
        return _frame(self.estimates)

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
        return draw(kind, self.question, self.estimates, gpus, self.restrictions)

    def __repr__(self) -> str:
        header, proof = self._around_the_table()
        return f"{header}\n\n{optimum_table(self.optimum)}\n\n{proof}"

    def _repr_html_(self) -> str:
        header, proof = self._around_the_table()
        table = self._in_words().to_html(index=False, border=0)
        return f"<p>{_html(header)}</p>{table}<p>{_html(proof)}</p>"

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright plan`."""
        import pandas as pd

        headers, rows = optimum_cells(self.optimum)
        return pd.DataFrame(rows, columns=list(headers))

    def _around_the_table(self) -> tuple[str, str]:
        """What was asked, and why nothing is better."""
        header = question_header(self.question, self.best.trust, self.best.memory_limit)
        return header, answer_sentence(self.optimum)


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimated:
    """A question and the price of one layout."""

    question: Question
    estimate: Estimate
    assumptions: tuple[str, ...] = ()
    split_chosen: bool = False
    """The layout did not say how many blocks go on which stage."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the question says that its answer passes over."""
        return notes_of(self.question)

    @property
    def plan(self) -> Plan:
        """It as a plan that was asked for, not searched."""
        return make_plan(self.question, self.estimate, None)

    def explain(self) -> str:
        """What binds the layout, what a search finds, and what would change its step."""
        return explanation_text(explained(self.plan, self.estimate))

    def why_not(self, layout: str) -> str:
        """How another layout does beside it."""
        origin = Origin.of(self.plan)
        return why_not_text(why_not(self.question, self.estimate, layout, origin=origin), self.estimate)

    def save(self, path: str | Path) -> None:
        """Write that plan."""
        save_plan(self.plan, Path(path))

    def to_frame(self) -> pd.DataFrame:
        """One row; seconds, bytes, shares."""
        return _frame([self.estimate])

    def plot(self, kind: str, *, gpus: Sequence[int] | None = None) -> Drawing:
        """As for a plan; `scaling` has the best layout at each number of GPUs, not this one."""
        return draw(kind, self.question, [self.estimate], gpus)

    def __repr__(self) -> str:
        return estimate_text(self.estimate, chosen=self.split_chosen)

    def _repr_html_(self) -> str:
        return f"<p>{_html(repr(self))}</p>"


def _frame(estimates: Sequence[Estimate]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([estimate_row(estimate) for estimate in estimates])


def _html(text: str) -> str:
    from html import escape

    return escape(text).replace("\n", "<br>")
