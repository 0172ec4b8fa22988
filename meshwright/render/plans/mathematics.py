"""What of a question changes or counts mathematics: what `--allow` opened, what it buys, which FLOPs an MFU counts."""

from __future__ import annotations

from dataclasses import replace

from cost_models.estimate import Estimate
from cost_models.operators.flops import causal_flops, model_flops
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.changes import changes_of, without
from cost_models.units import format_count, grouped
from meshwright.render.words import sentence_list, wrapped


def changes_sentence(question: Question) -> str:
    """That another model, or by another optimizer, is trained than is usual; empty where it is not."""
    model, changes = question.model, changes_of(question.model, question.training)
    if not changes:
        return ""
    named = sentence_list([f"`{word}`" for word in changes])
    if not model.changed:
        return wrapped(f"changed: trained with {named} in place of AdamW; losses will differ")
    return wrapped(f"changed: {model.name} with {named} is another model than that; losses will differ")


def changes_worth(question: Question, estimate: Estimate) -> dict[str, float]:
    """Seconds that the same layout's step takes without each of the changes."""
    found = {}
    for word in changes_of(question.model, question.training):
        model, training = without(question.model, question.training, word)
        before = price(replace(question, model=model, training=training), estimate.layout)
        found[word] = before.step_seconds
    return found


def worth_sentence(question: Question, estimate: Estimate) -> str:
    """ "The same layout without `lamb` takes 0.99x the step, ..."; empty where nothing was changed."""
    worth = changes_worth(question, estimate)
    if not worth:
        return ""
    each = [f"{seconds / estimate.step_seconds:.3f}x without `{word}`" for word, seconds in worth.items()]
    return wrapped(f"The step of the same layout would take {sentence_list(each)}.")


def flops_counted(question: Question, tp: int) -> dict[str, float]:
    """FLOPs a token that MFU counts, that causal MFU counts, and that a model without windows would need.

    `tp` sets the padding of the vocabulary.
    """
    model, training = question.model, question.training
    whole = model.model_copy(update={"attention_window": None})
    counts = {
        "mfu": model_flops(model, training, tp),
        "causal_mfu": causal_flops(model, training, tp),
        "without_windows": model_flops(whole, training, tp),
    }
    return {name: flops / training.tokens_per_step for name, flops in counts.items()}


def count_sentence(question: Question, tp: int) -> str:
    """Which FLOPs the MFU counts: those within windows, the causal mask's saving aside."""
    model, length = question.model, question.training.sequence_length
    counts = {name: f"{format_count(flops)}FLOPs" for name, flops in flops_counted(question, tp).items()}
    text = f"MFU counts {counts['mfu']} a token: of the scores"
    if (model.attention_window or length) >= length:
        text += f" all {grouped(length)} of a row, whatever a mask hides ({counts['causal_mfu']} causal)"
    else:
        text += (
            f" those within windows, {format_count(model.attended(length))} of {grouped(length)} a row on average "
            f"({counts['causal_mfu']} causal; {counts['without_windows']} without windows)"
        )
    return wrapped(text)
