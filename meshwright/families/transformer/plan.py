"""Answers of `plan` for transformers: ranked layouts of one cluster, or the best plans of several, with their
proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import OWN_STACKS
from cost_models.errors import InputError
from cost_models.estimate import Estimate, error_between, pair_error_of
from cost_models.expected import ExpectedStep, expected_step
from cost_models.pipeline.pricing import estimate as price
from cost_models.pipeline.pricing import trust_of
from cost_models.question import Question
from cost_models.risk import FITTING, Risk
from cost_models.units import counted, format_bytes, format_count, format_days, format_seconds, grouped
from meshwright.families.transformer.question import ClustersQuestion, PlanQuestion
from meshwright.families.transformer.training import TrainingRun, training_run
from meshwright.inputs.goals import objective_of
from meshwright.inputs.options import Goal
from meshwright.records import fields_of, present
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.estimates import (
    chance_text,
    estimate_facts,
    expected_record,
    host_facts,
    nearest_sentence,
    warning_lines,
)
from meshwright.render.explanation import saves_and_pays
from meshwright.render.goals import (
    changes_sentence,
    left_out_text,
    objective_words,
    optimum_proof_words,
    seconds_without_changes,
    value_text,
    worth_sentence,
)
from meshwright.render.ranked import (
    certificate_sentence,
    optimum_table,
    placed_on_pools,
    proof_words,
    question_header,
)
from meshwright.render.tables import Table, in_notebook, table_of
from meshwright.render.words import (
    NEGLIGIBLE_SHARE,
    NOT_PROVED,
    Fact,
    change,
    facts_text,
    money,
    percent,
    sentence_list,
    wrapped,
)
from meshwright.terminal.answers import HoldsRequest
from meshwright.verbs.contract import PlanAnswer
from planner.answers.optimum import POINTS, PROVEN, OfferAnswer, Optimum, Ranking
from planner.answers.recommend import Alternative, Recommendation, chance_faster, refusing_trainer
from planner.explain.compare import difference
from planner.formats.registry import exporter_of
from planner.formats.trainers import trainers_of
from planner.objectives import DAY, Certificate
from planner.plan import Plan, PlanCache, PlanChoice, PlanRecommendation, make_plan, save_plan
from planner.search.search import Budget
from planner.space.axes import divisors
from planner.space.obstacles import notes_of

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.plots.drawing import Drawing


FASTEST: dict[Risk, str] = {
    "none": "fastest on paper",
    "neutral": "fastest on average over the scenarios",
    "averse": "fastest in the slow scenarios",
}
"""Attitude to risk → name of the optimum over all layouts."""


def choice_words(choice: PlanChoice) -> str:
    """Words on why a layout was chosen over the fastest on paper: its mean step over likely constants is lower."""
    first, share = choice.first.brief, percent(choice.share)
    mean, rival = format_seconds(choice.middle_seconds), format_seconds(choice.first_middle_seconds)
    return (
        f"lowest mean step over likely constants, {mean}, among {counted(choice.layouts, 'layout')} within {share}"
        f" of the fastest on paper; {first}, {format_seconds(choice.first_seconds)} on paper, averages {rival}"
    )


def gain_of_fastest(plan: Plan, pick: PlanRecommendation) -> float:
    """Share of the recommended plan's step time that the fastest layout would save."""
    step = plan.prediction
    return 1 - (pick.fastest_weighed or pick.fastest_seconds) / (step.weighed_seconds or step.step_seconds)


def recommended_in_plan(plan: Plan) -> str:
    """Sentence on why a plan file's layout was recommended; empty without a recommendation."""
    if (pick := plan.recommendation) is None:
        return ""
    if not pick.why:
        reason = "no simpler layout comes within the model's error."
        return wrapped(f"Recommended: the {FASTEST[pick.risk]}; {reason}")
    kind = f"the fastest of the layouts that {pick.why}"
    if pick.choice is not None:
        kind = f"among the layouts that {pick.why}, the one with the {choice_words(pick.choice)}"
    fastest = f"The {FASTEST[pick.risk]}, {pick.fastest.brief}, takes {format_seconds(pick.fastest_seconds)}"
    refusing = refusing_trainer(plan.question, plan.user_restrictions, pick.fastest)
    chance = f"is {100 * pick.chance:.0f} % likely to be faster"
    against = f", but {refusing} cannot run it" if refusing else f" and {chance}"
    return wrapped(f"Recommended: {kind}. {fastest} ({percent(gain_of_fastest(plan, pick))} less){against}.")


