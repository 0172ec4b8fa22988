"""The answer of `plan` in figures: what to train with, its step, memory and proof, and the runner-up."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.axes.layout import Layout
from cost_models.estimate import Estimate, error_between
from cost_models.expected import expected_step
from cost_models.risk import FITTING, Risk
from cost_models.units import counted, format_bytes, format_seconds, grouped
from meshwright.families.transformer.planning.recommendation import FASTEST, choice_words
from meshwright.families.transformer.planning.training import training_run
from meshwright.render.estimates import chance_text, estimate_facts, host_facts
from meshwright.render.explanation import saves_and_pays
from meshwright.render.goals import measured_words, optimum_proof_words
from meshwright.render.ranked import proof_words
from meshwright.render.words import NEGLIGIBLE_SHARE, Fact, change, percent
from planner.answers.optimum import Optimum
from planner.answers.recommend import Recommendation
from planner.explain.compare import difference
from planner.objectives import Certificate
from planner.plan import Plan

_ONE_LINE = 67
"""Letters of a fact that stand beside its name on a line of 80 columns."""


def plan_facts(
    optimum: Optimum, told: Recommendation | None = None, *, cluster: str = "", proof: str = ""
) -> Iterator[Fact]:
    """What to train with, and how sure that is; on which cluster and with what proof, where several were searched."""
    question = optimum.question
    picked = optimum.result.best if told is None else told.estimate
    if optimum.sizes:
        where = f" of {cluster}" if cluster else ""
        yield Fact(name="train on", value=counted(picked.layout.num_gpus, "GPU") + where)
    yield Fact(name="train with", value=picked.layout.brief)
    expected = expected_step(question, picked) if told is None else told.expected
    yield from estimate_facts(picked, expected, more=_memory_words(told))
    yield from host_facts(picked)
    if (training := training_run(question, optimum.objective, picked, expected)) is not None:
        yield Fact(name="training", value=training.words)
    yield Fact(name="proof", value=proof or _proof(optimum, told))


def beside_facts(optimum: Optimum, told: Recommendation | None) -> Iterator[Fact]:
    """Why it is not the fastest of its kind, the runner-up with what speaks against it, and the classical layout."""
    if told is not None and told.choice is not None:
        yield Fact(name="choice", value=choice_words(told.choice))
    if told is not None and not told.is_fastest:
        beside = _beside(told.estimate, told.fastest.estimate)
        error = error_between(told.estimate.layout, told.fastest.estimate.layout, optimum.question)
        against = _against(told.question.risk, told.fastest.chance, error)
        yield Fact(name="runner-up", value=f"{beside}; {against}")
    elif len(optimum.result.estimates) > 1:
        yield Fact(name="runner-up", value=_second(optimum))
    if told is not None and told.classical is not None and told.classical.axes:
        words = _beside(told.estimate, told.classical.estimate)
        on_one_line = words if len(words) <= _ONE_LINE else words.rpartition(", ")[0]  # without its memory
        yield Fact(name="classical", value=on_one_line)


def facts_of_file(plan: Plan, estimate: Estimate) -> Iterator[Fact]:
    """The same of a plan file, as its layout is priced now."""
    question, told, certificate = plan.question, plan.recommendation, plan.certificate
    yield Fact(name="train with", value=estimate.layout.brief)
    yield from (*estimate_facts(estimate, expected_step(question, estimate)), *host_facts(estimate))
    if certificate is None:
        yield Fact(name="proof", value="none: this layout was given, not searched for")
        return
    if told is None or not told.why:
        yield Fact(name="proof", value=proof_words(certificate, estimate.compared_seconds))
        return
    own = plan.prediction
    gain = 1 - (told.fastest_weighed or told.fastest_seconds) / (own.weighed_seconds or own.step_seconds)
    yield Fact(name="proof", value=f"{_kind(told.why, certificate, gain, _slower(plan))} layouts")
    if told.choice is not None:
        yield Fact(name="choice", value=choice_words(told.choice))
    beside = _beside_words(own.step_seconds, told.fastest, told.fastest_seconds, told.fastest_bytes)
    against = _against(told.risk, told.chance, error_between(estimate.layout, told.fastest, question))
    yield Fact(name="runner-up", value=f"{beside}; {against}")


def _proof(optimum: Optimum, told: Recommendation | None) -> str:
    """What is proved of the layout, in one sentence."""
    if not optimum.plain:
        return optimum_proof_words(optimum)
    certificate = optimum.result.certificate
    if told is None or told.is_fastest:
        return proof_words(certificate, optimum.result.best.compared_seconds)
    slower = 0.0 if told.choice is None else told.estimate.step_seconds / told.choice.first_seconds - 1
    kind = f"{_kind(told.why, told.certificate, told.gain, slower)} {grouped(certificate.layouts)}"
    if (
        told.certificate.layouts == certificate.layouts and told.choice is None
    ):  # they differ in how surely they fit
        of_all = counted(certificate.layouts, "layout")
        kind = f"fastest of {of_all} that fits with {100 * FITTING:.0f} %; {_behind(told.gain)} the fastest"
    return f"{kind}; proved under the cost model in {format_seconds(certificate.seconds)}"


def _kind(why: str, certificate: Certificate, gain: float, slower: float) -> str:
    """ "fastest of the 5,660 layouts that leave room; 0.3 % behind the fastest of all", where it is no share slower."""
    kind = f"fastest of the {counted(certificate.layouts, 'layout')} that {why}"
    kind = f"{percent(slower)} slower than the {kind}" if slower else kind
    return f"{kind}; {_behind(gain)} the fastest of all"


def _slower(plan: Plan) -> float:
    """How much slower on paper a plan is than what its certificate is about."""
    own = plan.prediction.weighed_seconds or plan.prediction.step_seconds
    return own / plan.proved_seconds - 1


def _behind(gain: float) -> str:
    return "as fast as" if gain < NEGLIGIBLE_SHARE else f"{percent(gain)} behind"


def _against(risk: Risk, chance: float, error: float) -> str:
    """Why the fastest on paper is not the recommended layout."""
    return (
        f"{FASTEST[risk]}, but with a chance of {100 * chance:.0f} % that it is faster at all: the model's error"
        f" between two such layouts is {percent(error)}"
    )


_WORTH_MEMORY = 0.005
"""Share of the step from which it is said what the last of the memory would gain."""


def _memory_words(told: Recommendation | None) -> str:
    """What the last of the memory would buy; where no layout surely fits, that."""
    if told is not None and told.is_risky:
        return f"no layout fits with {100 * FITTING:.0f} %"
    if told is None or not told.fills_devices or told.gain < _WORTH_MEMORY:
        return ""
    full = told.fastest.estimate
    gain = percent(told.gain)
    fits = f"fits with {chance_text(full.fits_probability)}"
    return f"the runner-up gains {gain} with {format_bytes(full.peak_bytes)}, and {fits}"


def _beside(own: Estimate, other: Estimate) -> str:
    return _beside_words(own.step_seconds, other.layout, other.step_seconds, other.peak_bytes)


def _beside_words(own_seconds: float, layout: Layout, seconds: float, peak_bytes: float) -> str:
    """ "tp8 pp4 …: 16.17 s (+8.7 %), 48.4 GiB": another layout beside the chosen one."""
    gain = change(own_seconds, seconds)
    return f"{layout.brief}: {format_seconds(seconds)} ({gain}), {format_bytes(peak_bytes)}"


def _second(optimum: Optimum) -> str:
    """The second of the ranking, with what the first does better."""
    first, other = optimum.result.estimates[:2]
    told = _beside(first, other)
    if optimum.sizes:
        told = f"{counted(other.layout.num_gpus, 'GPU')}, {told}"
    if not optimum.plain:
        measure = optimum.objective.measure
        shown = measure.unit in ("GPUs", "bytes", "share", "seconds")  # as one of the figures before
        return told if shown else f"{told}; {measured_words(measure, optimum.value_of(other))}"
    parts = difference(first.time, other.time)
    return f"{told}; the plan {saves_and_pays(parts, first.step_seconds)}"
