"""Text on one priced layout: step and its parts, memory of its fullest rank, and the expected step by measured
runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.axes.offload.channels import HostWindows, host_windows
from cost_models.estimate import Estimate, words_beyond_runs
from cost_models.expected import SPLIT, ExpectedStep, NearRuns
from cost_models.question import Question
from cost_models.risk import EVEN, FITTING, least_chance
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.words import (
    Fact,
    in_unit,
    part_label,
    parts_sentence,
    percent,
    sentence_list,
    size_unit,
    time_unit,
    wrapped,
)

_UNLIKELY = 0.01
"""Probability below which text says `< 1 %`; above one minus this, `> 99 %`."""
_CAUSAL_APART = 0.03
"""Difference, as a share of peak FLOP/s, from which text names causal MFU beside MFU."""


def utilisation_words(estimate: Estimate) -> str:
    """Words on MFU, causal MFU (scores under the causal mask left out) and HFU (recomputed FLOPs included)."""
    return f"MFU {percent(estimate.mfu)} ({percent(estimate.causal_mfu)} causal), HFU {percent(estimate.hfu)}"


def has_low_causal_mfu(estimate: Estimate) -> bool:
    """Whether causal MFU is lower than MFU by so much that text names both."""
    return estimate.mfu - estimate.causal_mfu > _CAUSAL_APART


def mfu_words(estimate: Estimate) -> str:
    """Words such as "MFU 53.8 %"; with causal MFU if much lower: "MFU 67.5 % (42.7 % causal)"."""
    causal = f" ({percent(estimate.causal_mfu)} causal)" if has_low_causal_mfu(estimate) else ""
    return f"MFU {percent(estimate.mfu)}{causal}"


def answers_words(estimate: Estimate, gpus: int = 1) -> str:
    """Words on the rate of answer tokens per GPU, as in ", 22,054 of them of answers"; empty if the loss counts all
    tokens."""
    answer_rate = estimate.answers_per_second
    return f", {grouped(round(answer_rate / gpus))} of them of answers" if answer_rate else ""


def step_words(seconds: float, expected: ExpectedStep | None) -> str:
    """Words on a step's predicted seconds and, if runs are known, the expected ones: "14.88 s on paper; expected
    14.74 s, 90 % interval 13.5 s to 16.1 s"."""
    if expected is None:
        return format_seconds(seconds)
    low, high = map(format_seconds, expected.interval)
    paper, middle = format_seconds(seconds), format_seconds(expected.seconds)
    words = paper if middle == paper else f"{paper} on paper; expected {middle}"
    return f"{words}{';' if middle == paper else ','} 90 % interval {low} to {high}"


def estimate_facts(estimate: Estimate, expected: ExpectedStep | None, *, note: str = "") -> tuple[Fact, ...]:
    """Facts on a layout: step, speed, memory; `note` is added to the fact on memory."""
    gpus = estimate.layout.num_gpus
    rate = f"{grouped(round(estimate.tokens_per_second / gpus))} tokens/s per GPU"
    rate += answers_words(estimate, gpus)
    speed = f"{mfu_words(estimate)}; {rate}; bound by {part_label(estimate.bound_by)}"
    memory = f"{format_bytes(estimate.peak_bytes)} of {format_bytes(estimate.allocatable_bytes)} per GPU"
    memory += f"; fits with probability {chance_text(estimate.fits_probability)}"
    return (
        Fact(name="step", value=step_words(estimate.step_seconds, expected)),
        Fact(name="speed", value=speed),
        Fact(name="memory", value="; ".join(filter(None, [memory, note]))),
    )


