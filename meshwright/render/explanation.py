"""Explanations as sentences."""

from __future__ import annotations

from cost_models.breakdown import Breakdown
from cost_models.estimate import Estimate
from cost_models.specs.layout import Layout
from cost_models.units import format_bytes, format_seconds
from meshwright.render.estimates import memory_sentence, time_sentence
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
from planner.explain import Binding, Explanation, Rivalry, WhyNot
from planner.whatif import Sensitivity

_MAX_PARTS = 3
"""Parts named in one sentence."""


def explanation_text(explanation: Explanation) -> str:
    """The plan, its parts, what binds, what it wins by, and what would change it."""
    estimate = explanation.estimate
    sentences = [
        wrapped(f"layout {estimate.layout.brief}: MFU {percent(estimate.mfu)}, HFU {percent(estimate.hfu)}"),
        time_sentence(estimate),
        memory_sentence(estimate),
        wrapped(binding_sentence(estimate, explanation.binding)),
    ]
    if explanation.ties:
        names = sentence_list([unplaced(tie.layout) for tie in explanation.ties])
        sentences.append(wrapped(f"As fast: {names}"))
    if explanation.rivalry:
        sentences.append(wrapped(rivalry_sentence(estimate, explanation.rivalry)))
    if explanation.sensitivities:
        sentences.append("If only:")
        sentences += [
            wrapped("  " + _if_only(estimate, one), indent="    ") for one in explanation.sensitivities
        ]
    return "\n".join(sentences)


def binding_sentence(estimate: Estimate, bound: Binding) -> str:
    """ "Binds: memory. mbs2 would take 120.1 s but needs 82.5 GiB on rank 0." """
    if bound.faster is None:
        if bound.resource == "compute":
            return "Binds: compute; every other part is below a twentieth of the step."
        share = percent(estimate.time[bound.resource] / estimate.step_seconds)
        return f"Binds: {part_label(bound.resource)}, {share} of the step."
    faster = bound.faster
    what = bound.change or "the same with less recomputed"
    return (
        f"Binds: memory. {what} would take {format_seconds(faster.step_seconds)} but needs "
        f"{format_bytes(faster.peak_bytes)} on pipeline rank {faster.fullest_rank}."
    )


def rivalry_sentence(estimate: Estimate, rivalry: Rivalry) -> str:
    """ "Wins over tp8 pp4 … by 4.1 %: saves 7.0 s of tp comm, pays 1.6 s of dp comm." """
    lead = rivalry.rival.step_seconds / estimate.step_seconds - 1
    margin = _margin(lead)
    rival = unplaced(rivalry.rival.layout)
    parts = saves_and_pays(rivalry.difference, estimate.step_seconds)
    if lead < 0:
        return f"Loses to {rival} by {margin}, which the plan's restrictions kept out: {parts}."
    return f"Wins over {rival} by {margin}: {parts}."


def why_not_text(answer: WhyNot, plan: Estimate) -> str:
    """Illegal with its rules, too large with where, or slower with the parts."""
    if answer.reason == "illegal":
        lines = [f"`{answer.layout}` cannot run:", *(f"  {problem}" for problem in answer.problems)]
        return "\n".join(wrapped(line, indent="    ") for line in lines)
    assert answer.estimate is not None
    assert answer.difference is not None
    other, name = answer.estimate, f"`{answer.layout}`"
    if answer.reason == "memory":
        limit = other.memory_limit if other.rank_limits else plan.memory_limit
        excess = other.peak_bytes - limit
        unit = size_unit(other.peak_bytes)
        parts = sorted(other.rank_memory[other.fullest_rank], key=lambda part: -part[1])[:_MAX_PARTS]
        largest = sentence_list([f"{part_label(part)} {in_unit(size, unit)}" for part, size in parts])
        return wrapped(
            f"{name} does not fit: {unplaced(other.layout)} needs {format_bytes(other.peak_bytes)} on pipeline rank "
            f"{other.fullest_rank}, {format_bytes(excess)} over the limit of {format_bytes(limit)} "
            f"({largest} {unit[0]} are its largest parts)."
        )
    if answer.reason == "same":
        return wrapped(
            f"{name} is as fast: {format_seconds(other.step_seconds)}, placed as {other.layout.brief}."
        )
    margin = _margin(other.step_seconds / plan.step_seconds - 1)
    parts_text = saves_and_pays(answer.difference, plan.step_seconds)
    times = f"{format_seconds(other.step_seconds)} against {format_seconds(plan.step_seconds)}"
    if answer.reason == "faster":
        kept_out = ", which the plan's restrictions kept out" if answer.excluded else ""
        return wrapped(
            f"{name} is faster by {margin} ({times}), placed as {other.layout.brief}{kept_out}: {parts_text}."
        )
    return wrapped(
        f"{name} is slower by {margin} ({times}) at its best, {other.layout.brief}. The plan {parts_text}."
    )


def unplaced(layout: Layout) -> str:
    """A layout without the placement of its blocks."""
    return str(layout.model_copy(update={"layers": ()}))


def saves_and_pays(difference: Breakdown, step_seconds: float) -> str:
    """ "saves 7.0 s of tp comm, pays 1.6 s of dp comm": the largest changes worth naming."""
    unit = time_unit(step_seconds)
    worth = [
        (part, s)
        for part, s in difference
        if abs(s) > NEGLIGIBLE_SHARE * step_seconds and float(in_unit(s, unit).replace(",", ""))
    ]
    saved = [f"{in_unit(s, unit)} {unit[0]} of {part_label(part)}" for part, s in worth if s > 0][:_MAX_PARTS]
    paid = [f"{in_unit(-s, unit)} {unit[0]} of {part_label(part)}" for part, s in worth if s < 0][:_MAX_PARTS]
    words = [f"saves {sentence_list(saved)}"] if saved else []
    if paid:
        words.append(f"pays {sentence_list(paid)}")
    return ", ".join(words)


def _margin(share: float) -> str:
    """ "4.1 %", and what would round to nothing "less than 0.1 %"."""
    return percent(abs(share)) if abs(share) >= NEGLIGIBLE_SHARE else "less than 0.1 %"


def _if_only(estimate: Estimate, sensitivity: Sensitivity) -> str:
    best = sensitivity.estimate
    if best is None:
        return f"{sensitivity.change}: nothing fits"
    layout = "same layout" if sensitivity.same_layout else unplaced(best.layout)
    gain = change(estimate.step_seconds, best.step_seconds)
    return f"{sensitivity.change}: {format_seconds(best.step_seconds)} ({gain}), {layout}"
