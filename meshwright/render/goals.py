"""Words on a plan's objective and its proof, and on the question's GPUs, pools, fine-tuning and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from cost_models.estimate import Estimate
from cost_models.operators.documents import attended_keys
from cost_models.operators.flops import causal_flops, model_flops
from cost_models.operators.parameters import total_parameters, trained_parameters, unfrozen_parameters
from cost_models.pipeline.pricing import estimate as price
from cost_models.pipeline.sizes import narrow_copies
from cost_models.question import Question
from cost_models.specs.training import Reference, changes_of, sequences_of, undo_change
from cost_models.units import counted, format_count, format_seconds, grouped
from meshwright.records.estimates import pool_records
from meshwright.render.tables import Table, table_of
from meshwright.render.words import UNIT_TEXTS, in_unit, percent, sentence_list, size_unit, wrapped
from planner.answers.optimum import PROVEN, Optimum
from planner.objectives import Measure, Unit

_MAX_LISTED = 6
"""Largest number of cluster sizes that are all named; of more, only the smallest and largest."""


def value_text(value: float, unit: Unit) -> str:
    """Value of an objective in its unit: "18.73 s", "56.6 %", "508.0 k", "$1.27 M", "5.6 GiB"."""
    if unit in UNIT_TEXTS:
        return UNIT_TEXTS[unit](value)
    if unit == "GPUs" or value < 1e4:
        return grouped(round(value)) if unit == "GPUs" or value >= 100 else f"{value:.2f}"
    return f"{value / 1e3:.1f} k" if value < 1e6 else format_count(value)


def objective_words(measure: Measure, value: float) -> str:
    """Objective's name and value: "cost $1.27 M"; for the number of GPUs "8 GPUs"."""
    text = value_text(value, measure.unit)
    return counted(round(value), "GPU") if measure.unit == "GPUs" else f"{measure.label} {text}"


def optimum_proof_words(optimum: Optimum) -> str:
    """Words on the proof that a plan is best by its objective, or on the gap that remains."""
    measure, certificate = optimum.objective.measure, optimum.result.certificate
    work = f"{counted(certificate.layouts, 'layout')} in {format_seconds(certificate.seconds)}"
    best = objective_words(measure, optimum.value)
    over = f" over {sizes_text(optimum.sizes)}" if optimum.sizes else ""
    if optimum.objective.name == "gpus":
        fewer = [f"{grouped(gpus)}: {why}" for gpus, why in optimum.left_out]
        over += f" ({fewer[-1]})" if fewer else ""
    if optimum.gap <= PROVEN:
        extreme, prove = "highest" if measure.highest else "lowest", "is"
        if measure.unit == "GPUs":
            extreme, prove = "fewest that meet the deadline", "is" if round(optimum.value) == 1 else "are"
        return f"{best} {prove} proved the {extreme}{over}: {work}"
    proved = " with nothing proved"
    if optimum.gap < 1:
        proved = f", proved within {percent(optimum.gap)} of the optimum"
    return f"stopped at {best}{over}{proved}: {work}"


def sizes_text(sizes: tuple[int, ...]) -> str:
    """Cluster sizes as words: "64, 128 and 256 GPUs", or "64 to 16,384 GPUs (50 numbers)"."""
    if len(sizes) <= _MAX_LISTED:
        return f"{sentence_list([grouped(size) for size in sizes])} GPU{'s' * (sizes != (1,))}"
    return f"{grouped(sizes[0])} to {grouped(sizes[-1])} GPUs ({len(sizes)} numbers)"


def left_out_text(optimum: Optimum) -> str:
    """Notes on cluster sizes without an answer, such as "no answer on 96 GPUs: no layout … is legal"; only a count if
    many; empty if none."""
    omitted = optimum.left_out
    if not omitted or (optimum.objective.name == "gpus" and optimum.gap <= PROVEN):
        return ""
    if len(omitted) > _MAX_LISTED:
        return f"note: no answer on {len(omitted)} of {len(optimum.sizes)} numbers of GPUs"
    return "\n".join(f"note: no answer on {counted(gpus, 'GPU')}: {why}" for gpus, why in omitted)


