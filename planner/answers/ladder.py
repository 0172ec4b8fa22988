"""What each technique adds to a plan: from a bare trainer up, the one that saves most first.

A rung turns on one thing that trainers do (communication behind compute, fused kernels) or, where it is allowed, one
that changes what is trained (a parallel block, a window, a larger batch). The layout stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.stack import STORES_SCORES

if TYPE_CHECKING:
    import pandas as pd

WORDS = ("parallel-block", "window=N", "batch=N")
"""What `--allow` opens of what is trained."""
_NUMBERED = re.compile(r"(window|batch)=([1-9][0-9]{0,11})", re.ASCII)
_OVERLAP = 0.9
"""Share of tensor-parallel communication that chunked products hide, on a stack that has none: MegaScale's own."""
Kind = Literal["base", "trainer", "mathematics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One technique."""

    name: str
    kind: Kind
    off: Callable[[Question], Question]
    on: Callable[[Question], Question]
    has: bool
    """Whether the plan has it as it is."""


def ladder_frame(question: Question, chosen: Estimate, allow: Sequence[str] = ()) -> pd.DataFrame:
    """A row per rung from the bare trainer up.

    Columns: `name`, `kind` (base, trainer or mathematics), `has` (whether the plan has it as it is), `step_seconds`
    (for the tokens of the plan's own batch), `mfu`, `adds` (MFU), `fits`.

    Raises:
        InputError: words of `allow` that cannot be read, or mean nothing to the model.
    """
    import pandas as pd

    left = [*trainer_switches(question, chosen), *mathematics(question, allow)]
    layout = chosen.layout.model_copy(update={"overlap": None})
    tokens = question.training.tokens_per_step
    now = question
    for switch in left:
        now = switch.off(now)
    before = price(now, layout)
    rows = [_row("nothing of it", "base", True, before, before.mfu, tokens)]
    while left:
        tried = [price(switch.on(now), layout) for switch in left]
        best = min(range(len(left)), key=lambda at: tried[at].step_seconds / _tokens(tried[at]))
        switch = left.pop(best)
        rows.append(_row(switch.name, switch.kind, switch.has, tried[best], before.mfu, tokens))
        now, before = switch.on(now), tried[best]
    return pd.DataFrame(rows)


def _tokens(found: Estimate) -> float:
    return found.tokens_per_second * found.step_seconds


def _row(name: str, kind: Kind, has: bool, found: Estimate, before: float, tokens: float) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "has": has,
        "step_seconds": found.step_seconds * tokens / _tokens(found),
        "mfu": found.mfu,
        "adds": found.mfu - before,
        "fits": found.fits,
    }


def trainer_switches(question: Question, chosen: Estimate) -> list[Switch]:
    """What trainers do to the same mathematics; none for axes of one rank."""
    stack, layout = question.stack, chosen.layout
    said = layout.overlap or ()
    flash = stack.attention not in STORES_SCORES
    found: list[tuple[str, bool, dict[str, Any], dict[str, Any], bool]] = [
        (
            "tensor-parallel overlap",
            layout.tp > 1,
            {"overlap_tensor_parallel": 0.0},
            {"overlap_tensor_parallel": stack.overlap_tensor_parallel or _OVERLAP},
            stack.overlap_tensor_parallel > 0 or "tp" in said,
        ),
        (
            "pipeline overlap",
            layout.pp > 1,
            {"overlap_pipeline_sends": False},
            {"overlap_pipeline_sends": True},
            stack.overlap_pipeline_sends or "pp" in said,
        ),
        (
            "data-parallel overlap",
            layout.dp * layout.cp > 1,
            {"overlap_gradient_reduce": False, "overlap_parameter_gather": False},
            {"overlap_gradient_reduce": True, "overlap_parameter_gather": True},
            (stack.overlap_gradient_reduce and stack.overlap_parameter_gather) or "dp" in said,
        ),
        (
            "batches not broadcast",
            True,
            {"broadcasts_every_batch": True},
            {"broadcasts_every_batch": False},
            not stack.broadcasts_every_batch,
        ),
        (
            "flash attention",
            True,
            {"attention": "fused-softmax"},
            {"attention": stack.attention if flash else "flash2"},
            flash,
        ),
        (
            "fused norms and activations",
            True,
            {"fused_elementwise": False, "fused_norms": False},
            {"fused_elementwise": True, "fused_norms": True},
            stack.fused_elementwise,
        ),
    ]
    return [
        Switch(name=name, kind="trainer", off=_stack(off), on=_stack(on), has=has)
        for name, means, off, on, has in found
        if means
    ]


def mathematics(question: Question, allow: Sequence[str]) -> list[Switch]:
    """What changes the training: what `allow` opens, and nothing that the model has already."""
    model, training = question.model, question.training
    found, problems = [], []
    for word in dict.fromkeys(allow):
        numbered = _NUMBERED.fullmatch(word)
        if word == "parallel-block" and not model.parallel_block:
            found.append(_changes("parallel block", _model(parallel_block=True)))
        elif word == "parallel-block":
            problems.append(Problem("--allow", f"`{model.name}` has parallel blocks already"))
        elif numbered is None:
            problems.append(Problem("--allow", f"`{word}` is none of {', '.join(WORDS)}"))
        elif numbered[1] == "batch" and int(numbered[2]) > training.global_batch:
            found.append(_changes(f"batch of {int(numbered[2]):,}", _training(global_batch=int(numbered[2]))))
        elif numbered[1] == "batch":
            problems.append(
                Problem("--allow", f"`{word}` is no larger than the batch, {training.global_batch}")
            )
        elif int(numbered[2]) >= training.sequence_length:
            problems.append(
                Problem(
                    "--allow", f"`{word}` hides nothing of sequences of {training.sequence_length} tokens"
                )
            )
        elif model.attention_window is not None:
            problems.append(Problem("--allow", f"`{model.name}` has windows of its own"))
        else:
            found.append(
                _changes(f"window of {int(numbered[2]):,}", _model(attention_window=int(numbered[2])))
            )
    if problems:
        raise InputError("what is allowed cannot be drawn", problems=problems)
    return found


def _changes(name: str, on: Callable[[Question], Question]) -> Switch:
    return Switch(name=name, kind="mathematics", off=lambda one: one, on=on, has=False)


def _stack(update: dict[str, Any]) -> Callable[[Question], Question]:
    return lambda one: replace(one, stack=one.stack.model_copy(update=update))


def _model(**update: Any) -> Callable[[Question], Question]:
    return lambda one: replace(one, model=one.model.model_copy(update=update))


def _training(**update: Any) -> Callable[[Question], Question]:
    return lambda one: replace(one, training=one.training.model_copy(update=update))
