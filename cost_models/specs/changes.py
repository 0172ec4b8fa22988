"""Changes of the mathematics that `--allow` permits: parallel blocks, windows, LAMB. They change the loss
curve, so they are never applied unless requested.

    parallel-block   attention and MLP read one norm side by side (Wang & Komatsuzaki 2021; MegaScale, section 3.1)
    window=N         a query attends to N tokens, itself included (Beltagy et al. 2020)
    lamb             optimizer for batches that are too large for Adam (You et al. 2020)

A changed model carries these words in plans, checkpoints and reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import grouped

WORDS = ("parallel-block", "window=N", "lamb")
"""Words of `--allow`, in the order in which messages list them."""
_WINDOW = re.compile(r"window=(\d{1,12})$", re.ASCII)


def is_change(word: str) -> bool:
    """Whether a word of `--allow` names a change of the mathematics, even misspelt."""
    return word.partition("=")[0] in {known.partition("=")[0] for known in WORDS}


def changed(
    model: TransformerSpec, training: TrainingSpec, words: Sequence[str]
) -> tuple[TransformerSpec, TrainingSpec]:
    """The model and the job with the changes that `--allow` requests.

    Raises:
        InputError: words that cannot be read, or that change nothing of this model and this job; all of them at once.
    """
    problems = [
        Problem(f"--allow {word}", what)
        for word in words
        if (what := _complaint(model, training, word, words))
    ]
    if problems:
        raise InputError("what is allowed cannot be had", problems=problems)
    fields: dict[str, Any] = {}
    for word in dict.fromkeys(words):
        if word == "parallel-block":
            fields |= {"parallel_block": True}
        elif match := _WINDOW.match(word):
            fields |= {"attention_window": int(match[1])}
        else:
            training = training.model_copy(update={"optimizer": "lamb"})
    if not fields:
        return model, training
    named_changes = tuple(word for word in dict.fromkeys(words) if word != "lamb")
    try:
        spec = TransformerSpec.model_validate(model.model_dump() | fields | {"changed": named_changes})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"--allow {','.join(named_changes)}: {problem}") from None
    return spec, training


def changes_of(model: TransformerSpec, training: TrainingSpec) -> tuple[str, ...]:
    """Changes of a model and a job, as words of `--allow`."""
    return (*model.changed, *(["lamb"] if training.optimizer == "lamb" else []))


def without(
    model: TransformerSpec, training: TrainingSpec, word: str
) -> tuple[TransformerSpec, TrainingSpec]:
    """A changed model and job with one of its changes undone."""
    if word == "lamb":
        return model, training.model_copy(update={"optimizer": "adamw"})
    undone: dict[str, Any] = (
        {"parallel_block": False} if word == "parallel-block" else {"attention_window": None}
    )
    remaining = tuple(one for one in model.changed if one != word)
    return model.model_copy(update=undone | {"changed": remaining}), training


def _complaint(model: TransformerSpec, training: TrainingSpec, word: str, words: Sequence[str]) -> str:
    """Why a word cannot be applied; empty where it can."""
    length = training.sequence_length
    if word == "lamb":
        return "is what the job says already" * (training.optimizer == "lamb")
    if word == "parallel-block":
        return f"`{model.name}` has parallel blocks already" * model.parallel_block
    match = _WINDOW.match(word)
    if match is None or int(match[1]) == 0:
        return f"is none of {', '.join(WORDS)}{did_you_mean(word, WORDS)}; a window is written `window=1024`"
    if sum(one.startswith("window") for one in dict.fromkeys(words)) > 1:
        return "there are several windows"
    if model.attention_window is not None:
        return f"`{model.name}` has windows of {grouped(model.attention_window)} tokens of its own"
    if int(match[1]) >= length:
        return f"hides nothing of sequences of {grouped(length)} tokens"
    return ""
