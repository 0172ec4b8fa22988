"""Explanations of plans as sentences: bottleneck, runner-up, why not another layout, and what would change the
plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.axes.layout import Layout
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.pricing import LossPart
from cost_models.risk import FITTING
from cost_models.units import counted, format_bytes, format_seconds, grouped
from meshwright.render.estimates import (
    chance_text,
    host_lines,
    memory_sentence,
    time_sentence,
    utilisation_words,
    warning_lines,
)
from meshwright.render.words import (
    NEGLIGIBLE_SHARE,
    change,
    in_unit,
    part_label,
    percent,
    sentence_list,
    size_unit,
    time_unit,
    wrapped,
)
from planner.explain.compare import difference, same_degrees
from planner.objectives import ObjectiveName
from planner.plan import Plan

if TYPE_CHECKING:
    from planner.explain.reasons import BindingConstraint, CompletedLayout, Explanation, Sensitivity, WhyNot

_MAX_PARTS = 3
"""Largest number of parts named in one sentence."""
_SMALLEST_PART = 0.1
"""Smallest share of a difference's largest part that is still named. Smaller parts are not named."""
_BEST_AT: dict[ObjectiveName, str] = {
    "mfu": "highest MFU",
    "gpu-hours": "fewest GPU-hours",
    "cost": "least cost",
    "memory": "least memory",
    "gpus": "fewest GPUs",
}
"""Objective → words on how a plan searched for it excels, other than by the fastest step."""


def explanation_text(explanation: Explanation) -> str:
    """Text that explains a plan: parts of its step and memory, bottleneck, ties, runner-up, and changes that would
    speed it up."""
    estimate = explanation.estimate
    sentences = [
        wrapped(f"layout {estimate.layout.brief}: {utilisation_words(estimate)}"),
        *warning_lines(estimate),
        time_sentence(estimate),
        memory_sentence(estimate),
        *host_lines(estimate),
        wrapped(binding_sentence(estimate, explanation.binding)),
    ]
    if explanation.ties:
        names = sentence_list([unplaced(tie.layout) for tie in explanation.ties])
        sentences.append(wrapped(f"As fast: {names}"))
    if explanation.rival:
        sentences.append(wrapped(rival_sentence(explanation.plan, estimate, explanation.rival)))
    if explanation.sensitivities:
        sentences.append(f"What if (changes of the step of {format_seconds(estimate.step_seconds)}):")
        lines = [_if_only(estimate, one) for one in explanation.sensitivities]
        sentences += [wrapped(f"  {line}", indent="    ") for line in lines]
    return "\n".join(sentences)


def binding_sentence(estimate: Estimate, bound: BindingConstraint) -> str:
    """Sentence on a plan's bottleneck, such as "Bottleneck: memory. mbs2 would take 120.1 s but needs 82.5 GiB on
    pipeline rank 0." A faster layout within the memory limit is shown with its probability of fitting."""
    if bound.faster is None and bound.resource == "memory":
        chance = f"fits with probability {chance_text(estimate.fits_probability)} only"
        return f"Bottleneck: memory, as it {chance if estimate.fits else 'does not fit'}."
    if bound.faster is None:
        if bound.resource == "compute":
            return "Bottleneck: compute; every other part is below 5 % of the step."
        share = percent(estimate.time[bound.resource] / estimate.step_seconds)
        return f"Bottleneck: {part_label(bound.resource)}, {share} of the step."
    faster = bound.faster
    faster_layout = bound.change or "the same with less recomputed"
    fits = ""
    if faster.fits:
        rule = f"a recommended layout fits with {100 * FITTING:.0f} %"
        fits = f", which fits with probability {chance_text(faster.fits_probability)}; {rule}"
    return (
        f"Bottleneck: memory. {faster_layout} would take {format_seconds(faster.step_seconds)} but needs "
        f"{format_bytes(faster.peak_bytes)} on pipeline rank {faster.fullest_rank}{fits}."
    )


def loss_sentence(loss: LossPart | None, estimate: Estimate) -> str:
    """Sentence on the output product and loss: share of the step, and peak bytes, such as "4.1 % of the step on the
    last stage, 3.0 GiB at their widest"; empty for None."""
    if loss is None:
        return ""
    share = percent(estimate.microbatches * loss.seconds / estimate.step_seconds)
    place = "" if estimate.layout.pp == 1 else " on the last stage"
    chunks = "" if loss.chunk is None else f", in chunks of {grouped(loss.chunk)} tokens"
    size = f"{format_bytes(loss.bytes)} at their widest{chunks}"
    return wrapped(f"Output product and loss: {share} of the step{place}, {size}.")


def rival_sentence(plan: Plan, estimate: Estimate, closest: Estimate) -> str:
    """Sentence that compares the plan with its closest rival: "Next best tp8 pp4 … takes 137.5 s (+4.1 %): the plan
    saves 7.0 s of tp comm, pays 1.6 s of dp comm." """
    rival = unplaced(closest.layout)
    seconds = _seconds_beside(estimate, closest)
    parts = saves_and_pays(difference(estimate.time, closest.time), estimate.step_seconds)
    if not estimate.fits:
        return f"The fastest that fits is {rival}, which takes {seconds}."
    if closest.step_seconds > estimate.step_seconds:
        return f"Next best {rival} takes {seconds}: the plan {parts}."
    if plan.certificate is None:
        return f"Given, not searched for: a search finds {rival}, which takes {seconds}; this layout {parts}."
    reason = ""
    if plan.objective_name != "time":
        reason = f" The plan was searched for the {_BEST_AT[plan.objective_name]}, not for the fastest step."
    elif plan.certificate.gap > 0:
        reason = " The search of the plan was stopped before it was proved."
    return f"Slower than {rival}, which takes {seconds}: {parts}.{reason}"