def estimate_text(estimate: Estimate, *, searched: bool = False) -> str:
    """Text on a layout: speed, time by part, memory by part, host memory, warnings; if `searched`, also how blocks
    are split over stages."""
    layout, per_gpu = estimate.layout, round(estimate.tokens_per_second / estimate.layout.num_gpus)
    rate = f"{format_count(estimate.tokens_per_second)} tokens/s ({format_count(per_gpu)} per GPU)"
    most = estimate.microbatches
    fewest = min((min(pool.microbatches) for pool in estimate.replicas), default=most)
    number = f"{fewest} to " * (fewest != most) + counted(most, "microbatch")
    speed = f"step {format_seconds(estimate.step_seconds)} on paper, {utilisation_words(estimate)}, {rate}"
    lines = [wrapped(f"layout {layout}")]
    if searched and len(set(layout.layers)) > 1:
        subject = f"{counted(sum(layout.layers), 'block')} on {counted(layout.num_stages, 'stage')}"
        word = str(layout).rpartition(" layers=")[2].partition(" ")[0]
        chosen = f"`layers={word}` was chosen, the fastest split{' that fits' * estimate.fits}"
        lines.append(wrapped(f"{subject}: {chosen}; yours can be said in the layout"))
    lines += [wrapped(f"{speed}{answers_words(estimate)}, {number}"), time_sentence(estimate)]
    return "\n".join([*lines, memory_sentence(estimate), *host_lines(estimate), *warning_lines(estimate)])


def warning_lines(estimate: Estimate) -> list[str]:
    """Lines of an estimate's own warnings about its price; usually none."""
    return [wrapped(f"warning: {text}") for text in estimate.warnings]


def time_sentence(estimate: Estimate) -> str:
    """Sentence on the parts of a step on the busiest rank: "step 132.1 s on paper = compute 112.6 + tp comm 14.4
    (16.6 more overlapped) + ..."."""
    unit = time_unit(estimate.step_seconds)
    parts = parts_sentence(estimate.time, unit, hidden=estimate.hidden_comm)
    return wrapped(f"step {in_unit(estimate.step_seconds, unit)} {unit[0]} on paper = {parts}")


def memory_sentence(estimate: Estimate) -> str:
    """Sentence on memory of the fullest pipeline rank: "memory 61.3 GiB of 74.0 GiB on pipeline rank 0 = weights 8.2
    + ...; fits ...". A layout that does not fit has a probability only where it is worth a trial: one measured run in
    fifty is an outlier, which says nothing of a peak twice the limit."""
    rank = estimate.fullest_rank
    memory = estimate.rank_memory[rank]
    unit = size_unit(memory.total)
    place = f" on pipeline rank {rank}" if len(estimate.rank_memory) > 1 else ""
    size = f"{in_unit(memory.total, unit)} {unit[0]} of {estimate.limit_words}"
    text = f"memory {size}{place} = {parts_sentence(memory, unit)}"
    if not estimate.device_holds:
        text += f"; does not fit: {in_unit(memory.total - estimate.memory_limit, unit)} {unit[0]} too many"
    chance = estimate.fits_probability
    if estimate.device_holds or 1 - FITTING <= chance < EVEN:
        text += f"; fits with probability {chance_text(chance)}"
    elif chance >= EVEN:
        bound = 100 * least_chance(estimate.confidence)
        text += f"; fits with probability {100 * chance:.3g} %, less than the {bound:.3g} % that a layout must have"
    return wrapped(text + _tight(estimate) * estimate.device_is_tight)


def _tight(estimate: Estimate) -> str:
    """Words on the error of predicted peaks, for a layout that barely fits or barely does not."""
    tight = ", tight: " if estimate.fits else "; "
    return f"{tight}measured peaks have been off by up to {100 * estimate.trust.memory_error:.0f} %"


