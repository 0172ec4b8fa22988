"""`plan --largest`, `plan --longest`: the largest size of a family, or the longest sequence of a model, that fits, with
each thing that host memory may hold."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import as_keywords, flag, part_of, switch
from meshwright.inputs.options import Limits, Request, Searching
from meshwright.verbs.contract.answers import LargestAnswer
from meshwright.verbs.contract.family import (
    FindsLargest,
    option_word,
    require_options,
    verbs_of_model,
    verbs_with,
)

if TYPE_CHECKING:
    from cost_models.specs.recommender.training import RecommenderTraining
    from cost_models.specs.training import TrainingSpec
    from meshwright.terminal.output import Output
    from meshwright.verbs.plan import PlanFlags


@dataclass(frozen=True, kw_only=True)
class LargestFlags:
    """Flags of `plan` that only the largest size knows."""

    largest: bool = switch("MODEL is a family: its largest size that fits; --largest --help.")
    longest: bool = switch("The longest sequence of MODEL that fits.")
    by: str | None = flag("WHAT", "What grows: depth (default), width or sequence.", only_with="largest")


@dataclass(frozen=True)
class LargestOptions(Searching, Limits, Request):
    """What `largest` takes; the model is a family."""

    training: str | Path | TrainingSpec | RecommenderTraining | None = None
    _: KW_ONLY
    by: str | None = None


@as_keywords(LargestOptions)
def largest(options: LargestOptions) -> LargestAnswer:
    """Find the largest size of a family that fits, with nothing in host memory and with each thing that the stack can
    keep there; every one proved: no larger size fits in any layout.

    A family is `llama` or `gpt`, by depth (more blocks) or by width (wider, as deep as published sizes are); by depth
    any model will do, and by sequence, where the model stays and its sequences grow by 256 tokens. The rest of the
    question is said as to `plan`; without a training job it is 8 sequences of 2,048 tokens a step on every GPU.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
    """
    family: FindsLargest = verbs_with("largest")
    return family.largest(options).answer(options.spending)


def answer_largest(options: PlanFlags, output: Output) -> None:
    """Read the question, search and print."""
    from meshwright.inputs.problems import Problems
    from meshwright.terminal.progress import searching

    if options.longest:
        options = replace(options, largest=True, by=options.by or "sequence")
    require_options(verbs_of_model(options.model), "plan", ("largest",))
    family: FindsLargest = verbs_with("largest")
    problems = Problems()
    problems.read(lambda: _require_meant(options))
    question = problems.read(lambda: family.largest(part_of(options, LargestOptions)))
    problems.read(lambda: output.check_places(options.out))
    problems.require()
    assert question is not None
    output.tell_of(question)
    with searching(output, options.time_limit) as budget:
        answer = question.answer(budget)
    kept = options.out if answer.plan is not None else None
    output.show(answer, kept)
    for remark in answer.remarks:
        output.note(remark)
    output.wrote(kept, lambda file: f"meshwright explain {file}, meshwright run {file}")
    if budget.interrupted:
        output.end_interrupted("sizes that were not tried may fit")
    if answer.plan is None:
        output.end_with_no()


_OTHERS = (
    "price",
    "tokens",
    "deadline",
    "operations",
    "objective",
    "pick",
    "risk",
    "top",
    "replay",
    "solver",
)
"""Flags of `plan` that mean nothing here."""


def _require_meant(options: PlanFlags) -> None:
    """Raises InputError for flags of another question."""
    if options.longest and options.by != "sequence":
        raise InputError("`--longest` is --by sequence", hint="leave --by out")
    if not options.largest:
        raise InputError("`--by` says what grows from size to size", hint="it goes with --largest")
    if given := [option_word(name) for name in _OTHERS if getattr(options, name) is not None]:
        raise InputError(
            "`--largest` takes fewer flags",
            problems=[Problem(word, "means nothing beside --largest") for word in given],
        )
