"""`verify`: prices a plan again and proves it again; is a plan file true?"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.flags import as_keywords, flag, plan_file
from meshwright.inputs.options import Proving
from meshwright.verbs.contract.command import command
from meshwright.verbs.contract.family import Verbs, require_options, require_verb, verbs_of_plan

if TYPE_CHECKING:
    from meshwright.terminal.output import Output
    from meshwright.verbs.verify.verified import Verified
    from planner.any_plan import AnyPlan
    from planner.proof.checks import Check
    from planner.search.budget import Budget
    from planner.serving.serving_plan import ServingPlan

VERIFY_SECONDS = 600.0
"""A proof is done again from its beginning, so it may take as long as the user lets a search take, and more."""


@dataclass(frozen=True)
class VerifyOptions(Proving):
    """What `verify` takes."""

    plan: str | Path | AnyPlan | ServingPlan = field(metadata=plan_file())
    _: KW_ONLY
    time_limit: float | None = flag(
        "SECONDS", "Then stop with the gap.", kind=float, least=0.001, unsaid=VERIFY_SECONDS
    )


@as_keywords(VerifyOptions)
def verify(options: VerifyOptions) -> tuple[Check, ...]:
    """Check a plan or a plan file; it is true where every check passed. Raises InputError: not a plan file."""
    from planner.proof.caches import verify_cache
    from planner.search.budget import Budget
    from planner.serving.serving_plan import ServingPlan

    plan = options.plan
    loaded = _read(plan) if isinstance(plan, (str, Path)) else plan
    if isinstance(loaded, ServingPlan):
        return verify_cache(loaded)
    verbs, budget = verbs_of_plan(loaded), options.budget or Budget(time_limit=options.time_limit)
    _prove_as_asked(budget, verbs, options)
    return tuple(verbs.verify(loaded, budget))


def _read(path: str | Path) -> AnyPlan | ServingPlan:
    """The plan in a file, of a cache too. Raises InputError: not a plan file."""
    from cost_models.files.reading import read_document
    from planner.plan_files import read_plan_in
    from planner.serving.serving_plan import serving_plan_in

    document = read_document(path)
    is_cache = isinstance(document.value, dict) and document.value.get("kind") == "serving-plan"
    return serving_plan_in(document) if is_cache else read_plan_in(document)


def _prove_as_asked(budget: Budget, verbs: Verbs[Any], options: VerifyOptions) -> None:
    """Let the solver that was said prove the plan again. Raises InputError where it means nothing to the family."""
    from meshwright.inputs.goals import proof_of

    if options.solver is not None:
        require_options(verbs, "verify", ("solver",))
        budget.proof = proof_of(options.solver)


@command(VerifyOptions, name="verify")
def verify_command(options: VerifyOptions, output: Output) -> None:
    """Price a plan again and prove it again; say what is not true."""
    from meshwright.terminal.progress import searching
    from meshwright.verbs.verify.verified import Verified
    from planner.serving.serving_plan import ServingPlan

    path = Path(str(options.plan))
    loaded = _read(path)
    if isinstance(loaded, ServingPlan):
        about, checks = f"cache of {loaded.question.model.name}", verify(loaded)
        _show(Verified(path=path, about=about, searched=True, checks=checks), output)
        return
    verbs = verbs_of_plan(loaded)
    require_verb(verbs, "verify")
    with searching(output, options.time_limit, doing=f"verifying {path.name}", keep=False) as budget:
        _prove_as_asked(budget, verbs, options)
        checks = tuple(verbs.verify(loaded, budget))
    about = verbs.about(loaded)
    figures = {} if loaded.problems() else verbs.figures(loaded)
    _show(Verified(path=path, about=about, searched=loaded.searched, checks=checks, figures=figures), output)


def _show(answer: Verified, output: Output) -> None:
    output.show(answer)
    if not answer.passed:
        output.end_with_no()