def recommendation_record(advice: Recommendation) -> dict[str, Any]:
    """JSON object of a recommended layout, beside the fastest on paper: seconds, bytes and shares."""
    pair_error, near = pair_error_of(advice.question), advice.within_error
    return {
        "plan": estimate_record(advice.estimate),
        "risk": advice.question.risk,
        **fields_of(advice, "why", "is_fastest"),
        "fastest_on_paper": _beside_record(advice.fastest),
        "gain": advice.gain,
        "classical": advice.classical and _beside_record(advice.classical),
        "pair_error": pair_error,
        "fills_devices": advice.fills_devices,
        "within_error": None if near is None else {"share": pair_error, "layouts_at_most": near},
        "expected": expected_record(advice.question, advice.estimate.layout, advice.expected),
        "choice": advice.choice and advice.choice.model_dump(mode="json"),
        "certificate": advice.certificate.model_dump(mode="json"),
    }


def _beside_record(rival: Alternative) -> dict[str, Any]:
    """JSON object of a layout beside the recommended layout: price, differing axes, probability that it is faster."""
    return {
        "layout": str(rival.estimate.layout),
        **fields_of(rival.estimate, "step_seconds", "peak_bytes", "fits_probability"),
        "differs_in": list(rival.axes),
        "chance": rival.chance,
    }


_ONE_LINE = 67
"""Largest number of characters of a fact that fit beside its name on a line of 80."""


def plan_facts(
    optimum: Optimum, advice: Recommendation | None = None, *, cluster: str = "", proof: str = ""
) -> Iterator[Fact]:
    """Facts on the layout to train with: step, speed, memory, training and proof; `cluster` is named if several were
    searched."""
    question = optimum.question
    picked = optimum.result.best if advice is None else advice.estimate
    if optimum.sizes:
        place = f" of {cluster}" if cluster else ""
        yield Fact(name="train on", value=counted(picked.layout.num_gpus, "GPU") + place)
    yield Fact(name="train with", value=picked.layout.brief)
    expected = expected_step(question, picked) if advice is None else advice.expected
    yield from estimate_facts(picked, expected, note=_memory_words(advice))
    yield from today_facts(question, picked, expected)
    yield from host_facts(picked)
    if (training := training_run(question, optimum.objective, picked, expected)) is not None:
        yield Fact(name="training", value=training.words)
    yield Fact(name="proof", value=proof or _proof(optimum, advice))


def today_facts(question: Question, picked: Estimate, expected: ExpectedStep | None) -> Iterator[Fact]:
    """Fact on the layout that runs today with its measured step, beside the picked one; nothing if none was
    measured."""
    if (run := question.measured) is None:
        return
    today = price(run.question, parse_layout(run.layout))
    paper = format_seconds(today.step_seconds)
    words = f"{today.layout.brief}: {format_seconds(run.seconds)} measured, {paper} on paper"
    if picked.layout != today.layout and expected is not None:
        ratio, chance = expected.seconds / run.seconds, chance_faster(question, today, picked)
        words += (
            f"; the plan's expected step is {percent(abs(ratio - 1))} {'shorter' if ratio < 1 else 'longer'}"
        )
        words += f", and {chance_text(chance)} likely to be shorter"
    yield Fact(name="today", value=words)


def runner_up_facts(
    pick: PlanRecommendation, question: Question, refusing: str, layout: Layout, step_seconds: float
) -> Iterator[Fact]:
    """Facts on why another layout than the fastest was picked: the reason for the choice, if recorded, and
    the fastest as runner-up, which trainer `refusing` cannot run or which is unlikely to be faster."""
    if pick.choice is not None:
        yield Fact(name="choice", value=choice_words(pick.choice))
    words = _beside_words(step_seconds, pick.fastest, pick.fastest_seconds, pick.fastest_bytes)
    error = percent(error_between(layout, pick.fastest, question))
    likely = f"{100 * pick.chance:.0f} % likely to be faster (model error between such layouts: {error})"
    against = f"{refusing} cannot run it" if refusing else f"only {likely}"
    yield Fact(name="runner-up", value=f"{words}; {FASTEST[pick.risk]}, but {against}")


