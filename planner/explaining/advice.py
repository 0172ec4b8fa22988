"""Advice: from what runs today to the best plan: switches of the stack, then the three changes of the layout that gain
most for their trouble.

The path (`planner.explaining.change_path`) takes one change after another; it ends at the optimum of the search, with
its proof.

Switches of the software stack as changes of what is run: overlaps, kernels, fusions, each by itself.

A switch is a fact of the stack that its own catalogue entry has otherwise: its trainer can, and the run does not. None
re-shards anything, so they come before changes of the layout, the one that gains most first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.pipeline.estimating import estimate
from cost_models.question import MixedQuestion, Question
from cost_models.specs.cluster import FULL
from planner.explaining.change_path import LEAST_GAIN, Change, ChangePath
from planner.explaining.changes import Trouble, changed_words, trouble_between
from planner.explaining.explain import gain
from planner.rules.legality import check
from planner.search.budget import Budget
from planner.search.given_layout import place_layout
from planner.search.result import SearchResult
from planner.space.gpu_counts import on_whole_nodes, possible, resized
from planner.space.restrictions import Restrictions

SWITCHES = (
    "overlap_gradient_reduce",
    "overlap_parameter_gather",
    "overlap_tensor_parallel",
    "overlap_pipeline_sends",
    "expert_dispatch",
    "attention",
    "transformer_engine",
    "fused_elementwise",
    "fused_norms",
    "fused_gradient_accumulation",
    "fused_loss",
    "extra_loss_copies",
    "deterministic",
    "launches_block",
)
"""Facts of a stack that a run switches and that leave its mathematics alone."""
Spelled = Callable[[Question, Question, Layout], str]
"""The words in which a trainer is told to go from one question to the other, which has another switch; empty: none."""


def switched(
    question: Question, today: Estimate, restrictions: Restrictions, spelled: Spelled
) -> tuple[Question, Estimate, list[Change]]:
    """The question with every switch that gains, today's layout priced for it, and the switches, most gain first."""
    left = {name: _with(question, name) for name in _otherwise(question)}
    alone = {name: priced for name, one in left.items() if (priced := _priced(one, today, restrictions))}
    here, changes = today, list[Change]()
    while alone:
        tried = {name: _with(question, name) for name in alone}
        found = {name: priced for name, one in tried.items() if (priced := _priced(one, today, restrictions))}
        best = max(found, key=lambda name: (gain(here, found[name]), name), default="")
        if not best or gain(here, found[best]) < LEAST_GAIN:
            break
        words = spelled(question, tried[best], today.layout) or _plainly(tried[best], best)
        changes.append(
            Change(words=words, trouble="a flag", by_itself=alone.pop(best), with_earlier=found[best])
        )
        question, here = tried[best], found[best]
    return question, here, changes


def _otherwise(question: Question) -> Iterator[str]:
    """Switches that the stack's own entry of the catalogue has otherwise; none of a stack that is the user's own."""
    if question.stack.name in catalog.names("stacks"):
        usual = catalog.load_stack(question.stack.name)
        yield from (name for name in SWITCHES if getattr(usual, name) != getattr(question.stack, name))


def _with(question: Question, name: str) -> Question:
    value = getattr(catalog.load_stack(question.stack.name), name)
    return replace(question, stack=question.stack.model_copy(update={name: value}))


def _priced(question: Question, today: Estimate, restrictions: Restrictions) -> Estimate | None:
    """Today's layout under a question; None where it breaks a rule, or does not fit though today's does."""
    try:
        if check(question, today.layout, restrictions.trainer):
            return None
        found = estimate(question, today.layout).within(restrictions.max_memory)
    except InputError:
        return None
    return found if found.fits or not today.fits else None


def _plainly(question: Question, name: str) -> str:
    value = getattr(question.stack, name)
    return f"{name}: {str(value).lower() if isinstance(value, bool) else value} in the stack"