def gpus_in_words(question: Question) -> str:
    """Words on a question's GPUs, pool by pool: "64 x h100-sxm + 32 x a100"."""
    clusters = [pool.cluster for pool in question.pools]
    return " + ".join(f"{grouped(cluster.num_gpus)} x {cluster.gpu.name}" for cluster in clusters)


def pools_table(question: Question, estimate: Estimate) -> Table:
    """Table with a row for each GPU pool of a plan: its GPUs, ranks and blocks (or replicas and microbatches),
    recompute, peak memory."""
    records = pool_records(question, estimate)
    unit = size_unit(max(record["memory_limit"] for record in records))
    texts: dict[str, tuple[str, Callable[[Any], str]]] = {"pool": ("pool", str), "GPUs": ("gpus", str)}
    if estimate.replicas:
        texts |= {"replicas": ("replicas", str), "microbatches each": ("microbatches", _runs)}
        texts |= {"step alone": ("step_seconds", format_seconds)}
    else:
        texts |= {"ranks": ("ranks", _span), "blocks each": ("blocks", _runs)}
        texts["recompute"] = ("recompute", _runs)
    columns = {header: [write(record[key]) for record in records] for header, (key, write) in texts.items()}
    peaks = [[in_unit(record[key], unit) for key in ("peak_bytes", "memory_limit")] for record in records]
    columns["peak mem"] = [f"{peak} of {limit} {unit[0]}" for peak, limit in peaks]
    return table_of(columns, names=("pool",), words=("microbatches each", "blocks each", "recompute"))


def _span(ranks: Sequence[int]) -> str:
    """First and last of consecutive ranks: "0-3"."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def _runs(values: list[Any]) -> str:
    """Values as text with repeats counted: [30, 28, 28] → "30, 28 x 2"; a value that all share is written once."""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    counts = [f" x {count}" if count > 1 and len(runs) > 1 else "" for _, count in runs]
    return ", ".join(f"{value}{count}" for (value, _), count in zip(runs, counts, strict=True))


def changes_sentence(question: Question) -> str:
    """Sentence on changes to the model or optimizer that were allowed (such as `lamb`); empty without changes."""
    model = question.model
    words = sentence_list([f"`{word}`" for word in changes_of(model, question.training)])
    what = f"trained with {words} in place of AdamW"
    if model.changed:
        what = f"{model.name} with {words} is another model than that"
    return wrapped(f"changed: {what}; losses will differ") if words else ""


_REFERENCE_WORDS: Mapping[Reference | None, str] = {
    "resident": ", beside a reference model that runs forward in every step",
    "host": ", beside a reference model whose blocks come from host memory in every step",
    "computed": ", beside what a reference model said before training, whose pass is not counted",
}


def tuning_sentence(question: Question) -> str:
    """Sentence on fine-tuning: "lora of rank 16 on `all-linear`: trains 41.9 M parameters ..."; empty if all
    parameters are trained on plain sequences."""
    training, model = question.training, question.model
    tuning, suffix = training.tuning, _REFERENCE_WORDS.get(training.reference, "")
    if training.freeze:
        counts = unfrozen_parameters(model, training), total_parameters(model)
        trained, total = (format_count(float(count)) for count in counts)
        return wrapped(f"frozen: {', '.join(training.freeze)}; trains {trained} of {total} parameters")
    suffix += ", with one output in place of the vocabulary" * training.reward
    if tuning is None:
        task = "reward" if training.reward else "dpo"
        return wrapped(f"{task}: pairs of sequences{suffix}") if suffix else ""
    trained = format_count(float(trained_parameters(model, tuning)))
    precision: str = tuning.base or training.wide_precision
    if copies := narrow_copies(question):
        size = f"{training.element_bytes + copies:.3g} bytes a parameter"
        precision += f" with copies in {training.precision}, {size}"
    targets = sentence_list([f"`{name}`" for name in tuning.targets])
    subject = f"{tuning.task} of rank {tuning.rank} on {targets}"
    return wrapped(f"{subject}: trains {trained} parameters beside frozen matrices in {precision}{suffix}")


def documents_sentence(question: Question) -> str:
    """Sentence on documents: "documents of 600 tokens on average, packed into sequences of 8,192: 99 % of tokens
    count, ..."; empty without document lengths."""
    training, lengths = question.training, question.training.lengths
    if lengths is None:
        return ""
    length, keys = training.sequence_length, attended_keys(question.model, training)
    share = f"{percent(training.tokens_counted / length)} of tokens count"
    scores = percent(keys.computed / question.model.unmasked(length))
    words = {
        "pack": f"{share}, attention has {scores} of the scores of whole sequences",
        "pad": f"{share}, all are computed",
        "bucket": "none is padded",
    }
    documents = f"documents of {grouped(round(sequences_of(lengths, length).mean))} tokens on average"
    return wrapped(f"{documents}, {lengths} {grouped(length)}: {words[lengths.packing]}")