def facts_of_file(plan: Plan, estimate: Estimate) -> Iterator[Fact]:
    """Facts on the layout of a plan file, priced now: step, speed, memory, proof, runner-up."""
    question, pick, certificate = plan.question, plan.recommendation, plan.certificate
    yield Fact(name="train with", value=estimate.layout.brief)
    expected = expected_step(question, estimate)
    yield from (*estimate_facts(estimate, expected), *today_facts(question, estimate, expected))
    yield from host_facts(estimate)
    if certificate is None:
        yield Fact(name="proof", value="none: this layout was given, not searched for")
    elif pick is None or not pick.why:
        yield Fact(name="proof", value=proof_words(certificate, estimate.compared_seconds))
    else:
        step = plan.prediction
        slower = (step.weighed_seconds or step.step_seconds) / plan.proved_seconds - 1
        kind = _kind(pick.why, certificate, gain_of_fastest(plan, pick), slower, "all layouts")
        yield Fact(name="proof", value=kind)
        refusing = refusing_trainer(question, plan.user_restrictions, pick.fastest)
        yield from runner_up_facts(pick, question, refusing, estimate.layout, step.step_seconds)


def _proof(optimum: Optimum, advice: Recommendation | None) -> str:
    """Words on the proof of the chosen layout."""
    certificate = optimum.result.certificate
    if advice is None or advice.is_fastest:
        seconds = optimum.result.best.compared_seconds
        return proof_words(certificate, seconds) if optimum.plain else optimum_proof_words(optimum)
    slower = 0.0 if advice.choice is None else advice.estimate.step_seconds / advice.choice.first_seconds - 1
    every = f"all {counted(certificate.layouts, 'layout')}"
    kind = _kind(advice.why, advice.certificate, advice.gain, slower, every)
    # of as many layouts they differ in how surely they fit
    if advice.certificate.layouts == certificate.layouts and advice.choice is None:
        kind = f"fastest that fits with {100 * FITTING:.0f} %; {_behind(advice.gain)} the best of {every}"
    return f"{kind}; proved under the cost model in {format_seconds(certificate.seconds)}"


def _kind(reason: str, certificate: Certificate, gain: float, slower: float, every: str) -> str:
    """Words on the recommended layout among all: "fastest of the 5,660 layouts that leave room; 0.3 % slower than the
    best of all 7,000 layouts"."""
    kind = f"fastest of the {counted(certificate.layouts, 'layout')} that {reason}"
    kind = f"{percent(slower)} slower than the {kind}" if slower else kind
    return f"{kind}; {_behind(gain)} the best of {every}"


def _behind(gain: float) -> str:
    """Words on a relative gain: "0.3 % slower than", or "as fast as" if negligible."""
    return "as fast as" if gain < NEGLIGIBLE_SHARE else f"{percent(gain)} slower than"


_WORTH_MEMORY = 0.005
"""Smallest gain in step time from using the last memory that text mentions."""


def _memory_words(advice: Recommendation | None) -> str:
    """Words on memory: that no layout fits with high probability, or what the runner-up gains by filling more of it;
    else empty."""
    if advice is not None and advice.is_risky:
        return f"no layout fits with {100 * FITTING:.0f} %"
    if advice is None or not advice.fills_devices or advice.gain < _WORTH_MEMORY:
        return ""
    full = advice.fastest.estimate
    fits = f"fits with {chance_text(full.fits_probability)}"
    return f"the runner-up gains {percent(advice.gain)} with {format_bytes(full.peak_bytes)}, and {fits}"


def _rival_words(estimate: Estimate, rival: Estimate) -> str:
    """Words on a rival layout beside the chosen one: layout, step time, change, peak memory."""
    return _beside_words(estimate.step_seconds, rival.layout, rival.step_seconds, rival.peak_bytes)


def _beside_words(own_seconds: float, layout: Layout, seconds: float, peak_bytes: float) -> str:
    """Words on another layout beside a step of `own_seconds`: "tp8 pp4 …: 16.17 s (+8.7 %), 48.4 GiB"."""
    gain = change(own_seconds, seconds)
    return f"{layout.brief}: {format_seconds(seconds)} ({gain}), {format_bytes(peak_bytes)}"


def _second(optimum: Optimum) -> str:
    """Words on the second-best layout, and what the best does better."""
    first, rival = optimum.result.estimates[:2]
    words = _rival_words(first, rival)
    if optimum.sizes:
        words = f"{counted(rival.layout.num_gpus, 'GPU')}, {words}"
    if not optimum.plain:
        measure = optimum.objective.measure
        visible = measure.unit in ("GPUs", "bytes", "share", "seconds")  # as one of the figures before
        return words if visible else f"{words}; {objective_words(measure, optimum.value_of(rival))}"
    parts = difference(first.time, rival.time)
    return f"{words}; the plan {saves_and_pays(parts, first.step_seconds)}"


_ODD_FACTOR = 7
"""Prime factor of the number of GPUs from which on few degrees divide both GPUs and model."""
_NOT_COMPARED = (
    "warning: time ran out before simpler layouts, and those that fit more surely, were compared: this is the fastest"
    " on paper; allow more with --time-limit"
)


