"""What a plan is best at, in words."""

from __future__ import annotations

from cost_models.units import counted, format_bytes, format_count, format_days, format_seconds, grouped
from meshwright.render.words import money, percent, sentence_list, wrapped
from planner.answers.optimum import PROVEN, Optimum
from planner.objectives import Unit, training_steps

_FEW = 6
"""Numbers of GPUs that are all named; of more only the ends."""


def value_text(value: float, unit: Unit) -> str:
    """A value of an objective: "18.73 s", "56.6 %", "508.0 k", "$1.27 M", "5.6 GiB"."""
    if unit == "seconds":
        return format_seconds(value)
    if unit == "share":
        return percent(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "money":
        return money(value)
    if unit == "GPUs" or value < 1e4:
        return grouped(round(value)) if unit == "GPUs" or value >= 100 else f"{value:.2f}"
    return f"{value / 1e3:.1f} k" if value < 1e6 else format_count(value)


def training_sentence(optimum: Optimum) -> str:
    """ "300 B tokens take 95,368 steps: 20.7 days on 1,024 GPUs, 508.0 k GPU-hours"; or nothing."""
    question, objective = optimum.question, optimum.objective
    tokens = question.training.tokens
    if tokens is None:
        return ""
    step = optimum.result.best.step_seconds
    seconds, hours = objective.training_seconds(question, step), objective.gpu_hours(question, step)
    words = (
        f"{format_count(tokens)} tokens take {grouped(training_steps(question))} steps: {format_days(seconds)} on "
        f"{counted(question.cluster.num_gpus, 'GPU')}, {value_text(hours, 'GPU-hours')} GPU-hours"
    )
    if objective.operations is not None:
        share = training_steps(question) * step / seconds
        words += f" with the failures of {objective.operations.name} (goodput {percent(share)})"
    if objective.price is not None:
        words += f", {money(hours * objective.price)} at {money(objective.price)} each"
    return wrapped(words)


def proof_sentence(optimum: Optimum) -> str:
    """The proof of an objective other than the step time on given GPUs, or how far it got."""
    measure, certificate = optimum.objective.measure, optimum.result.certificate
    done = f"{counted(certificate.layouts, 'layout')} in {format_seconds(certificate.seconds)}"
    best = f"{measure.label} {value_text(optimum.value, measure.unit)}"
    over = f" over {sizes_text(optimum.sizes)}" if optimum.sizes else ""
    if optimum.objective.name == "gpus":
        fewer = [f"{grouped(gpus)}: {why}" for gpus, why in optimum.left_out]
        over += f" ({fewer[-1]})" if fewer else ""
    if optimum.gap <= PROVEN:
        least = "most" if measure.highest else "least"
        return wrapped(f"Proved {least}{over}: {best}, {done}, gap 0 %")
    if optimum.gap >= 1:
        return wrapped(f"Stopped: {best}{over}, nothing proven yet ({done})")
    return wrapped(f"Stopped: {best}{over}, proven within {percent(optimum.gap)} of optimal ({done})")


def sizes_text(sizes: tuple[int, ...]) -> str:
    """ "64, 128 and 256 GPUs", or "64 to 16,384 GPUs (50 numbers)"."""
    if len(sizes) <= _FEW:
        return f"{sentence_list([grouped(size) for size in sizes])} GPU{'s' * (sizes != (1,))}"
    return f"{grouped(sizes[0])} to {grouped(sizes[-1])} GPUs ({len(sizes)} numbers)"


def left_out_text(optimum: Optimum) -> str:
    """ "no answer on 96 GPUs: no layout … is legal": a line for each of a few, a count of more; or nothing."""
    left = optimum.left_out
    if not left or (optimum.objective.name == "gpus" and optimum.gap <= PROVEN):
        return ""
    if len(left) > _FEW:
        return f"note: no answer on {len(left)} of {len(optimum.sizes)} numbers of GPUs"
    return "\n".join(f"note: no answer on {counted(gpus, 'GPU')}: {why}" for gpus, why in left)