def answers_sentence(question: Question) -> str:
    """Sentence on the share of tokens that the loss counts, "the loss counts answers alone, 30 % of tokens ...";
    empty if it counts all."""
    if (answers := question.training.answers) is None:
        return ""
    of, share = "these alone" if question.scored_share < 1 else "all", percent(answers)
    return wrapped(f"the loss counts answers alone, {share} of tokens; logits are computed of {of}")


def seconds_without_changes(question: Question, estimate: Estimate) -> dict[str, float]:
    """Seconds of the same layout's step with one change of the model or optimizer undone, by change."""
    seconds = {}
    for word in changes_of(question.model, question.training):
        model, training = undo_change(question.model, question.training, word)
        same = replace(question, model=model, training=training)
        seconds[word] = price(same, estimate.layout).step_seconds
    return seconds


def worth_sentence(question: Question, estimate: Estimate) -> str:
    """Sentence on how long the step would take with each change undone: "0.990x without `lamb`"; empty without
    changes."""
    worth = seconds_without_changes(question, estimate)
    if not worth:
        return ""
    ratios = [f"{seconds / estimate.step_seconds:.3f}x without `{word}`" for word, seconds in worth.items()]
    return wrapped(f"This layout's step would take {sentence_list(ratios)}.")


def flops_counted(question: Question, tp: int) -> dict[str, float]:
    """FLOPs per token by name: counted by MFU, counted by causal MFU, and needed if attention had no windows.

    `tp` sets the padding of the vocabulary.
    """
    model, training, tokens = question.model, question.training, question.training.tokens_per_step
    unwindowed = model.model_copy(update={"attention_window": None})
    return {
        "mfu": model_flops(model, training, tp) / tokens,
        "causal_mfu": causal_flops(model, training, tp) / tokens,
        "without_windows": model_flops(unwindowed, training, tp) / tokens,
    }


def count_sentence(question: Question, tp: int) -> str:
    """Sentence on the FLOPs per token that MFU counts, and on how attention windows and the causal mask enter."""
    model, length = question.model, question.training.sequence_length
    counts = {name: f"{format_count(flops)}FLOPs" for name, flops in flops_counted(question, tp).items()}
    text = f"MFU counts {counts['mfu']} a token, attention"
    if model.encoder is not None:
        text += " to tokens on both sides" + ", and logits of all of them" * (model.diffusion is None)
    elif (model.attention_window or length) >= length:
        text += f" without the causal mask ({counts['causal_mfu']} with it)"
    else:
        text += (
            f" within windows, on average {format_count(model.attended(length))} of {grouped(length)} keys a token"
            f" ({counts['causal_mfu']} with the causal mask too; {counts['without_windows']} without windows)"
        )
    return wrapped(text)