class Planned(HoldsRequest, PlanAnswer):
    """Answer of `plan` for one cluster: ranked layouts, the proof, and the recommended layout."""

    request: PlanQuestion
    optimum: Optimum
    recommendation: Recommendation | None = None
    """Recommended layout, beside the fastest on paper; None for another objective than the step, or if the search was
    cut short."""
    ranks: bool = False
    """Whether the ranking is printed below the answer."""
    note: str = ""
    """Note on what the best layout is held to besides the user's restrictions; empty if to nothing."""

    @property
    def question(self) -> Question:
        """Question of the request, on the best plan's number of GPUs."""
        return self.optimum.question

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question, self.request.restrictions)

    @property
    def best(self) -> Estimate:
        """Best layout by the objective, priced."""
        return self.optimum.result.best

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Ranked layouts, best first, priced."""
        return self.optimum.result.estimates

    @property
    def certificate(self) -> Certificate:
        """Proof that no layout is better, or the gap that remains."""
        return self.optimum.result.certificate

    @property
    def picked(self) -> Estimate:
        """Layout that is saved as the plan: the recommended one if there is any, else the best."""
        return self.best if self.recommendation is None else self.recommendation.estimate

    @property
    def plan(self) -> Plan:
        """Layout that was picked, as a plan."""
        per_node = self.request.question.cluster.gpus_per_node
        optimum, limits, advice = self.optimum, self.request.restrictions, self.recommendation
        if advice is None:
            best, proof = self.best, self.certificate
            return make_plan(self.question, best, proof, limits, optimum.for_file(per_node))
        objective = optimum.recommending(advice.estimate, advice.certificate).for_file(per_node)
        fields = advice.estimate, advice.certificate, advice.within, objective
        return make_plan(self.question, *fields, advice.for_file(limits, self.certificate.top))

    @cached_property
    def exporter(self) -> tuple[str, str]:
        """Trainer that `export` can write the plan for ("" if none), and the reason if none."""
        return exporter_of(self.plan)

    def save(self, path: str | Path) -> None:
        """Write the picked plan to a file, and store its proved rivals for later verbs."""
        from planner.explain.reasons import RIVALS

        plan, proof = self.plan, self.certificate
        save_plan(plan, Path(path))
        proper = (plan.layout, plan.restrictions.read) == (self.best.layout, self.request.restrictions)
        proved = self.optimum.plain and proof.proved_by == "search" and not proof.undecided
        if proper and proved and proof.top >= RIVALS:
            PlanCache(plan).store("rivals", [one.layout for one in self.estimates[:RIVALS]])

    def frontier(
        self,
        between: tuple[str, str] = ("time", "memory"),
        *,
        gpus: Sequence[int] = (),
        points: int | None = POINTS,
        time_limit: float | None = None,
    ) -> pd.DataFrame:
        """Frame with a row per point of the proven frontier of two objectives, over these numbers of GPUs (default:
        the plan's).

        `points` is the largest number of points if one objective is memory (None: all); `time_limit` is in seconds.
        """
        from planner.answers.frontier import exact_frontier, pareto_frame

        price = self.optimum.objective.price
        goals = [Goal(objective=name, price=price if name == "cost" else None) for name in between]
        first, second = (objective_of(goal)[0] for goal in goals)
        budget, limits = Budget(time_limit=time_limit, keep_on_interrupt=True), self.request.restrictions
        job, pair = self.question, (first, second)
        curve = exact_frontier(job, pair, sizes=gpus, points=points, restrictions=limits, budget=budget)
        return pareto_frame(curve)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Flat row for each ranked layout, with the objective's value if that is not the step time."""
        rows = [estimate_row(estimate) for estimate in self.estimates]
        for row, estimate in zip([] if self.optimum.plain else rows, self.estimates, strict=False):
            row |= {"gpus": estimate.layout.num_gpus, "objective": self.optimum.value_of(estimate)}
        return rows

    def document(self) -> dict[str, Any]:
        """JSON document: question, ranked plans, proof, objective, expected step and recommendation."""
        advice, optimum, question = self.recommendation, self.optimum, self.question
        expected = expected_step(question, self.picked) if advice is None else advice.expected
        training = training_run(question, optimum.objective, self.picked, expected)
        record = {
            "question": question_record(question),
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "plans": [estimate_record(estimate, question) for estimate in self.estimates],
            "certificate": self.certificate.model_dump(mode="json"),
            "objective": {
                "name": optimum.objective.name,
                "tokens": question.training.tokens,
                "price": optimum.objective.price,
                "deadline_seconds": optimum.objective.deadline,
                "gpus": list(optimum.sizes),
                "value": optimum.value,
                "unit": optimum.objective.measure.unit,
                **fields_of(optimum, "bound", "gap"),
                "left_out": [{"gpus": gpus, "why": why} for gpus, why in optimum.left_out],
            },
            "expected": expected_record(question, self.picked.layout, expected),
            "training": training and training.record(),
            **present(step_seconds_without=seconds_without_changes(question, self.picked)),
        }
        if advice is not None:
            export = dict(zip(("to", "why_not"), self.exporter, strict=True))
            record |= {"recommended": recommendation_record(advice), "pick": "recommended", "export": export}
        return record

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright plan` prints: the layout to train with, the runner-up, and the ranking if asked for."""
        advice, picked, question = self.recommendation, self.picked, self.question
        head = question_header(question, picked.trust), "", facts_text(self.facts)
        notes = [*warning_lines(picked), worth_sentence(question, picked)]
        notes += [] if advice is None else [nearest_sentence(question, picked.layout, advice.expected)]
        ranking = ("", *self.ranking) if self.ranks else ()
        return *head, *placed_on_pools(question, self.best), *filter(None, notes), *ranking

    def _repr_html_(self) -> str:
        """Answer with its ranking as HTML, for notebooks."""
        return in_notebook(replace(self, ranks=True).text)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Facts on the layout to train with, its step, memory and proof; then the runner-up with its drawback, and the
        classical layout, which an expert would set by hand."""
        optimum, advice = self.optimum, self.recommendation
        facts = list(plan_facts(optimum, advice))
        if advice is not None and not advice.is_fastest:
            pick, chosen = advice.for_file(advice.within, 1), advice.estimate
            refusing = refusing_trainer(advice.question, advice.within, pick.fastest)
            facts += runner_up_facts(pick, optimum.question, refusing, chosen.layout, chosen.step_seconds)
        elif len(optimum.result.estimates) > 1:
            facts.append(Fact(name="runner-up", value=_second(optimum)))
        if advice is not None and advice.classical is not None and advice.classical.axes:
            words = _rival_words(advice.estimate, advice.classical.estimate)
            on_one_line = (
                words if len(words) <= _ONE_LINE else words.rpartition(", ")[0]
            )  # without its memory
            facts.append(Fact(name="by hand", value=on_one_line))
        return tuple(facts)

    @property
    def ranking(self) -> tuple[str | Table, ...]:
        """Table of the fastest layouts on paper, the proof, and a count of layouts as fast as the fastest within the
        model's error."""
        advice, near = self.recommendation, ""
        proof = certificate_sentence(self.certificate, self.best.compared_seconds)
        if advice is not None and (advice.within_error or 0) > 1:
            layouts = f"Up to {counted(advice.within_error or 0, 'layout')} lie within"
            error = f"{percent(pair_error_of(advice.question))} of the {FASTEST[advice.question.risk]}"
            near = wrapped(f"{layouts} {error}, the model's error between two layouts")
        notes = [*filter(None, [proof * self.optimum.plain, near])]
        return optimum_table(self.optimum), *([""] if notes else []), *notes

    @property
    def is_proved(self) -> bool:
        return self.optimum.gap <= PROVEN

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """Remarks below the answer: best of other precisions, sizes without an answer, missing exporter, layouts not
        proved."""
        remarks = [
            f"note: in {rival.training.precision} the best is {estimate.layout.brief},"
            f" {format_seconds(estimate.step_seconds)} a step"
            for rival, estimate in self.optimum.other_precisions
        ]
        remarks += [self.note, left_out_text(self.optimum)]
        remarks += [odd_count_note(self.question.cluster.num_gpus, self.certificate)]
        if self.recommendation is not None and (reason := self.exporter[1]):
            remarks.append(f"note: `export` cannot write this plan: {reason}")
        compares = self.request.compares and not self.question.has_pools
        if interrupted:
            pass
        elif not self.is_proved:
            remarks.append(NOT_PROVED)
        elif undecided := self.certificate.undecided:
            number = counted(undecided, "layout")
            remarks.append(f"warning: only the first is proved; {number} may still belong among the others")
        elif compares and self.recommendation is None:
            remarks.append(_NOT_COMPARED)
        return [*filter(None, remarks)]

    @property
    def more(self) -> str:
        """Words that name the flag to print the ranking, such as "--top 5 prints the ranking"; empty if it is
        printed."""
        return "" if self.ranks else "--top 5 prints the ranking"

    def next_commands(self, path: Path) -> str:
        """Commands to suggest for the plan's file at `path`."""
        if self.question.has_pools and not self.best.replicas:
            return f"meshwright explain {path}"
        cluster, stack = self.question.cluster, self.plan.stack
        command, trainer = f"meshwright run {path}", self.exporter[0] or next(iter(trainers_of(stack)), "")
        if stack.name in OWN_STACKS:
            here = cluster.num_gpus <= cluster.gpus_per_node or cluster.gpu.kind == "cpu"
            trainer = "" if here else "slurm"
        command = f"meshwright export {path} --to {trainer}" if trainer else command
        return f"meshwright explain {path}, {command}"


def odd_count_note(gpus: int, certificate: Certificate) -> str:
    """Note that the number of GPUs has a large prime factor, which leaves few layouts; empty if it has none."""
    largest = _largest_factor(gpus)
    if largest < _ODD_FACTOR:
        return ""
    low = next(one for one in range(gpus, 0, -1) if _largest_factor(one) <= 3)
    high = next(one for one in count(gpus) if _largest_factor(one) <= 3)
    layouts = counted(certificate.layouts, "layout")
    return f"note: {gpus} GPUs are a multiple of {largest}, which leaves {layouts}; --gpus {low} or {high} has more"


def _largest_factor(number: int) -> int:
    """Largest prime factor of a number; 1 for 1."""
    return max((divisor for divisor in divisors(number) if len(divisors(divisor)) == 2), default=1)


_POINTS = 2
"""Largest number of points of the frontier of cost and time that are named."""
_LIMIT = 6
"""Largest number of clusters and numbers of GPUs without an answer that are all named."""


def answer_columns(ranking: Ranking, max_rows: int) -> dict[str, list[str]]:
    """Columns of the table of each cluster's best plan, best first and at most `max_rows`. Days and cost appear if
    known, MFU only if all plans are proved."""
    answers = ranking.answers[:max_rows]
    proved = all(answer.optimum.gap <= PROVEN for answer in ranking.answers)
    name, bests = ranking.objective.name, [answer.optimum.result.best for answer in answers]
    places = [ranking.places(answer) for answer in answers]
    columns: dict[str, list[str]] = {
        "#": [str(first) if first == last else f"{first}-{last}" for first, last in places],
        "cluster": [answer.offer.name for answer in answers],
        "GPUs": [grouped(answer.optimum.question.cluster.num_gpus) for answer in answers],
        "layout": [_degrees(answer) for answer in answers],
        "step": [format_seconds(best.step_seconds) for best in bests],
    }
    if name == "memory":
        columns["peak mem"] = [format_bytes(best.peak_bytes) for best in bests]
    elif proved:
        columns["MFU"] = [percent(best.mfu) for best in bests]
    if name == "gpu-hours":
        columns["GPU-hours"] = [value_text(answer.optimum.value, "GPU-hours") for answer in answers]
    if any(answer.days is not None for answer in answers):
        columns["days"] = ["" if answer.days is None else f"{answer.days:,.1f}" for answer in answers]
    if name != "gpu-hours" and any(answer.cost is not None for answer in answers):
        columns["cost"] = ["" if answer.cost is None else money(answer.cost) for answer in answers]
    if not proved:
        gaps = [answer.optimum.gap for answer in answers]
        columns["gap"] = [percent(gap) if gap > PROVEN else "none" for gap in gaps]
    return columns


def _degrees(answer: OfferAnswer) -> str:
    """Degrees of a cluster's best layout, without placement of blocks and recompute policy."""
    words = str(answer.optimum.result.best.layout).split()
    return " ".join(word for word in words if not word.startswith(("layers=", "recompute=")))


def ranking_facts(ranking: Ranking) -> Iterator[Fact]:
    """Facts on the cluster and layout to train with, the runner-up, and the trade-off of cost and time."""
    best, *rivals = ranking.answers
    yield from plan_facts(best.optimum, cluster=best.offer.name, proof=_proof_words(ranking))
    if rivals:
        rival, measure = rivals[0], ranking.objective.measure
        open_ = "" if ranking.places(best)[1] == 1 else " so far, not separated"
        place = f"{_gpus(rival)}, {_degrees(rival)}"
        value = rival.optimum.value
        gain = change(best.optimum.value, value)
        words = f"{place}: {measure.label} {value_text(value, measure.unit)} ({gain}{open_})"
        if (training := training_of(rival)) is not None:
            words += f", {_days(rival)}{training.expected_words}"
        yield Fact(name="runner-up", value=words)
    if sooner := [point for point in ranking.frontier[::-1] if point is not ranking.best]:
        points = [f"{money(one.cost or 0.0)} in {_days(one)} on {_gpus(one)}" for one in sooner[:_POINTS]]
        words, number = "; ".join(points), len(sooner) - _POINTS
        words += f"; {number} more {'ends' if number == 1 else 'end'} sooner" if number > 0 else ""
        yield Fact(name="trade-off", value=f"on paper {words}")


def _gpus(answer: OfferAnswer) -> str:
    """Words on the GPUs of an answer: "512 GPUs of dgx-h100"."""
    return f"{counted(answer.optimum.question.cluster.num_gpus, 'GPU')} of {answer.offer.name}"


def _days(answer: OfferAnswer) -> str:
    """Words on the days of an answer's training run."""
    assert answer.days is not None
    return format_days(answer.days * DAY)


def training_of(answer: OfferAnswer) -> TrainingRun | None:
    """Duration and cost of training with a cluster's best plan; None if the number of tokens is unknown."""
    optimum, best = answer.optimum, answer.optimum.result.best
    priced = replace(optimum.objective, price=answer.offer.price)
    return training_run(optimum.question, priced, best, expected_step(optimum.question, best))


def _proof_words(ranking: Ranking) -> str:
    """Words on the proof that the best answer is optimal over all clusters and numbers of GPUs, or on the gap that
    remains."""
    best, measure = ranking.best, ranking.objective.measure
    layouts = sum(one.optimum.result.certificate.layouts for one in ranking.answers)
    work = f"{counted(len(ranking.answers), 'search')}, {counted(layouts, 'layout')}"
    value = f"{measure.label} {value_text(best.optimum.value, measure.unit)}"
    took = format_seconds(ranking.seconds)
    if ranking.gap <= PROVEN:
        extreme = "highest" if measure.highest else "lowest"
        return f"{value} is proved the {extreme}, in {took}: {work}"
    gaps = sorted(one.optimum.gap for one in ranking.answers)
    proved = f"proved within {percent(ranking.gap)} of the optimum"
    if gaps[0] >= 1:
        proved = "with nothing proved"
    elif ranking.gap >= 1:
        extreme = "" if gaps[0] == gaps[-1] else f"{percent(gaps[0])} to "
        proved = f"each answer within {extreme}{percent(gaps[-1])} of its own optimum"
    open_ = f"; {counted(ranking.unanswered, 'search')} without an answer" * (ranking.unanswered > 0)
    places = [ranking.places(one) for one in ranking.answers]
    if close := sum(first != last for first, last in places):
        open_ += f"; {close} of {len(places)} answers are not separated: their gaps overlap"
    return f"stopped at {value}, {proved}, after {took}: {work}{open_}"


class Ranked(HoldsRequest, PlanAnswer):
    """Answer of `plan` for several clusters: the best plan of each on each number of GPUs, ranked, with the proof."""

    suggestion = "meshwright explain {path}, meshwright plot frontier {path}"
    request: ClustersQuestion
    ranking: Ranking
    top: int | None = None
    """Number of answers in the printed table; None: no table."""
    note: str = ""
    """Note on what layouts are held to besides the user's restrictions; empty if to nothing."""

    @property
    def best(self) -> OfferAnswer:
        """Best answer over all clusters and numbers of GPUs."""
        return self.ranking.best

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out, for any of the clusters."""
        limits = self.request.restrictions
        notes = [note for offer in self.ranking.offers for note in notes_of(offer.question, limits)]
        return tuple(dict.fromkeys(notes))

    @property
    def plan(self) -> Plan:
        """Best answer, as a plan that names the clusters it was chosen from."""
        optimum = self.best.optimum
        objective = optimum.for_file(self.best.offer.question.cluster.gpus_per_node)
        assert objective is not None  # there are sizes
        offers = {"offers": tuple(offer.for_file for offer in self.ranking.offers)}
        best, proof = optimum.result.best, optimum.result.certificate
        objective = objective.model_copy(update=offers)
        return make_plan(optimum.question, best, proof, self.request.restrictions, objective)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Flat row for each cluster and number of GPUs, best first."""
        ranking = self.ranking
        return [
            _cluster_record(one)
            | {"frontier": one in ranking.frontier, "objective": one.optimum.value}
            | _proof_record(ranking, one)
            | estimate_row(one.optimum.result.best)
            for one in ranking.answers
        ]

    def plot(self, kind: str = "frontier", *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw days against cost of each answer, with the frontier of both.

        Raises:
            InputError: there are no prices, or no tokens.
        """
        from meshwright.plots.drawing import Drawing
        from meshwright.plots.frontiers import cost_and_days

        frame = self.to_frame()
        if not frame["frontier"].any():
            raise InputError("nothing to draw: no cost is known", hint="--tokens and --price say what it is")
        question = self.best.optimum.question
        total, step = question.training.tokens or 0, question.training.tokens_per_step
        tokens = f"{format_count(total)} tokens, {format_count(step)} a step"
        series = "the best plan on each number of GPUs, which stands beside it"
        subject = f"{question.model.name}, {tokens}; {series}"
        return Drawing(frame=frame, figure=cost_and_days(frame, subject))

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright plan` prints: the question, each cluster's price, stack and profile, cluster and layout
        to train with, the runner-up, and the ranking if asked for."""
        ranking, question = self.ranking, self.best.optimum.question
        training, names = question.training, sentence_list([offer.name for offer in ranking.offers])
        step = f"{format_count(training.tokens_per_step)} tokens/step ({training.in_words}, {training.precision})"
        lines = [wrapped(f"{question.model.name} on {names}, {step}"), changes_sentence(question)]
        for offer in ranking.offers:
            price = f", {money(offer.price)} a GPU-hour" if offer.price is not None else ""
            stack, trust = offer.question.stack.name, trust_of(offer.question)
            lines.append(wrapped(f"{offer.name}{price}: stack {stack}; hardware profile {trust}"))
        head = *filter(None, lines), "", facts_text(ranking_facts(ranking))
        if self.top is None:
            return head
        columns = answer_columns(self.ranking, self.top)
        return *head, "", table_of(columns, words=("layout",), names=("cluster",))

    @property
    def is_proved(self) -> bool:
        return self.ranking.gap <= PROVEN

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """Remarks below the answer: effects left out, clusters without an answer, a missing proof."""
        remarks, left_out = [f"note: {note}" for note in self.notes], self.ranking.left_out
        if len(left_out) > _LIMIT:
            of = len(left_out) + len(self.ranking.answers)
            remarks.append(f"note: no answer on {len(left_out)} of {of} clusters and numbers of GPUs")
        else:
            places = [(f"{counted(gpus, 'GPU')} of {cluster}", why) for cluster, gpus, why in left_out]
            remarks += [f"note: no answer on {place}: {why}" for place, why in places]
        if not self.is_proved and not interrupted:
            remarks.append(NOT_PROVED)
        return [*filter(None, [self.note]), *remarks]

    @property
    def more(self) -> str:
        """Words that name the flag to print all answers, such as "--top 8 prints all 8 answers"; empty if all are
        printed."""
        answers = len(self.ranking.answers)
        return f"--top {answers} prints all {counted(answers, 'answer')}" if (self.top or 1) < answers else ""

    def document(self) -> dict[str, Any]:
        """JSON document: clusters, ranked plans with their proofs, and objective."""
        ranking, best, names = self.ranking, self.best.optimum, ("cluster", "gpus", "why")
        return {
            "clusters": [
                {**question_record(one.question), "gpus": list(one.sizes), "price": one.price}
                for one in ranking.offers
            ],
            "assumptions": list(self.request.assumptions),
            "notes": list(self.notes),
            "plans": [
                {
                    **_cluster_record(one),
                    "training": (training := training_of(one)) and training.record(),
                    "frontier": one in ranking.frontier,
                    **estimate_record(one.optimum.result.best),
                    "value": one.optimum.value,
                    **_proof_record(ranking, one),
                    "certificate": one.optimum.result.certificate.model_dump(mode="json"),
                }
                for one in ranking.answers
            ],
            "objective": {
                "name": ranking.objective.name,
                "tokens": best.question.training.tokens,
                "deadline_seconds": ranking.objective.deadline,
                "value": best.value,
                "unit": ranking.objective.measure.unit,
                **fields_of(ranking, "bound", "gap"),
                "left_out": [dict(zip(names, one, strict=True)) for one in ranking.left_out],
            },
        }


def _cluster_record(answer: OfferAnswer) -> dict[str, Any]:
    """JSON object of a cluster and number of GPUs, with days and cost of the training run."""
    gpus = answer.optimum.question.cluster.num_gpus
    return {"cluster": answer.offer.name, "gpus": gpus, **fields_of(answer, "days", "cost")}


def _proof_record(ranking: Ranking, answer: OfferAnswer) -> dict[str, Any]:
    """JSON object of an answer's proof: bound, gap, and best and worst possible place in the ranking."""
    places = dict(zip(("first_place", "last_place"), ranking.places(answer), strict=True))
    return fields_of(answer.optimum, "bound", "gap") | places
