"""Questions and answers of recommenders: `plan`, `estimate`, `compare`, `explain`, `advise` and `import`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cost_models.documents import Document
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files import catalog
from cost_models.files.loading import read_once
from cost_models.files.recommenders import resolve_recommender, resolve_recommender_training
from cost_models.flags import part_of
from cost_models.memory.device import is_own_host
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.units import counted, format_bytes, format_count, parse_bytes
from meshwright.families.advised import AnyAdvised
from meshwright.families.recommender.text import (
    binding_table,
    estimate_record,
    gpus_table,
    precise,
    proof_text,
    question_record,
    question_text,
    sharding_facts,
    stages_table,
    step_and_memory_text,
    table_rows,
    where_table,
)
from meshwright.inputs import questions
from meshwright.inputs.options import Limits, Request
from meshwright.inputs.problems import Problems, read_flag, refuse
from meshwright.records import fields_of, further_records
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import (
    UNIT_TEXTS,
    change,
    change_words,
    facts_text,
    percent,
    sentence_list,
    spaced,
    wrapped,
)
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import PlanAnswer, PreparedQuestion
from meshwright.verbs.estimate import EstimateOptions
from meshwright.verbs.export import ImportOptions
from meshwright.verbs.plan import PlanOptions
from planner.explain.advice import LEAST_GAIN
from planner.formats.torchrec import import_sharding
from planner.recommender.advice import Alternative, BindingStage, ShardingAdvice, ShardingChange, refusal
from planner.recommender.plan import RecommenderPlan, make_recommender_plan
from planner.recommender.problem import OBJECTIVES, Objective
from planner.recommender.restrictions import ShardingLimits, ShardingRestrictions, covered_options
from planner.recommender.search import ENOUGH, PROVEN, ShardingAnswer, ShardingCertificate, plan_sharding
from planner.search.search import Budget


class ShardingEstimated(PlanAnswer):
    """Answer of `estimate` for a recommender: the question and the price of a given sharding."""

    usual_picture = "sharding"
    question: RecommenderQuestion
    estimate: RecommenderEstimate
    sharding: Sharding
    assumptions: tuple[str, ...] = ()

    @property
    def plan(self) -> RecommenderPlan:
        """Given sharding as a plan without a proof."""
        return make_recommender_plan(self.question, self.sharding)

    @property
    def fits(self) -> bool:
        """Whether the sharding fits in the memory of GPUs and hosts."""
        return self.estimate.fits

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each embedding table: its size, how it is sharded and where."""
        return table_rows(self.question, self.sharding)

    def document(self) -> dict[str, Any]:
        """JSON document: question, assumptions, sharding, tables and price."""
        return {
            "question": question_record(self.question),
            "assumptions": list(self.assumptions),
            "layout": str(self.sharding),
            "tables": self.rows,
            "estimate": estimate_record(self.estimate),
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: question, where tables lie, stages of a step, GPUs, step and memory."""
        question, priced = self.question, self.estimate
        tables = where_table(question, self.sharding), stages_table(priced), gpus_table(priced)
        return spaced(question_text(question, priced), *tables, step_and_memory_text(priced))


class ShardingPlanned(ShardingEstimated):
    """Answer of `plan` for a recommender: the best sharding and its proof."""

    limits: ShardingLimits
    certificate: ShardingCertificate

    @property
    def plan(self) -> RecommenderPlan:
        """Best sharding, as a plan with its proof."""
        return make_recommender_plan(self.question, self.sharding, self.limits, self.certificate)

    def document(self) -> dict[str, Any]:
        """JSON document of the sharding, with its proof."""
        certificate = self.certificate.model_dump(mode="json") | {"seconds": self.certificate.seconds}
        return super().document() | {"certificate": certificate}

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright plan` prints: the sharding, its step, memory and proof, and which embedding table
        lies on which GPU."""
        question, priced, sharding = self.question, self.estimate, self.sharding
        facts = facts_text(sharding_facts(question, priced, sharding, self.certificate))
        return spaced(question_text(question, priced), facts, where_table(question, sharding))

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """Remark below the answer on a gap between the sharding and the proved bound."""
        if self.certificate.gap <= 0 or interrupted:
            return []
        proof = f"within {100 * self.certificate.gap:.2g} % of the optimum"
        if self.certificate.gap <= ENOUGH:
            return [f"note: {proof}, closer than prices of tables are known; a longer --time-limit goes on"]
        return [f"warning: proved {proof}; more time may close the gap"]


class ShardingsCompared(Answer):
    """Answer of `compare` for recommenders: prices of several shardings, side by side."""

    priced: Sequence[ShardingEstimated]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity, with a value for each sharding."""
        return [
            {"quantity": name, **{str(nth): value for nth, value in enumerate(values, 1)}, "unit": unit}
            for name, values, unit in self._lines
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: question, sharding and price of each plan."""
        documents = [one.document() for one in self.priced]
        return {"plans": [{key: one[key] for key in ("question", "layout", "estimate")} for one in documents]}

    def view(self) -> tuple[str | Table, ...]:
        """Text: numbered plans, and the table of quantities; column `change` compares the last plan with the
        first."""
        texts = UNIT_TEXTS | {"seconds": precise, "samples/s": format_count}
        cells = [
            (name, *map(texts[unit], values), change_words(texts[unit], unit, values[0], values[-1]))
            for name, values, unit in self._lines
            if any(values)
        ]
        headers = ("", *map(str, range(1, len(self.priced) + 1)), "change")
        of = [(one.question.model.name, one.question.cluster) for one in self.priced]
        plans = [f"{nth}: {name} on {on.num_gpus} x {on.gpu.name}" for nth, (name, on) in enumerate(of, 1)]
        return *map(wrapped, plans), "", table(headers, cells, words=("",))

    @property
    def _lines(self) -> list[tuple[str, list[float], str]]:
        """Line for each compared quantity: its name, its value for each sharding, and its unit."""
        prices = [one.estimate for one in self.priced]
        stages = [(f"  {name}", [one.stages[name] for one in prices], "seconds") for name in prices[0].stages]
        return [
            ("step", [one.step_seconds for one in prices], "seconds"),
            *stages,
            ("most of one GPU", [one.busiest_sum_seconds for one in prices], "seconds"),
            ("samples/s", [one.samples_per_second for one in prices], "samples/s"),
            ("dense MFU", [one.mfu for one in prices], "share"),
            ("peak memory", [one.peak_bytes for one in prices], "bytes"),
            ("host memory", [float(one.host_bytes.max()) for one in prices], "bytes"),
        ]


def priced_sharding(question: RecommenderQuestion, sharding: Sharding) -> ShardingEstimated:
    """Price a sharding. Raises InputError if it names GPUs or nodes that the cluster lacks."""
    return ShardingEstimated(question=question, estimate=estimate(question, sharding), sharding=sharding)


MOST_PROBLEMS = 5
"""Largest number of embedding tables that are named among those that cannot be sharded as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingQuestion:
    """Question of `plan` for a recommender, completely read: only the search is left."""

    question: RecommenderQuestion
    limits: ShardingLimits
    objective: Objective = "step"
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> ShardingPlanned:
        """Search for the best sharding within the time limit of `budget`. Raises DoesNotFitError if it is proven that
        none fits."""
        budget, restrictions = budget or Budget(), self.limits.read(self.question.model)
        result = plan_sharding(
            covered_options(self.question, restrictions),
            objective=self.objective,
            restrictions=restrictions,
            budget=budget,
            progress=lambda value, bound, doing: budget.tell(doing),
        )
        budget.interrupted = budget.interrupted or result.interrupted
        return ShardingPlanned(
            question=self.question,
            estimate=estimate(self.question, result.sharding),
            sharding=result.sharding,
            limits=self.limits,
            certificate=result.certificate,
            assumptions=self.assumptions,
        )


def ask(options: PlanOptions) -> ShardingQuestion:
    """Read the options of `plan` for a recommender.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    gpus = problems.read(questions.one_count, options.gpus, "tables are sharded over one")
    model = Problems().read(recommender_of, options.model)  # `question_of` reports its problems
    request = options if model is None else replace(options, model=model)
    question = problems.read(question_of, request, gpus)
    limits = problems.read(_limits, options)
    objective = problems.read(_objective, options.objective)
    restrictions = None if model is None or limits is None else problems.read(limits.read, model)
    if question is not None and restrictions is not None:
        problems.read(_require_tiers, question, restrictions)
    problems.require()
    assumed = tuple(_assumed(options, question))
    return ShardingQuestion(question=question, limits=limits, objective=objective, assumptions=assumed)


def ask_estimate(options: EstimateOptions) -> PreparedQuestion[ShardingEstimated]:
    """Read the options of `estimate` for a recommender; the sharding is priced when the question is answered.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    question = question_of(options, questions.single_count(options.gpus))
    sharding, assumed = sharding_of(question, options.layout), tuple(_assumed(options, question))
    return PreparedQuestion(
        solve=lambda budget: replace(priced_sharding(question, sharding), assumptions=assumed),
        assumptions=assumed,
    )


def sharding_of(question: RecommenderQuestion, text: str) -> Sharding:
    """Parse how each embedding table is sharded, such as `table:0-3=whole@0,1,2,3`. Raises InputError."""
    try:
        return parse_sharding(text, question.model.num_tables)
    except InputError as error:
        hint = "write it like `table:0-3=whole@0,1,2,3 table:4-25=row`"
        raise InputError(error.headline, problems=error.problems, hint=hint) from None


def question_of(request: Request, gpus: int | None) -> RecommenderQuestion:
    """Build the question of a recommender from the request.

    Raises:
        InputError: an input is missing, or a file or a name is wrong; everything that is, at once.
    """
    questions.require_nouns(request)
    problems = Problems()
    model = problems.read(recommender_of, request.model)
    cluster = problems.read(questions.cluster_of, request.cluster, gpus, request.host_memory)
    training = problems.read(_training, request)
    problems.read(lambda: catalog.load_stack(request.stack) if request.stack else None)
    problems.read(questions.require_profile, request.profile)
    problems.require()
    batch, gpus = training.global_batch, cluster.num_gpus
    if extra := batch % gpus:
        near = [str(size) for size in (batch - extra, batch - extra + gpus) if size]
        reason = f"{batch} samples are not the same number on each of {counted(gpus, 'GPU')}"
        hint = f"{' and '.join(near)} {'are' if len(near) > 1 else 'is'}"
        raise InputError(f"--global-batch: {reason}", hint=hint)
    return complete_recommender(model, cluster, training, stack=request.stack, profile=request.profile)


def recommender_of(model: object) -> RecommenderSpec:
    """Load a recommender from its name, its file or a document already read; a spec is returned as it is. Raises
    InputError."""
    if isinstance(model, RecommenderSpec):
        return model
    return resolve_recommender(read_once(model if isinstance(model, Document) else str(model)))


def _training(request: Request) -> RecommenderTraining:
    """Training job of a recommender's request; flags for single fields (global batch, precision) override the
    job's."""
    amounts = {"global_batch": request.global_batch, "precision": questions.in_words(request.precision)}
    resolve, noun = resolve_recommender_training, "a recommender"
    return questions.job_of(request.training, RecommenderTraining, resolve, amounts, noun)


def _objective(word: str | None) -> Objective:
    """Parse the objective of a sharding search; `time`, the default, is the step. Raises UnknownNameError."""
    if (name := "step" if word in (None, "time") else word) in OBJECTIVES:
        return OBJECTIVES[OBJECTIVES.index(name)]
    raise UnknownNameError("objective", str(word), OBJECTIVES, hint=f"there are {', '.join(OBJECTIVES)}")


def _limits(limits: Limits) -> ShardingLimits:
    """Read the restrictions of a sharding (`--fix`, `--together`, ...). Raises InputError."""
    size = read_flag("--max-memory", limits.max_memory, parse_bytes)
    words = fields_of(limits, "fix", "together", "forbid", "allow")
    return ShardingLimits.model_validate(words | {"max_memory": None if size is None else f"{size!r} B"})


def _require_tiers(question: RecommenderQuestion, restrictions: ShardingRestrictions) -> None:
    """Raise InputError if `--fix` shards a table in a way that a rule forbids, or puts it in host memory on a cluster
    whose devices use host memory as their own."""
    for fixed in restrictions.fixed:
        if fixed.option.tier == "host" and is_own_host(question.cluster):
            place = f"`--fix table:{fixed.first}={fixed.option}` on `{question.cluster.name}`"
            hint = f"fix it as `{replace(fixed.option, tier='device', cached=0.0)}`"
            raise InputError(f"{place}: its devices' memory is the host's", hint=hint)
    problems = [
        Problem(f"--fix table:{table}={fixed.option}", reason)
        for fixed in restrictions.fixed
        for table in range(fixed.first, fixed.last + 1)
        if (reason := refusal(question, table, fixed.option))
    ]
    refuse("tables cannot be held so", problems[:MOST_PROBLEMS])


def _assumed(request: Request, question: RecommenderQuestion) -> Iterator[str]:
    """Sentences on values that were assumed: types of tables, memory of hosts."""
    if request.training is None:
        tables = f"tables in {question.training.table_dtype}, updated by {question.training.optimizer}"
        yield f"{tables}; set others with --training FILE"
    if is_own_host(question.cluster):
        return
    if not question.cluster.host_memory:
        yield "no memory of hosts: nobody says how much there is (--host-memory)"
    elif request.host_memory is not None:
        yield f"hosts have {format_bytes(question.cluster.host_memory)} each"


class Imported(PlanAnswer):
    """Answer of `import` for a recommender: the sharding of another trainer's file, beside the best sharding."""

    today: ShardingEstimated
    planned: ShardingPlanned

    @property
    def best(self) -> ShardingPlanned:
        """Best sharding."""
        return self.planned

    @property
    def gain(self) -> float:
        """Share of today's step time that the best sharding saves, at least 0."""
        return max(0.0, 1 - self.best.estimate.step_seconds / self.today.estimate.step_seconds)

    @property
    def plan(self) -> RecommenderPlan:
        """Sharding that runs today, as a plan."""
        return self.today.plan

    def document(self) -> dict[str, Any]:
        """JSON document of today's sharding as in `estimate`, with the best sharding and the gain."""
        return self.today.document() | {"best": self.best.record(), "gain": self.gain}

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each embedding table, as it is sharded today."""
        return self.today.rows

    def view(self) -> tuple[str | Table, ...]:
        """Text: today's sharding as in `estimate`, then its step beside the best sharding's."""
        prices = {"today": self.today.estimate, "best": self.best.estimate}
        columns = {
            "which": list(prices),
            "step": [precise(one.step_seconds) for one in prices.values()],
            "fullest GPU": [format_bytes(one.peak_bytes) for one in prices.values()],
            "longest stage": [max(one.stages, key=one.stages.__getitem__) for one in prices.values()],
        }
        gap = self.best.certificate.gap
        proof = "which is proved" if gap <= PROVEN else f"proved within {percent(gap)}"
        slower = f"{percent(1 / (1 - self.gain) - 1)} slower than the best, {columns['step'][1]}"
        finding = f"What runs today is {slower} ({proof})"
        if self.gain <= PROVEN:
            none = "No sharding is" if gap <= PROVEN else "No sharding was found that is"
            finding = f"{none} faster than what runs today ({proof})"
        comparison = table_of(columns, names=("which", "longest stage"))
        return *self.today.text, "", comparison, "", wrapped(finding)


def no_slower(best: ShardingPlanned, today: ShardingEstimated) -> ShardingPlanned:
    """Best sharding known: the search's, or today's if that fits and is faster."""
    seconds, proof = today.estimate.step_seconds, best.certificate
    if not today.estimate.fits or seconds >= best.estimate.step_seconds:
        return best
    bound = min(proof.bound, seconds)
    proof = proof.model_copy(update={"value": seconds, "bound": bound, "gap": 1 - bound / seconds})
    return replace(best, estimate=today.estimate, sharding=today.sharding, certificate=proof)


def ask_import(options: ImportOptions) -> PreparedQuestion[Imported]:
    """Read a TorchRec sharding plan; it is priced, and a better sharding searched for, when the question is answered.
    Raises InputError."""
    if options.also is not None or options.ignore:
        flag = "--also" if options.also is not None else "--ignore"
        raise InputError(f"{flag}: a sharding plan has no settings beside its tables", hint="leave it out")
    if options.sequence is not None:
        raise InputError("--sequence: a recommender has no sequences", hint="leave it out")
    if not options.model:
        raise InputError("TorchRec's plan has no model", hint="name it: `import plan.json MODEL CLUSTER`")
    model = recommender_of(options.model)
    sharding, world = import_sharding(options.source, model)
    if options.gpus not in (None, world):
        text = f"`{options.source}` is for {world} GPUs, --gpus says {options.gpus}"
        raise InputError(text, hint="leave out --gpus")
    request = replace(options, model=model, gpus=world)
    given = ask_estimate(part_of(request, EstimateOptions, layout=str(sharding)))
    search = ask(part_of(request, PlanOptions))

    def solve(budget: Budget) -> Imported:
        """Price today's sharding, and search for the best."""
        today = given.answer()
        return Imported(today=today, planned=no_slower(search.answer(budget), today))

    return PreparedQuestion(solve=solve, assumptions=given.assumptions)


class ShardingExplained(Answer):
    """Answer of `explain` for a recommender: the stages of a step, and the embedding tables that limit each stage."""

    plan: RecommenderPlan
    estimate: RecommenderEstimate
    stages: Sequence[BindingStage]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each embedding table on a GPU that a stage of the step waits for."""
        names = self.plan.model.table_names
        return [
            {
                **fields_of(stage, "stage", "gpu"),
                "stage_seconds": stage.seconds,
                "mean_seconds": stage.mean_seconds,
                "table": names[one.table],
                "held_as": str(one.placement.option),
                "seconds": one.seconds,
                "step_without_seconds": one.without_seconds,
                "otherwise": one.otherwise and str(one.otherwise.option),
                "step_otherwise_seconds": one.otherwise_seconds,
            }
            for stage in self.stages
            for one in stage.tables
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: question, sharding, price, proof and bottlenecks."""
        proof = self.plan.certificate
        return {
            "question": question_record(self.plan.question),
            "layout": self.plan.layout,
            "estimate": estimate_record(self.estimate),
            "certificate": proof and proof.model_dump(mode="json"),
            "bottleneck": self.rows,
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: step and memory, tables of stages and GPUs, the costliest embedding table, bottlenecks and proof."""
        question, priced, proof = self.plan.question, self.estimate, self.plan.certificate
        bottleneck = "Bottleneck: the dense network; no table ends a stage."
        if bound := [stage for stage in self.stages if stage.tables]:
            worst = max(bound, key=lambda stage: stage.seconds)
            first = worst.tables[0]
            name, without = self.plan.model.table_names[first.table], first.without_seconds
            bottleneck = (
                f"Costliest table: {name} (`{first.placement.option}`) takes {precise(first.seconds)} of"
                f" {worst.stage} on GPU {worst.gpu}; without it the step would take"
                f" {precise(without)} ({change(priced.step_seconds, without)})."
            )
        head = question_text(question, priced), step_and_memory_text(priced)
        tables = stages_table(priced), gpus_table(priced), wrapped(bottleneck)
        end = [] if proof is None else [proof_text(proof, seconds=False)]
        return spaced(*head, *tables, binding_table(question, self.stages), *end)


SECONDS = 10.0
"""Time limit in seconds of the search that places all other tables anew."""
_VISIBLE_SHARE = 5e-4
"""Smallest difference of a stage that is printed, as a share of the step time."""


class ShardingNotChosen(Answer):
    """Answer of `explain --why-not` for a recommender: why some embedding tables are not sharded in another way."""

    plan: RecommenderPlan
    layout: str
    """Sharding of tables, as the user wrote it."""
    answer: Alternative
    today: RecommenderEstimate
    otherwise: RecommenderEstimate | None
    """Price with the other sharding of these tables alone; None if a rule refuses it."""
    replanned: ShardingAnswer | None = None
    """Result of a search that also places all other tables anew; None if not searched, or if nothing fits."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each stage of the step: its time in the plan and in the other sharding. If the other sharding
        breaks a rule, a single row with that rule."""
        if self.otherwise is None:
            return [{"stage": "", "refused": self.answer.refused}]
        then, gpus = self.otherwise.stages, self.otherwise.busiest
        return [
            {"stage": name, "seconds": seconds, "otherwise_seconds": then[name], "gpu": gpu}
            for (name, seconds), gpu in zip(self.today.stages.items(), gpus, strict=True)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: the other sharding, why it is refused or excluded, and prices of plan and other sharding."""
        anew = None
        if (found := self.replanned) is not None:
            proof = found.certificate
            anew = {"layout": str(found.sharding), "step_seconds": proof.value, "gap": proof.gap}
        return {
            "question": question_record(self.plan.question),
            "asked": self.layout,
            "refused": self.answer.refused or None,
            "excluded": self.answer.forbidden or None,
            "plan": estimate_record(self.today),
            "layout": self.answer.sharding and str(self.answer.sharding),
            "estimate": self.otherwise and estimate_record(self.otherwise),
            "placed_anew": anew,
        }

    def view(self) -> Iterator[str]:
        """Sentences on the other sharding: its step, its memory, and the step with all other tables placed anew."""
        names, tables, planned = self.plan.model.table_names, self.answer.tables, self.plan.sharding.tables
        if self.otherwise is None or self.answer.sharding is None:
            yield wrapped(f"`{self.layout}` cannot be: {self.answer.refused}")
            return
        if all(self.answer.sharding.tables[table] == planned[table] for table in tables):
            yield wrapped(f"`{self.layout}` is what the plan does")
            return
        labels = [names[table] for table in tables[:3]] + ["others"] * (len(tables) > 3)
        options = [f"`{one}`" for one in sorted({str(planned[table].option) for table in tables})]
        verb = "is" if len(tables) == 1 else "are"
        yield wrapped(f"{sentence_list(labels)} {verb} held as {sentence_list(options)} in the plan")
        step, then = self.today.step_seconds, self.otherwise.step_seconds
        stages = _stages_beside(self.today, self.otherwise)
        yield wrapped(f"With this change alone: step {precise(then)}, {_change(step, then)}{stages}")
        priced, fullest = self.otherwise, format_bytes(self.otherwise.peak_bytes)
        words = f"{fullest} of {format_bytes(priced.device_memory)} on GPU {priced.fullest}"
        if priced.host_bytes.max() > 0:
            words += f", {format_bytes(float(priced.host_bytes.max()))} of {format_bytes(priced.host_memory)} of a host"
        today = format_bytes(self.today.peak_bytes)
        verdict = f"It fits: {words}" if priced.fits else f"It does not fit: {words}; the plan has {today}"
        yield wrapped(verdict)
        if self.answer.forbidden:
            yield wrapped(f"It is left out: {self.answer.forbidden}")
        if self.replanned is not None:
            anew, gap = self.replanned.certificate.value, self.replanned.certificate.gap
            proof = "proved the best" if gap <= 0 else f"proved within {percent(gap)}"
            if self.otherwise.fits and anew > then:
                yield wrapped(f"With the other tables re-planned: nothing faster found in {SECONDS:.0f} s")
                return
            step_text = f"step {precise(anew)}, {_change(step, anew)} ({proof})"
            yield wrapped(f"With the other tables re-planned: {step_text}")


def _stages_beside(today: RecommenderEstimate, otherwise: RecommenderEstimate) -> str:
    """Words on the stages that become faster or slower by a change of sharding, and on the GPU that limits the most
    slowed stage."""
    visible = _VISIBLE_SHARE * today.step_seconds
    excess = {name: otherwise.stages[name] - seconds for name, seconds in today.stages.items()}
    saves = [f"{precise(-value)} of {name}" for name, value in excess.items() if value < -visible]
    pays = [f"{precise(value)} of {name}" for name, value in excess.items() if value > visible]
    words = [f"saves {sentence_list(saves)}"] * bool(saves) + [f"pays {sentence_list(pays)}"] * bool(pays)
    if not words:
        return ""
    worst = max(excess, key=lambda name: excess[name])
    gpu = otherwise.busiest[list(excess).index(worst)]
    end = f". Bottleneck then: GPU {gpu}, which ends the {worst}" * bool(pays)
    return f": {', '.join(words)}{end}"


def _change(step: float, then: float) -> str:
    """Words on the change from step time `step` to `then`: "-3.6 %" or "the same"."""
    return "the same" if change(step, then) == "same" else change(step, then)


_LIMIT = 3
"""Largest number of tables of a change that are named."""


class ShardingAdvised(AnyAdvised):
    """Answer of `advise` for a recommender: the sharding run today, the changes of tables that gain most, and the
    best sharding."""

    advice: ShardingAdvice
    limits: ShardingLimits

    @property
    def plan(self) -> RecommenderPlan:
        """Best sharding, as a plan."""
        advice, best = self.advice, self.advice.best_sharding
        proof = advice.answer.certificate if best is advice.answer.sharding else None
        return make_recommender_plan(advice.question, best, self.limits, proof)

    def path(self) -> Iterator[tuple[str, str, RecommenderEstimate | None, RecommenderEstimate]]:
        """Each change that leads to the best sharding: words, price of today's sharding with only this change (None for
        the last step to the best sharding), and price with this and all earlier changes; efforts are alike and left
        empty."""
        for one in self.advice.changes:
            yield self._words(one), "", one.by_itself, one.with_earlier
        if not self.advice.is_reached:
            yield "the rest", "", None, self.advice.best

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for today's sharding, each change, the best sharding, and each change beyond the sharding (such as
        precision): step time with this change alone, then the price with this and all earlier changes."""
        advice = self.advice
        path = [(words, "tables move", alone, priced) for words, _, alone, priced in self.path()]
        further = [(one.words, one.trouble, None, one.estimate) for one in advice.other_questions]
        return [
            {
                "change": words,
                "trouble": trouble,
                "alone_step_seconds": alone and alone.step_seconds,
                **fields_of(priced, "step_seconds", "samples_per_second", "peak_bytes", "fits"),
            }
            for words, trouble, alone, priced in (("today", "", None, advice.today), *path, *further)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: prices of today's sharding, each change and the best sharding, and the proof."""
        advice = self.advice
        changes = [
            {"change": self._words(one), "tables": list(one.tables)}
            | {"before": one.today, "after": one.proposed}
            | {"alone": estimate_record(one.by_itself), "together": estimate_record(one.with_earlier)}
            for one in advice.changes
        ]
        return {
            "question": question_record(advice.question),
            "layout": str(advice.sharding),
            "today": estimate_record(advice.today),
            "changes": changes,
            "best_layout": str(advice.best_sharding),
            "best": estimate_record(advice.best),
            "certificate": advice.certificate.model_dump(mode="json"),
            "further": further_records(advice.other_questions, estimate_record),
        }

    def view(self) -> Iterator[str | Table]:
        """Text that `meshwright advise` prints: today's sharding, the table of changes, and the proof."""
        advice, today = self.advice, self.advice.today
        yield question_text(advice.question, today)
        yield ""
        size = f"{format_bytes(today.peak_bytes)} of {format_bytes(today.device_memory)}"
        yield wrapped(
            f"today: step {precise(today.step_seconds)}, {size}{', which does not fit' * (not today.fits)}"
        )
        yield ""
        if advice.changes or not advice.is_reached:
            yield self.changes_table(precise, "+ the rest of the tables, as planned")
            yield ""
        if advice.changes:
            yield "Every change fits in memory and gains, alone and on top of those above it."
        elif advice.is_reached:
            yield "Nothing to change: no sharding is faster."
        yield proof_text(advice.certificate)
        yield from self._other_questions()

    def _other_questions(self) -> Iterator[str]:
        """Sentences on gains by changes beyond the sharding (such as precision), largest first."""
        best = self.advice.best.step_seconds
        cases = sorted(self.advice.other_questions, key=lambda case: case.estimate.step_seconds)
        for case in cases:
            then = case.estimate.step_seconds
            if then < best * (1 - LEAST_GAIN):
                gain = f"{change(best, then)} from the best" + ", not proved" * (not case.proven)
                yield wrapped(f"With {case.words} ({case.trouble}): {precise(then)} ({gain})")
        if idle := [case.words for case in cases if case.estimate.step_seconds >= best * (1 - LEAST_GAIN)]:
            yield wrapped(f"Less than {percent(LEAST_GAIN)} would come of {sentence_list(idle)}")

    def _words(self, move: ShardingChange) -> str:
        """Words on a change of sharding: "user and item: row, not whole". Tables that only change GPUs read "user:
        whole elsewhere"."""
        names, form = [self.advice.question.model.table_names[table] for table in move.tables], move.proposed
        tail = [counted(len(names) - _LIMIT, "table") + " more"] if len(names) > _LIMIT else []
        how = f"{form} elsewhere" if form == move.today else f"{form}, not {move.today}"
        return f"{sentence_list([*names[:_LIMIT], *tail])}: {how}"
