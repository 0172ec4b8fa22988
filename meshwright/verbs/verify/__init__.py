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
    from planner.any_plan import AnyPlan
    from planner.proof.checks import Check
    from planner.search.budget import Budget

VERIFY_SECONDS = 600.0
"""A proof is done again from its beginning, so it may take as long as the user lets a search take, and more."""


@dataclass(frozen=True)
class VerifyOptions(Proving):
    """What `verify` takes."""

    plan: str | Path | AnyPlan = field(metadata=plan_file())
    _: KW_ONLY
    time_limit: float | None = flag(
        "SECONDS", "Then stop with the gap.", kind=float, least=0.001, unsaid=VERIFY_SECONDS
    )


@as_keywords(VerifyOptions)
def verify(options: VerifyOptions) -> tuple[Check, ...]:
    """Check a plan or a plan file; it is true where every check passed. Raises InputError: not a plan file."""
    from planner.any_plan import AnyPlan
    from planner.plan_files import read_any_plan
    from planner.search.budget import Budget

    plan = options.plan
    loaded = plan if isinstance(plan, AnyPlan) else read_any_plan(plan)
    verbs, budget = verbs_of_plan(loaded), options.budget or Budget(time_limit=options.time_limit)
    _prove_as_asked(budget, verbs, options)
    return tuple(verbs.verify(loaded, budget))


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
    from planner.plan_files import read_any_plan

    output.check_places()
    path = Path(str(options.plan))
    loaded = read_any_plan(path)
    verbs = verbs_of_plan(loaded)
    require_verb(verbs, "verify")
    with searching(output, options.time_limit, doing=f"verifying {path.name}", keep=False) as budget:
        _prove_as_asked(budget, verbs, options)
        checks = tuple(verbs.verify(loaded, budget))
    about = verbs.about(loaded)
    figures = {} if loaded.problems() else verbs.figures(loaded)
    answer = Verified(path=path, about=about, searched=loaded.searched, checks=checks, figures=figures)
    output.show(answer)
    if not answer.passed:
        output.end_with_no()