def host_facts(estimate: Estimate) -> list[Fact]:
    """Facts on host memory ("95.2 GiB of 128.0 GiB on each host") and on the drive; none for a tier that holds
    nothing."""
    tiers = [
        ("host memory", estimate.host_bytes, estimate.host_limit, estimate.host_bytes > 0),
        ("drive", estimate.drive_bytes, estimate.drive_limit, estimate.layout.offload.drive > 0),
    ]
    facts = list[Fact]()
    for name, size, limit, used in tiers:
        if used:
            text = f"{format_bytes(size)}{'' if limit is None else f' of {format_bytes(limit)}'} on each host"
            if limit is not None and size > limit:
                text += f"; does not fit: {format_bytes(size - limit)} too many"
            text += _tight(estimate) * (estimate.host_is_tight and not facts)
            facts.append(Fact(name=name, value=text))
    return facts


def host_lines(estimate: Estimate) -> list[str]:
    """Lines on the bytes in the memory of each host and on its drive; empty without offload."""
    return [wrapped(f"{fact.name} {fact.value}") for fact in host_facts(estimate)]


def chance_text(chance: float) -> str:
    """Probability as text: 0.968 → "97 %"; below 1 % "< 1 %", above 99 % "> 99 %"."""
    if chance < _UNLIKELY:
        return "< 1 %"
    return "> 99 %" if chance > 1 - _UNLIKELY else f"{100 * chance:.0f} %"


def host_sentences(question: Question, estimate: Estimate) -> tuple[str, ...]:
    """Lines on offload: seconds of copies and updates per step, the bottleneck, the ring and the CPU's update; empty
    without offload."""
    windows = host_windows(question, estimate)
    if windows is None:
        return ()
    busy = f"link down {format_seconds(windows.down)}, up {format_seconds(windows.up)}"
    waits = f"{format_seconds(windows.exposed)} are" if windows.exposed else "nothing is"
    update = f"CPU update {format_seconds(windows.update)}"
    if windows.read or windows.write:
        update += f", drive read {format_seconds(windows.read)}, write {format_seconds(windows.write)}"
    hides = f"the passes can overlap {format_seconds(windows.hidden)}"
    if windows.late_hidden < windows.hidden:
        hides += f", of updates {format_seconds(windows.late_hidden)}"
    binds = f"Bottleneck on the host: {windows.binding.removeprefix('host ')}."
    if windows.binding == "nothing":
        binds = "Nothing on the host is a bottleneck."
    elif windows.binding in ("host memory", "drive", "device memory"):
        binds = f"Bottleneck of the tiers: {windows.binding}, which is full."
    channels = f"host: {busy}, {update} a step; {hides}; {waits} waited for"
    lines = channels, binds, _ring(windows, estimate.layout.ring), _update(windows)
    return tuple(map(wrapped, filter(None, lines)))


def _ring(windows: HostWindows, ring: int) -> str:
    """Sentence on how many device buffers (the ring) hide the transfer of offloaded weights, or on what would if no
    number does; empty if no weights stream."""
    if windows.transfer is None or windows.forward_tokens is None:
        return ""
    times = f"weights of a block come in {format_seconds(windows.transfer)}, its forward pass takes"
    times += f" {format_seconds(windows.forward)}"
    if windows.ring is not None:
        other_ring = "" if ring >= windows.ring else f", not ring={ring}"
        return f"ring={windows.ring} suffices{other_ring}: {times}."
    return (
        f"No ring overlaps the weights' transfer: {times}; from {grouped(round(windows.forward_tokens))} tokens a"
        f" microbatch on ring=2 does (now {grouped(round(windows.microbatch_tokens))}), or fewer streamed blocks."
    )


def _update(windows: HostWindows) -> str:
    """Sentence on the microbatch from which the CPU's optimizer update overlaps with the passes; empty without such
    an update."""
    if windows.update == 0:
        return ""
    if windows.update_tokens is None:
        return "This stack updates after the passes, so the CPU's update overlaps with nothing."
    verb = "overlaps whole" if windows.update_tokens <= windows.microbatch_tokens else "would overlap whole"
    drive = " with what it takes from the drive" if windows.read else ""
    tokens, now = grouped(round(windows.update_tokens)), grouped(round(windows.microbatch_tokens))
    return f"The CPU's update{drive} {verb} from {tokens} tokens a microbatch on (now {now})."


