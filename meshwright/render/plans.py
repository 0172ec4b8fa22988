"""Ranked plans as text: what was asked, the table, and the proof."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from cost_models.estimate import Estimate, Trust
from cost_models.question import MixedQuestion, Question
from cost_models.units import format_bytes, format_count, format_seconds
from meshwright.render.pools import gpus_in_words, pools_table
from meshwright.render.tables import table
from meshwright.render.words import count, part_label, percent, sentence_list, spaced, wrapped
from planner.plan import Certificate


def question_header(question: Question, trust: Trust, memory_limit: float) -> str:
    """Two sentences: what was asked, and how far the prices may be believed."""
    cluster, training = question.cluster, question.training
    mixed = isinstance(question, MixedQuestion)
    nodes = f" ({count(cluster.nodes, 'node')})" if cluster.nodes > 1 and not mixed else ""
    asked = (
        f"{question.model.name} on {gpus_in_words(question)}{nodes}, "
        f"{format_count(training.tokens_per_step)} tokens/step ({training.global_batch} x "
        f"{training.sequence_length}, {training.precision})"
    )
    if not mixed:  # pools have limits of their own
        asked += f", limit {format_bytes(memory_limit)} each"
    profile = f"hardware profile {trust}"
    if isinstance(question, MixedQuestion):
        names = sentence_list([pool.hardware.name for pool in question.pools])
        profile = f"hardware profiles {names}; the least known is {trust}"
    return "\n".join([wrapped(asked), wrapped(f"stack {question.stack.name}; {profile}")])


HEADERS = ("#", "layout", "step", "MFU", "tok/s/GPU", "peak mem", "bound by")


def plans_table(estimates: Sequence[Estimate]) -> Table:
    """Plans best first; `peak mem` is that of the fullest rank."""
    return table(HEADERS, plans_rows(estimates), words=("layout", "bound by"))


def placed_on_pools(question: Question, estimate: Estimate) -> tuple[str | Table, ...]:
    """What to print of where a plan lies on several pools; nothing on a cluster of one kind of GPU."""
    return ("", pools_table(question, estimate)) if isinstance(question, MixedQuestion) else ()


def plans_rows(estimates: Sequence[Estimate]) -> list[tuple[str, ...]]:
    """The cells of that table, as text."""
    return [
        (
            str(rank),
            estimate.layout.brief,
            format_seconds(estimate.step_seconds),
            percent(estimate.mfu),
            f"{estimate.tokens_per_second / estimate.layout.num_gpus:,.0f}".replace(",", " "),
            format_bytes(estimate.peak_bytes),
            part_label(estimate.bound_by),
        )
        for rank, estimate in enumerate(estimates, start=1)
    ]


def certificate_sentence(certificate: Certificate, best_seconds: float) -> str:
    """The proof, or how far it got; "proved" is said only at gap 0."""
    done = (
        f"{count(certificate.layouts, 'layout')}, {spaced(certificate.infeasible)} do not fit, "
        f"{spaced(certificate.pruned)} skipped by bound, {spaced(certificate.solved)} placed exactly"
    )
    seconds = format_seconds(certificate.seconds)
    if certificate.gap <= 0:
        return wrapped(f"Proved optimal: {done}, gap 0 %, {seconds}")
    best = f"best {format_seconds(best_seconds)}, proven within {percent(certificate.gap)} of optimal"
    return wrapped(f"Stopped after {seconds}: {best} ({done})")
