"""Ranked plans as text: what was asked, the table, and the proof."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.estimate import Estimate, Trust
from cost_models.question import Question
from cost_models.risk import EVEN
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.estimates import causal_apart, host_sentences
from meshwright.render.goals import (
    answers_sentence,
    changes_sentence,
    documents_sentence,
    gpus_in_words,
    pools_table,
    tuning_sentence,
    value_text,
)
from meshwright.render.tables import Table, table
from meshwright.render.words import part_label, percent, sentence_list, wrapped
from planner.answers.optimum import Optimum
from planner.objectives import Certificate


def question_header(question: Question, trust: Trust, *, subject: str = "") -> str:
    """Header with the question (on the model, or another subject), changes of the job, and how far prices may be
    believed."""
    cluster, training = question.cluster, question.training
    mixed = question.has_pools
    nodes = f" ({counted(cluster.nodes, 'node')})" if cluster.nodes > 1 and not mixed else ""
    words = (
        f"{subject or question.model.name} on {gpus_in_words(question)}{nodes}, "
        f"{format_count(training.tokens_per_step)} tokens/step ({training.in_words}, {training.precision})"
    )
    if question.confidence > EVEN:
        words += f", to fit with {100 * question.confidence:.4g} %"
    profile = f"hardware profile {trust}"
    if mixed:
        names = sentence_list([pool.hardware.name for pool in question.pools])
        profile = f"hardware profiles {names}; the least known is {trust}"
    lines = [
        wrapped(words),
        tuning_sentence(question),
        documents_sentence(question),
        answers_sentence(question),
        changes_sentence(question),
        wrapped(f"stack {question.stack.name}; {profile}"),
    ]
    return "\n".join(filter(None, lines))


def layout_text(question: Question, estimate: Estimate, words: str) -> tuple[str | Table, ...]:
    """Text with the question, words on a layout, its contents of host memory, and the pools on which it lies."""
    notes = *host_sentences(question, estimate), *placed_on_pools(question, estimate)
    return question_header(question, estimate.trust), "", words, *notes


HEADERS = ("#", "layout", "step", "MFU", "tok/s/GPU", "peak mem", "bound by")


def placed_on_pools(question: Question, estimate: Estimate) -> tuple[str | Table, ...]:
    """The table of pools below a plan; nothing on a cluster of one kind of GPU."""
    return ("", pools_table(question, estimate)) if question.has_pools else ()


def plans_rows(estimates: Sequence[Estimate]) -> list[tuple[str, ...]]:
    """Cells of the plans table, best first, as text. `peak mem` is the fullest rank's."""
    return [
        (
            str(rank),
            estimate.layout.brief,
            format_seconds(estimate.step_seconds),
            percent(estimate.mfu),
            grouped(round(estimate.tokens_per_second / estimate.layout.num_gpus)),
            format_bytes(estimate.peak_bytes),
            part_label(estimate.bound_by),
        )
        for rank, estimate in enumerate(estimates, start=1)
    ]


def optimum_table(optimum: Optimum) -> Table:
    """Table of plans, best first, with GPUs, GPU-hours or cost in place of tok/s/GPU if that is the objective."""
    headers, rows = optimum_cells(optimum)
    return table(headers, rows, words=("layout", "bound by"))


def optimum_cells(optimum: Optimum) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and cells of that table, as text; causal MFU where it is another for any."""
    estimates = optimum.result.estimates
    return with_causal(*_measured_cells(optimum, plans_rows(estimates)), estimates)


def with_causal(
    headers: tuple[str, ...], rows: list[tuple[str, ...]], estimates: Sequence[Estimate]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows, with a column of causal MFU if it differs from MFU in any row."""
    if not any(map(causal_apart, estimates)):
        return headers, rows
    place = headers.index("MFU") + 1
    causal = [percent(estimate.causal_mfu) for estimate in estimates]
    rows = [(*row[:place], cell, *row[place:]) for row, cell in zip(rows, causal, strict=True)]
    return (*headers[:place], "causal", *headers[place:]), rows


def _measured_cells(
    optimum: Optimum, rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows, with the objective in place of tok/s/GPU."""
    estimates = optimum.result.estimates
    name = optimum.objective.name
    if optimum.plain or (name in ("time", "mfu", "memory") and not optimum.sizes):
        return HEADERS, rows
    measure = optimum.objective.measure
    gpus = [grouped(estimate.layout.num_gpus) for estimate in estimates]
    values = [value_text(optimum.value_of(estimate), measure.unit) for estimate in estimates]
    if name not in ("gpu-hours", "cost"):
        return _swapped(HEADERS, "GPUs"), [_swapped(row, cell) for row, cell in zip(rows, gpus, strict=True)]
    headers = _swapped(HEADERS, measure.label)
    rows = [_swapped(row, cell) for row, cell in zip(rows, values, strict=True)]
    if not optimum.sizes:
        return headers, rows
    wide_rows = [(row[0], cell, *row[1:]) for row, cell in zip(rows, gpus, strict=True)]
    return (headers[0], "GPUs", *headers[1:]), wide_rows


def _swapped(cells: tuple[str, ...], cell: str) -> tuple[str, ...]:
    """Replace the cell of tok/s/GPU."""
    place = HEADERS.index("tok/s/GPU")
    return (*cells[:place], cell, *cells[place + 1 :])


def proof_words(certificate: Certificate, best_seconds: float) -> str:
    """The proof, or how far it got; "proved" is said only at gap 0."""
    seconds = format_seconds(certificate.seconds)
    work = counted(certificate.layouts, "layout")
    if certificate.infeasible or certificate.pruned or certificate.solved:  # plan files do not say
        bounds = f"lower bounds rule out {grouped(certificate.pruned)}, {grouped(certificate.solved)} solved exactly"
        work += f": {grouped(certificate.infeasible)} do not fit, {bounds}"
    if certificate.gap <= 0:
        took = f" in {seconds}" if certificate.seconds else ""  # plan files hold no durations
        minimised = _minimised_words(certificate, best_seconds)
        return f"proved optimal under the cost model{minimised}{took}; {work}"
    bound = f"proved within {percent(certificate.gap)} of the optimum"
    proven = bound if certificate.gap < 1 else "nothing proved"
    duration = f" after {seconds}" if certificate.seconds else ""
    return f"stopped{duration}: best {format_seconds(best_seconds)}, {proven}; {work}"


def certificate_sentence(certificate: Certificate, best_seconds: float) -> str:
    """Sentence on a proof, with the confirmation by an integer program."""
    words = proof_words(certificate, best_seconds) + _settled_words(certificate)
    return wrapped(f"{words[0].upper()}{words[1:]}")


def _minimised_words(certificate: Certificate, best_seconds: float) -> str:
    """Words on the quantity minimised, if it is not the step on paper: ", expected over 16 scenarios (18.04 s)"."""
    if certificate.minimised == "none":
        return ""
    over = counted(certificate.scenarios, "scenario")
    mean = f"expected over {over}" if certificate.minimised == "neutral" else f"over the slowest {over}"
    return f", {mean} ({format_seconds(best_seconds)})"


def _settled_words(certificate: Certificate) -> str:
    """Whether the integer program agrees; it does so only where it had a choice."""
    settled = certificate.settled
    if certificate.proved_by == "ilp":
        return "; by one integer program over all of them"
    if settled is None or settled.layouts == 1:
        return ""
    return f"; an integer program over the last {counted(settled.layouts, 'layout')} confirms it"