CHANGES = 3
"""Most changes of the layout on a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherQuestion:
    """The best plan of another question, worth more trouble than a change of layout: other numerics or more GPUs."""

    words: str
    """The flag of `plan` that asks it: "--precision fp8"."""
    trouble: str
    estimate: Estimate
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Today's layout, the changes that pay most, and the best plan."""

    question: Question
    """With the switches that are changed."""
    today: Estimate
    changes: tuple[Change, ...]
    result: SearchResult
    """Result of the search: its best plan is where the path ends, its certificate how far that is proven."""
    other_questions: tuple[OtherQuestion, ...] = ()

    @property
    def best(self) -> Estimate:
        """The best plan; the layout reached already, where the search covers nothing faster."""
        reached = self.reached
        found = self.result.best
        return found if found.step_seconds < reached.step_seconds or not reached.fits else reached

    @property
    def reached(self) -> Estimate:
        """Today's layout after the last change."""
        return self.changes[-1].with_earlier if self.changes else self.today

    @property
    def rest(self) -> str:
        """How the best plan differs besides, in words of the notation; empty where it differs only in placement."""
        return changed_words(self.reached.layout, self.best.layout)

    @property
    def rest_trouble(self) -> Trouble:
        """The trouble of the rest."""
        return trouble_between(self.reached.layout, self.best.layout)


def advise(
    question: Question,
    today: Layout,
    restrictions: Restrictions,
    budget: Budget,
    spelled: Spelled = lambda before, after, layout: "",
) -> Advice:
    """The path from today's layout to the best one within the restrictions; `spelled` names switches as the trainer
    does.

    Raises:
        InputError: the layout breaks a rule, or the cluster has several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    if isinstance(question, MixedQuestion):
        raise InputError(
            f"advice is for one kind of GPU, and `{question.cluster.name}` has several pools",
            hint="meshwright plan finds the best for all of them",
        )
    running = estimate(question, place_layout(question, today)).within(restrictions.max_memory)
    asked, switched_on, switches = switched(question, running, restrictions, spelled)
    result = budget.search(asked, restrictions, top=1)
    if result is None:
        raise budget.nothing_found()
    as_run = ChangePath(question, restrictions, running)
    path = ChangePath(asked, restrictions, switched_on, as_run) if switches else as_run
    while len(path.changes) < CHANGES and path.add_change():
        pass
    others = (*_narrow_gradients(asked, result.best), *_other_questions(asked, restrictions, budget))
    return Advice(
        question=asked,
        today=running,
        changes=(*switches, *path.changes),
        result=result,
        other_questions=others,
    )


def _narrow_gradients(question: Question, best: Estimate) -> Iterator[OtherQuestion]:
    """The best layout with gradients summed in 16 bits, where they are summed in 32 and that gains."""
    training = question.training
    wide = (training.gradient_dtype or question.stack.gradient_dtype) == "fp32"
    if not wide or training.precision in FULL:
        return
    narrow = replace(question, training=training.model_copy(update={"gradient_dtype": "bf16"}))
    found = estimate(narrow, best.layout)
    if found.fits and gain(best, found) >= LEAST_GAIN:
        words = "gradient_dtype: bf16 in --training FILE"
        yield OtherQuestion(words=words, trouble="other numerics", estimate=found, proven=False)


def _other_questions(
    question: Question, restrictions: Restrictions, budget: Budget
) -> Iterator[OtherQuestion]:
    """The best plans in a narrower precision and on twice the GPUs, where the hardware allows."""
    precision = {"fp32": "bf16", "tf32": "bf16", "bf16": "fp8", "fp16": "fp8"}.get(
        question.training.precision, ""
    )
    others: list[tuple[str, str, Question]] = []
    if precision in question.cluster.gpu.peak:
        training = question.training.model_copy(update={"precision": precision})
        others.append((f"--precision {precision}", "other numerics", replace(question, training=training)))
    twice, whole = 2 * question.cluster.num_gpus, on_whole_nodes(question)
    if possible(twice, whole.cluster) and question.cluster.gpu.kind != "cpu":
        others.append((f"--gpus {twice}", "other GPUs", resized(whole, twice)))
    for words, trouble, other in others:
        try:
            found = budget.search(other, restrictions)
        except InfeasibleError:
            continue
        if found is not None:
            proven = found.certificate.gap <= 0
            yield OtherQuestion(words=words, trouble=trouble, estimate=found.best, proven=proven)
