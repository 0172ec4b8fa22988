"""Text on ranked plans: the question, the table of plans, and the proof."""

from __future__ import annotations

from cost_models.estimate import Estimate, Trust
from cost_models.question import Question
from cost_models.risk import EVEN
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.estimates import has_low_causal_mfu, host_sentences
from meshwright.render.goals import (
    answers_sentence,
    changes_sentence,
    documents_sentence,
    gpus_in_words,
    pools_table,
    tuning_sentence,
    value_text,
)
from meshwright.render.tables import Table, table_of
from meshwright.render.words import part_label, percent, sentence_list, wrapped
from planner.answers.optimum import Optimum
from planner.objectives import Certificate


def question_header(question: Question, trust: Trust, *, subject: str = "") -> str:
    """Header on the question (model or `subject`, GPUs, tokens per step), changes of the job, stack, and how far
    prices can be trusted."""
    cluster, training = question.cluster, question.training
    mixed = question.has_pools
    nodes = f" ({counted(cluster.nodes, 'node')})" if cluster.nodes > 1 and not mixed else ""
    words = (
        f"{subject or question.model.name} on {gpus_in_words(question)}{nodes}, "
        f"{format_count(training.tokens_per_step)} tokens/step ({training.in_words}, {training.precision})"
    )
    if question.confidence > EVEN:
        words += f", to fit with probability {100 * question.confidence:.4g} %"
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
    """Question header, `words` about a layout, host-memory traffic and bottleneck, and the table of its GPU pools."""
    notes = *host_sentences(question, estimate), *placed_on_pools(question, estimate)
    return question_header(question, estimate.trust), "", words, *notes


def placed_on_pools(question: Question, estimate: Estimate) -> tuple[str | Table, ...]:
    """Empty line and table of a plan's GPU pools; empty on a cluster of one kind of GPU."""
    return ("", pools_table(question, estimate)) if question.has_pools else ()


def optimum_table(optimum: Optimum) -> Table:
    """Table with a row per plan, best first: layout, step, MFU (and causal MFU if much lower), tokens/s/GPU or the
    objective's value, peak memory of the fullest rank, bottleneck."""
    estimates, name, measure = optimum.result.estimates, optimum.objective.name, optimum.objective.measure
    gpus = {"GPUs": [grouped(one.layout.num_gpus) for one in estimates]}
    speeds = [round(one.tokens_per_second / one.layout.num_gpus) for one in estimates]
    measures = {"tok/s/GPU": list(map(grouped, speeds))}
    if name in ("gpu-hours", "cost"):
        measures = {measure.label: [value_text(optimum.value_of(one), measure.unit) for one in estimates]}
    elif optimum.sizes or name not in ("time", "mfu", "memory"):
        measures = gpus
    causal = {"causal": [percent(one.causal_mfu) for one in estimates]}
    columns = {
        "#": [str(rank) for rank in range(1, len(estimates) + 1)],
        **(gpus if optimum.sizes and measures is not gpus else {}),
        "layout": [one.layout.brief for one in estimates],
        "step": [format_seconds(one.step_seconds) for one in estimates],
        "MFU": [percent(one.mfu) for one in estimates],
        **(causal if any(map(has_low_causal_mfu, estimates)) else {}),
        **measures,
        "peak mem": [format_bytes(one.peak_bytes) for one in estimates],
        "bound by": [part_label(one.bound_by) for one in estimates],
    }
    return table_of(columns, words=("layout", "bound by"))


def proof_words(certificate: Certificate, best_seconds: float) -> str:
    """Words on the proof of optimality, or on the gap that remains; "proved" is said only at gap 0."""
    seconds = format_seconds(certificate.seconds)
    work = counted(certificate.layouts, "layout")
    if certificate.infeasible or certificate.pruned or certificate.solved:  # plan files do not say
        bounds = f"lower bounds rule out {grouped(certificate.pruned)}, {grouped(certificate.solved)} solved exactly"
        work += f": {grouped(certificate.infeasible)} do not fit, {bounds}"
    if certificate.gap <= 0:
        took = f" in {seconds}" if certificate.seconds else ""  # plan files hold no durations
        minimised = ""
        if certificate.minimised != "none":
            over = "expected over" if certificate.minimised == "neutral" else "over the slowest"
            scenarios = counted(certificate.scenarios, "scenario")
            minimised = f", {over} {scenarios} ({format_seconds(best_seconds)})"
        return f"proved optimal under the cost model{minimised}{took}; {work}"
    bound = f"proved within {percent(certificate.gap)} of the optimum"
    proven = bound if certificate.gap < 1 else "nothing proved"
    duration = f" after {seconds}" if certificate.seconds else ""
    return f"stopped{duration}: best {format_seconds(best_seconds)}, {proven}; {work}"


def certificate_sentence(certificate: Certificate, best_seconds: float) -> str:
    """Sentence on the proof of optimality, and on whether an integer program confirms it."""
    words, settled = proof_words(certificate, best_seconds), certificate.settled
    if certificate.proved_by == "ilp":
        words += "; by one integer program over all of them"
    elif settled is not None and settled.layouts > 1:
        words += f"; an integer program over the {counted(settled.layouts, 'layout')} left confirms it"
    return wrapped(f"{words[0].upper()}{words[1:]}")
