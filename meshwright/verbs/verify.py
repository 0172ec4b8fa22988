"""`verify`: check a plan file by pricing and proving the plan again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.flags import as_keywords, flag, plan_file
from cost_models.units import counted
from meshwright.inputs.options import Proving
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import command, require_options, verbs_of_plan

if TYPE_CHECKING:
    from meshwright.render.tables import Table
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan
    from planner.serving import ServingPlan
    from planner.verify import Check

VERIFY_SECONDS = 600.0
"""Default time limit in seconds; a proof starts over, so it may take longer than the search that made the plan."""


class VerifyOptions(Proving):
    """Options of `verify`: the plan, and solver and time limit of the proof."""

    plan: str | Path | AnyPlan | ServingPlan = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    _: KW_ONLY
    time_limit: float | None = flag("SECONDS", minimum=0.001, command_default=VERIFY_SECONDS)
    """Time limit of the proof; then the gap so far is printed."""


@as_keywords(VerifyOptions)
def verify(options: VerifyOptions) -> tuple[Check, ...]:
    """Check a plan or plan file by pricing and proving the plan again; it is verified if every check passes. Raises
    InputError for a file that is no plan."""
    from meshwright.inputs.goals import proof_of
    from planner.search.search import Budget
    from planner.serving import ServingPlan
    from planner.verify.recommenders import verify_cache

    plan, solver = options.plan, options.solver
    budget = options.budget or Budget(time_limit=options.time_limit)
    loaded = _read(plan) if isinstance(plan, (str, Path)) else plan
    if isinstance(loaded, ServingPlan):
        if solver is not None:
            raise InputError("--solver does not go with the plan of a cache", hint="leave it out")
        return verify_cache(loaded)
    verbs = verbs_of_plan(loaded)
    require_options(verbs, "verify", () if solver is None else ("solver",))
    budget.proof = budget.proof if solver is None else proof_of(solver)
    return tuple(verbs.verify(loaded, budget))


def _read(path: str | Path) -> AnyPlan | ServingPlan:
    """Load a training or serving plan from its file. Raises InputError for a file that is no plan."""
    from cost_models.files.reading import read_document
    from planner.plan import read_plan_in
    from planner.serving import serving_plan_in

    document = read_document(path)
    is_cache = isinstance(document.value, dict) and document.value.get("kind") == "serving-plan"
    return serving_plan_in(document) if is_cache else read_plan_in(document)


@command(VerifyOptions)
def verify_command(options: VerifyOptions, output: Output) -> None:
    """Price a plan again and prove it again; say what is not true."""
    from meshwright.terminal.progress import searching
    from planner.serving import ServingPlan

    path = Path(str(options.plan))
    loaded = _read(path)
    with searching(output, options.time_limit, doing=f"verifying {path.name}", keep=False) as budget:
        checks = verify(loaded, solver=options.solver, budget=budget)
    figures: Mapping[str, Any] = {}
    if isinstance(loaded, ServingPlan):
        about, searched = f"cache of {loaded.question.model.name}", True
    else:
        output.remark(loaded.notes)
        verbs = verbs_of_plan(loaded)
        about, searched = verbs.about(loaded), loaded.searched
        figures = {} if loaded.problems() else verbs.figures(loaded)
    answer = Verified(path=path, about=about, searched=searched, checks=checks, figures=figures)
    output.show(answer)
    if not answer.passed:
        output.end_with_no()


_VERDICTS = {True: "pass", False: "FAIL", None: "open"}


class Verified(Answer):
    """Answer of `verify`: a plan file and the result of each check."""

    path: Path
    about: str
    """Title of the plan: model and GPUs."""
    searched: bool
    """Whether the plan was searched for and so claims to be optimal."""
    checks: tuple[Check, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    """JSON fields of the plan's price, as in `explain`."""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each check, with its verdict."""
        found = [(one.name, _VERDICTS[one.passed], one.what) for one in self.checks]
        return [dict(zip(("check", "verdict", "found"), row, strict=True)) for row in found]

    def document(self) -> dict[str, Any]:
        """JSON document: whether the plan is verified, its price, and the checks."""
        head = {"plan": str(self.path), "verified": self.passed, "proof": self.searched}
        checks = [{"check": one.name, "passed": one.passed, "found": one.what} for one in self.checks]
        return {**head, **self.figures, "checks": checks}

    def view(self) -> tuple[str | Table, ...]:
        """Text: the table of checks, and the conclusion."""
        from meshwright.render.tables import table
        from meshwright.render.words import wrapped

        headers, number = ("check", "verdict", "found"), counted(len(self.checks), "check")
        verdicts = [check.passed for check in self.checks]
        conclusion = f"Verified: {number}, prices and proof"
        if failed := verdicts.count(False):
            conclusion = f"Not verified: {failed} of {number} failed"
        elif still_open := verdicts.count(None):
            conclusion = f"Not verified: {still_open} of {number} could not be decided in time"
        elif not self.searched:
            reason = "the layout was asked for, not searched, so the file claims no optimum"
            conclusion = f"Verified as a price: {reason}"
        cells = [tuple(row.values()) for row in self.rows]
        checks = table(headers, cells, words=("found",), names=("check", "verdict"))
        return wrapped(f"{self.path.name}: {self.about}"), "", checks, "", wrapped(conclusion)