_TIMES = {1: "once", 2: "twice"}
_MAX_DIFFERENCES = 3
"""Largest number of features in which a measured run may differ for its times to be compared."""
_LAYOUT = {*SPLIT, "zero", "recompute"}
"""Features that differ only in the layout: measured times are then always comparable."""


def expected_lines(question: Question, layout: Layout, expected: ExpectedStep | None) -> list[str]:
    """Line with the step time expected in a real run and its 90 % interval, and line on the nearest measured runs;
    empty if `expected` is None."""
    if expected is None:
        return []
    low, high = map(format_seconds, expected.interval)
    step = wrapped(f"Expected step {format_seconds(expected.seconds)}, 90 % interval {low} to {high}")
    return [step, nearest_sentence(question, layout, expected)]


def nearest_sentence(question: Question, layout: Layout, expected: ExpectedStep | None) -> str:
    """Sentence on the measured runs nearest to a layout, and on features that no run had; empty if no run is
    known."""
    if expected is None or expected.nearest is None:
        return ""
    runs, missing = expected.nearest, words_beyond_runs(question, layout)
    span = format_seconds(runs.least_seconds)
    if format_seconds(runs.most_seconds) != span:
        span += f" to {format_seconds(runs.most_seconds)}"
    times = _TIMES.get(runs.runs, f"{runs.runs} times")
    if not runs.differs:
        return wrapped(f"Timed {times}: {span} ({_whose(runs)})")
    if runs.differs == ("vpp",):
        return wrapped(f"Timed {times} with another vpp: {span} for {runs.layout} ({_whose(runs)})")
    nearest = f"The nearest measured run, {runs.layout} ({_whose(runs)}), took {span} and {_off(runs)}"
    words = f"{nearest}; it differs in {sentence_list(list(runs.differs))}"
    of_layout = _LAYOUT.issuperset(runs.differs)
    if of_layout and runs.most_seconds < expected.seconds:
        words += ", and was faster than this layout is expected to be"
    if len(runs.differs) > _MAX_DIFFERENCES and not of_layout:
        words = f"No measured run resembles this; the nearest ({_whose(runs)}) {_off(runs)}"
    if expected.borrowed:
        words = f"No run was measured on this GPU; the nearest ({_whose(runs)}) {_off(runs)}"
    if missing:
        words += f"; no run of profile {question.hardware.name} had {' or '.join(missing)}"
    return wrapped(words)


_UNTRUSTED = 0.5
"""Relative error of the nearest measured run above which a prediction is to be trusted little."""


def _off(runs: NearRuns) -> str:
    """Words on the prediction's error for the nearest measured runs, such as "is predicted 1.9 % too slow"."""
    words = f"is predicted {percent(abs(runs.off))} too {'slow' if runs.off > 0 else 'fast'}"
    return f"{words}, so trust this little" if abs(runs.off) > _UNTRUSTED else words


def _whose(runs: NearRuns) -> str:
    """Source, model, stack and GPUs of the nearest measured runs, as words."""
    return f"{runs.source}: {runs.model}, {runs.stack} on {grouped(runs.gpus)} {runs.gpu}"


def expected_record(
    question: Question, layout: Layout | None, expected: ExpectedStep | None
) -> dict[str, Any] | None:
    """JSON object of the expected step time: seconds, 90 % interval, nearest measured runs, and layout features that
    no run had; None if unknown."""
    if expected is None:
        return None
    near = expected.nearest
    return {
        "step_seconds": expected.seconds,
        "step_seconds_90": list(expected.interval),
        "borrowed": expected.borrowed,
        "nearest": None if near is None else {**asdict(near), "differs": list(near.differs)},
        "untried": [] if layout is None else list(words_beyond_runs(question, layout)),
    }