def why_not_text(answer: WhyNot, plan: Estimate) -> str:
    """Text on why another layout was not chosen: rules it breaks, memory it lacks, or parts of its step that are
    slower."""
    filled = "" if answer.completed is None else filled_sentence(answer.completed)
    read = [filled] if filled else []
    if answer.estimate is None or answer.difference is None:
        lines = [f"`{answer.layout}` cannot run:", *(f"  {problem}" for problem in answer.problems)]
        return "\n".join([*(wrapped(line, indent="    ") for line in lines), *read])
    rival, name = answer.estimate, f"`{answer.layout}`"
    seconds = f"{_seconds_beside(plan, rival)} against {format_seconds(plan.step_seconds)}"
    parts = saves_and_pays(answer.difference, plan.step_seconds)
    if answer.reason == "memory":
        limit = rival.memory_limit if rival.layout.pools_field else plan.memory_limit
        unit, rank = size_unit(rival.peak_bytes), rival.fullest_rank
        largest = sorted(rival.rank_memory[rank].items(), key=lambda part: -part[1])[:_MAX_PARTS]
        words = sentence_list([f"{part_label(part)} {in_unit(size, unit)}" for part, size in largest])
        sentence = (
            f"{name} does not fit: {unplaced(rival.layout)} needs {format_bytes(rival.peak_bytes)} on pipeline rank"
            f" {rank}, {format_bytes(rival.peak_bytes - limit)} over the limit of {format_bytes(limit)} ({words}"
            f" {unit[0]} are its largest parts)."
        )
    elif answer.reason == "same":
        sentence = f"{name} is as fast: {format_seconds(rival.step_seconds)}, placed as {rival.layout.brief}."
    elif answer.reason == "faster":
        kept_out = "; the plan's restrictions kept it out" if answer.excluded else ""
        sentence = f"{name} is faster: {seconds}, placed as {rival.layout.brief}{kept_out}. The plan {parts}."
    else:
        sentence = (
            f"{name} is slower: at its best ({rival.layout.brief}) it takes {seconds}. The plan {parts}."
        )
    notes = [wrapped(f"The search leaves it out: {what}.") for what in answer.left_out]
    return "\n".join([wrapped(sentence), *notes, *read])


def filled_sentence(completed: CompletedLayout) -> str:
    """Sentence on the axes that a partly given layout left open, and the values filled in; empty for a complete
    layout."""
    if not completed.filled:
        return ""
    words = f"Filled in {' '.join(completed.filled)}"
    certificate = completed.certificate
    if certificate is None:
        return wrapped(f"{words}: nothing fits, this comes closest")
    how = f"the fastest of {counted(certificate.layouts, 'layout')} that have what you stated"
    if certificate.gap > 0:
        return wrapped(f"{words}: {how} that was found, proved within {percent(certificate.gap)}")
    return wrapped(f"{words}: proved {how}")


def unplaced(layout: Layout) -> str:
    """Layout as text, without the numbers of blocks on each stage."""
    return str(layout.model_copy(update={"layers": ()}))


def saves_and_pays(changes: Breakdown, step_seconds: float) -> str:
    """Words on the largest differences between two steps, by part: "saves 7.0 s of tp comm, pays 1.6 s of dp
    comm"."""
    largest, unit = max(map(abs, changes.values()), default=0.0), time_unit(step_seconds)
    if largest < unit[1] / 100:
        unit = time_unit(largest)
    least, words = max(min(NEGLIGIBLE_SHARE * step_seconds, _SMALLEST_PART * largest), 1e-9), list[str]()
    for verb, sign in (("saves", 1), ("pays", -1)):
        worth = [(part, sign * seconds) for part, seconds in changes.items() if sign * seconds >= least]
        texts = [(in_unit(seconds, unit), part_label(part)) for part, seconds in worth]
        named = [f"{text} {unit[0]} of {part}" for text, part in texts if float(text.replace(",", ""))]
        words += [f"{verb} {sentence_list(named[:_MAX_PARTS])}"] if named else []
    return ", ".join(words) or "differs in no part"


def _seconds_beside(plan: Estimate, rival: Estimate) -> str:
    """Rival's step time, and its change against the plan's step: "9.29 s (+33.2 %)"."""
    share = rival.step_seconds / plan.step_seconds - 1
    if abs(share) < NEGLIGIBLE_SHARE:
        words = f"less than 0.1 % {'more' if share > 0 else 'less'}" if share else "the same"
    else:
        words = change(plan.step_seconds, rival.step_seconds)
    return f"{format_seconds(rival.step_seconds)} ({words})"


def _if_only(estimate: Estimate, sensitivity: Sensitivity) -> str:
    """Line on one change of hardware: the step of the same layout, and of the layout planned anew."""
    repriced, best = sensitivity.repriced, sensitivity.best
    gain = change(estimate.step_seconds, repriced.step_seconds)
    words = f"{sensitivity.change}: {format_seconds(repriced.step_seconds)} ({gain})"
    if repriced.fits != estimate.fits:
        words += ", and fits" if repriced.fits else ", but does not fit"
    if best is not repriced:
        gain = change(estimate.step_seconds, best.step_seconds)
        planned = f"{format_seconds(best.step_seconds)} ({gain}), {layout_planned_again(sensitivity)}"
        words += f"; re-planned {planned}"
    return words


def layout_planned_again(sensitivity: Sensitivity) -> str:
    """Layout that a new plan after the change would choose, as words."""
    repriced, best = sensitivity.repriced.layout, sensitivity.best.layout
    return "blocks placed differently" if same_degrees(best, repriced) else unplaced(best)
