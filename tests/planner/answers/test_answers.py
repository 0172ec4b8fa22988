"""What an answer recommends, offers, claims and says of remedies."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from asking import ask, change
from effort import number
from small import MODEL, small_cluster, small_question

from cost_models.axes.layout import parse_layout
from cost_models.axes.stages import allowed_recompute, even_layers
from cost_models.defaults import complete_question
from cost_models.errors import Alternative, DoesNotFitError, InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate, chance_of_gain, pair_error_of
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.risk import FITTING, RISKS
from cost_models.schedules.registry import PLAIN
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.hardware import Scenarios
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.answers import feasibility
from planner.answers.feasibility import larger_hosts, largest_sizes, with_remedies
from planner.answers.optimum import Offer, Optimum, Ranking, offers_of, optimise, rank_offers
from planner.answers.recommend import LEAST_MEAN_GAIN, Recommendation, count_near, middle_seconds, recommend
from planner.formats.registry import exporter_of
from planner.formats.trainers import refusals
from planner.objectives import Objective
from planner.plan import Plan, load_plan, make_plan, save_plan
from planner.search import candidates
from planner.search.branching import MAX_COMPARED
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import WAYS, Family, family_named, resized
from planner.space.space import enumerate_layouts
from planner.verify.plans import verify


def gpt3(gpus: int = 1024) -> Question:
    return ask("gpt3-175b", "dgx-a100-80gb", gpus, global_batch=1536, sequence_length=2048)


def with_pair_error(question: Question, error: float) -> Question:
    return change(question, hardware={"pair_error": error})


def recommended(question: Question, budget: Budget | None = None) -> Recommendation:
    found = recommend(question, search(question, top=1), Restrictions(), budget or Budget())
    assert found is not None
    return found


def chance_between(slower: Estimate, faster: Estimate, error: float) -> float:
    gain = math.log(slower.step_seconds / faster.step_seconds)
    return chance_of_gain(gain, slower.layout, faster.layout, error)


@pytest.fixture(scope="module")
def told() -> Recommendation:
    return recommended(gpt3())


def test_the_stacks_own_trainer_can_run_it_though_it_cannot_run_the_fastest() -> None:
    job = {"global_batch": 1024, "sequence_length": 8192}
    question = ask("llama3-70b", "dgx-h100", 64, stack="megatron-core", **job)
    answer = recommended(question)
    assert refusals("megatron", question, answer.fastest.estimate.layout)
    assert not refusals("megatron", question, answer.estimate.layout)
    assert not refusals("megatron", question, answer.classical.estimate.layout)


def test_it_surely_fits_and_is_judged_by_the_whole_device(told: Recommendation) -> None:
    assert told.estimate.fits_probability >= FITTING
    assert told.estimate.memory_limit == estimate(gpt3(), told.estimate.layout).memory_limit
    assert not told.is_risky


def test_who_writes_a_recommendation(told: Recommendation) -> None:
    assert exporter_of(make_plan(gpt3(), told.estimate)) == ("megatron", "")
    mixed = {"recompute": ("full:1", *["none"] * 95), "pp": 8, "vpp": 12}
    uneven = replace(told.estimate, layout=told.estimate.layout.model_copy(update=mixed))
    _, why = exporter_of(make_plan(gpt3(), uneven))
    assert why.startswith("Megatron recomputes the same on every stage")


def test_a_device_filled_to_the_brim_is_not_worth_a_gain_that_may_be_none() -> None:
    """Only mbs is free, so that the fastest on paper fills the device and differs on that axis alone."""
    limits = parse_restrictions(("tp=8", "pp=4", "vpp=12", "cp=1"), ("shard", "recompute=selective,full"))
    question = with_pair_error(gpt3(), 0.2)
    found = search(question, top=1, restrictions=limits)
    told = recommend(question, found, limits, Budget())
    assert told.fastest.axes in ((), ("mbs",))
    assert told.estimate.fits_probability >= FITTING
    assert told.estimate.peak_bytes <= told.fastest.estimate.peak_bytes


def test_it_is_the_optimum_of_its_kind(told: Recommendation) -> None:
    again = search(gpt3(), top=1, restrictions=told.within)
    assert told.certificate.gap == again.certificate.gap == 0
    assert again.best.layout == told.estimate.layout


def test_a_model_that_errs_little_recommends_the_fastest() -> None:
    roomy = replace(gpt3(), confidence=0.95)  # so that the fastest is not passed over for its memory
    told = recommended(with_pair_error(roomy, 1e-4))
    assert told.is_fastest
    assert told.estimate.layout == told.fastest.estimate.layout


def test_the_chance_of_a_gain_is_three_in_four_at_the_median_error(told: Recommendation) -> None:
    fast = replace(told.estimate, step_seconds=1.0, layout=parse_layout("tp8 pp8 dp16"))
    slow = replace(fast, step_seconds=1.0618365, layout=parse_layout("tp8 pp4 dp32"))  # e^0.06
    assert chance_between(fast, fast, 0.06) == 0.5
    assert chance_between(slow, fast, 0.06) == pytest.approx(0.75, abs=1e-3)
    apart = replace(slow, layout=parse_layout("tp4 pp4 vpp2 dp32 cp2"))
    assert chance_between(apart, fast, 0.03) == pytest.approx(0.75, abs=1e-3)  # four axes: twice the error


def test_the_averse_judge_by_slow_cases_and_the_neutral_by_the_mean(told: Recommendation) -> None:
    scenarios = Scenarios(factors={"network_efficiency": "0.5 2.0"}, unexplained=0.05)
    question = change(gpt3(), hardware={"scenarios": scenarios})
    layout = told.estimate.layout
    paper, mean, slow = (estimate(replace(question, risk=risk), layout).compared_seconds for risk in RISKS)
    assert paper == told.estimate.step_seconds
    assert paper < mean < slow  # a network half as fast costs more than one twice as fast saves
    without = change(question, hardware={"scenarios": None})
    assert estimate(replace(without, risk="averse"), layout).compared_seconds == paper


def test_no_layout_within_the_models_error_is_left_uncounted() -> None:
    question = small_question(4, "220 MiB")
    every = search(question, top=10**6).estimates
    best, share = every[0].step_seconds, pair_error_of(question)
    found = search(question, top=1)
    near = count_near(question, Restrictions(), found, Budget())
    anew = count_near(question, Restrictions(), replace(found, searches=()), Budget())
    assert near == anew
    assert near is not None
    close = sum(one.step_seconds < best * (1 + share) for one in every)
    assert close > 1
    assert close <= near <= len(every) + 100
    alone = count_near(question, parse_restrictions(["tp=1", "pp=1"]), replace(found, searches=()), Budget())
    assert alone is not None
    assert alone <= near


SLOW_HOSTS = Scenarios(factors={"tensor_parallel_host_seconds": "1 50 100 200"}, unexplained=0.6)
"""Hosts that may be far slower with tensor parallelism than on paper."""


def with_scenarios(question: Question, told: Scenarios | None) -> Question:
    return change(question, hardware={"scenarios": told})


@pytest.fixture(scope="module")
def asked() -> Question:
    return with_scenarios(small_question(4, "400 MiB"), SLOW_HOSTS)


@pytest.fixture(scope="module")
def chosen(asked: Question) -> Recommendation:
    found = recommend(asked, search(asked, top=1), Restrictions(), Budget())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plan(asked: Question, chosen: Recommendation) -> Plan:
    written = chosen.for_file(Restrictions(), 1)
    return make_plan(asked, chosen.estimate, chosen.certificate, chosen.within, recommendation=written)


def test_the_least_middle_of_the_near_layouts_is_recommended(asked: Question, chosen: Recommendation) -> None:
    """On paper tensor parallelism is fastest; where hosts are slow at it, it is not."""
    choice = chosen.choice
    assert (choice.first.tp, chosen.estimate.layout.tp) == (2, 1)
    assert choice.first_seconds < chosen.estimate.step_seconds <= choice.first_seconds * (1 + choice.share)
    assert choice.share == SLOW_HOSTS.unexplained
    own, first = (middle_seconds(asked, one) for one in (chosen.estimate.layout, choice.first))
    assert (choice.middle_seconds, choice.first_middle_seconds) == (own, first)
    assert own < first * (1 - LEAST_MEAN_GAIN)
    kind = search(asked, top=30, restrictions=chosen.within)
    assert kind.best.layout == choice.first
    assert chosen.certificate.bound == kind.certificate.bound == choice.first_seconds
    near = [one for one in kind.estimates if one.step_seconds < choice.first_seconds * (1 + choice.share)]
    assert own <= min(middle_seconds(asked, one.layout) for one in near[:MAX_COMPARED]) * (1 + 1e-9)


def test_the_choice_is_in_the_plan_file(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("choice") / "plan.yaml"
    save_plan(plan, path)
    read = load_plan(path)
    assert read.recommendation == plan.recommendation
    checks = {one.name: one for one in verify(read)}
    assert [one.what for one in checks.values() if not one.passed] == []
    assert checks["recommendation"].passed
    assert "recommended again" in checks["optimum"].what


def test_another_choice_than_would_be_made_fails(asked: Question, plan: Plan) -> None:
    choice = plan.recommendation.choice.model_copy(update={"middle_seconds": 1e-3})
    told = plan.recommendation.model_copy(update={"choice": choice})
    checks = verify(plan.model_copy(update={"recommendation": told}))
    wrong = {one.name: one.what for one in checks if not one.passed}
    assert wrong.keys() == {"recommendation"}
    assert "`choice.middle_seconds` says 0.001" in wrong["recommendation"]


STACKS = ("meshwright", "fsdp", "megatron-core", "deepspeed", "torchtune")
LIMITS = ("", "", "", "mbs=1", "recompute=full", "recompute=none", "mbs>=2", "zero=1", "tp=1", "cp>=2")
SLOW_SEEDS = {54}
"""Seeds of sizes left out: offload of 600 to 1,800 blocks, where a search takes up to two minutes and 4 GB."""
SAMPLED = 40
"""Layouts of a size without any that are priced one by one."""


@dataclass(frozen=True)
class Asked:
    """A small question with the family that grows from it."""

    question: Question
    family: Family
    limits: Restrictions


def drawn(rng: np.random.Generator) -> Asked:
    """A model of few blocks on up to eight small GPUs of a host that holds little, with or without a drive."""
    by = WAYS[int(rng.integers(len(WAYS)))]
    heads = int(rng.choice([4, 6, 8, 12]))
    blocks, kv_heads = int(rng.integers(1, 7)), int(rng.choice([heads, heads // 2]))
    shape = {"num_layers": blocks, "hidden_size": 128 * heads, "num_heads": heads, "num_kv_heads": kv_heads}
    vocabulary, tied = int(rng.choice([1000, 8000])), bool(rng.integers(2))
    ends = {"name": "small", "vocab_size": vocabulary, "tied_embeddings": tied}
    model = TransformerSpec.model_validate(shape | ends)
    family = Family(name="small", base=model, by=by)
    if by == "width":
        known = family_named(str(rng.choice(["llama", "gpt"])), by)
        assert known is not None
        family = known
    gpus = int(rng.choice([1, 2, 3, 4, 6, 8]))
    cluster = small_cluster(gpus, f"{rng.choice([200, 500, 1000])} MiB")
    host = {"host_memory": float(rng.choice([2e8, 1e9, 8e9, 1e12]))}
    if rng.random() < 0.3:
        drive = {"capacity": f"{rng.choice([1, 100])} GB", "read": "1 GB/s", "write": "1 GB/s"}
        host["drive"] = DriveSpec.model_validate(drive)  # type: ignore[assignment]
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": 1e10})
    cluster = cluster.model_copy(update={"gpu": gpu, **host})
    batch, length = int(rng.choice([1, 2, 3, 4, 8, 12, 16])), int(rng.choice([256, 512, 768]))
    training = TrainingSpec(global_batch=batch, sequence_length=length)
    question = complete_question(family.base, cluster, training, stack=str(rng.choice(STACKS)))
    if question.stack.name == "torchtune" and rng.random() < 0.5:
        question = change(question, training={"optimizer_in_backward": True})
    word = str(rng.choice(LIMITS))
    return Asked(question, family, parse_restrictions([word] if word else []))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what fits is asked: neither the fastest layout of a size nor which comes closest where none fits."""
    monkeypatch.setattr(feasibility, "FASTEST_SECONDS", 0.0)
    monkeypatch.setattr(candidates, "explain_infeasible", lambda *_: InfeasibleError("nothing fits"))


def fits(question: Question, limits: Restrictions | None = None) -> bool:
    try:
        return bool(Budget().search(question, limits or Restrictions(), effort="any"))
    except InfeasibleError:
        return False


def require_nothing_fits(rng: np.random.Generator, question: Question, limits: Restrictions) -> None:
    """Of sampled layouts, with an even share of the blocks on each stage, under any one policy."""
    columns = enumerate_layouts(question, limits)
    for row in rng.permutation(len(columns))[:SAMPLED].tolist():
        layout = columns.layout(row)
        if layout.schedule not in PLAIN:
            continue
        layers = even_layers(question.model.num_layers, layout.num_stages)
        for policy in {*limits.recompute(question)} & {*allowed_recompute(layout.schedule)}:
            placed = layout.model_copy(update={"layers": layers, "recompute": (policy,)})
            if min(layers) >= layout.offload.explicit_blocks:
                assert not estimate(question, placed).fits, str(placed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", sorted({*range(number(2, 60))} - SLOW_SEEDS))
def test_no_larger_size_fits(seed: int) -> None:
    """Neither the next ones nor those that more degrees divide; and of the next no layout that is priced alone."""
    rng = np.random.default_rng(seed)
    asked = drawn(rng)
    family, gpus = asked.family, asked.question.cluster.num_gpus
    try:
        found = list(largest_sizes(asked.question, family, asked.limits, Budget()))
    except InputError:
        return
    most = max(one.size for one in found)
    for one in found[:1] + found[-1:]:
        limits = replace(asked.limits, allowed=frozenset({"offload"} if one.offloads else ()))
        question = change(asked.question, stack={"residencies": one.offloads})
        assert one.size == family.largest_size or not one.comparable or one.next_fails
        assert not one.size or fits(family.question_of_size(question, one.size), limits)
        if not one.next_fails:
            continue
        rest = -one.size % np.array([2, 3, 4, gpus, 2 * gpus])
        sizes = {1, 2, *(rest + 1), *rest, *rng.integers(1, most + 2, 3)}
        for size in sorted({int(one.size + size) for size in sizes if size} - {one.size}):
            if size <= family.largest_size:
                assert not fits(family.question_of_size(question, size), limits), (one, size)
        require_nothing_fits(rng, family.question_of_size(question, one.size + 1), limits)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(number(2, 60)))
def test_fewest_gpus_are_the_fewest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number between the one that was asked about and that which is offered."""
    for limit in ("SECONDS_OF_REMEDIES", "SECONDS_OF_A_REMEDY"):  # however busy the machine is
        monkeypatch.setattr(feasibility, limit, 600.0)
    asked = drawn(rng := np.random.default_rng(seed))
    whole = asked.question.cluster.model_copy(update={"gpus_per_node": 8})
    limits = replace(asked.limits, allowed=frozenset({"offload"}) if rng.integers(2) else frozenset())
    large = int(asked.family.base_size * rng.choice([1, 2, 4]))
    question = asked.family.question_of_size(asked.question, min(large, asked.family.largest_size))
    question = resized(question, int(rng.integers(1, 5)))
    found = feasibility.Remedies(
        question=question, on_nodes=replace(question, cluster=whole), limits=limits, state_bytes=0.0
    )
    for offered in found.more_gpus():
        if offered.note:
            assert offered.note == f"the fewest above {question.cluster.num_gpus}"
            for gpus in range(question.cluster.num_gpus + 1, offered.gpus):
                assert not fits(found.on_gpus(gpus).question, limits), (offered, gpus)


COST = Objective(name="cost")


def question(name: str, memory: str = "1 GiB", speed: float = 1.0) -> Question:
    """A small model on a cluster of that name, whose GPUs are so many times as fast."""
    asked = small_question(4, memory, tokens=1e9)
    gpu = asked.cluster.gpu
    peak = {precision: rate * speed for precision, rate in gpu.peak.items()}
    return change(asked, cluster={"name": name, "gpu": gpu.model_copy(update={"peak": peak})})


def offers() -> tuple[Offer, Offer]:
    """A slow one, and one that is faster and dearer."""
    return (
        Offer(question=question("slow"), sizes=(1, 2, 4), price=1.0),
        Offer(question=question("fast", speed=4.0), sizes=(1, 2, 4), price=2.0),
    )


def one_by_one(objective: Objective) -> list[tuple[Offer, Optimum]]:
    return [
        (offer, optimise(offer.question, replace(objective, price=price), sizes=(size,), top=1))
        for offer in offers()
        for size in offer.sizes
        for price in [offer.price if objective.name == "cost" else None]
    ]


def ranked(objective: Objective, budget: Budget | None = None) -> Ranking:
    return rank_offers(offers(), objective, budget=budget)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["time", "cost", "mfu", "gpu-hours"])
def test_the_best_is_the_best_of_all_asked_one_by_one(name: str) -> None:
    objective = Objective(name=name)  # type: ignore[arg-type]
    ranking, apart = ranked(objective), one_by_one(objective)
    losses = sorted(objective.measure.loss(optimum.value) for _, optimum in apart)
    assert [objective.measure.loss(one.optimum.value) for one in ranking.answers] == pytest.approx(losses)
    assert ranking.gap <= 2e-9
    assert not ranking.left_out


@pytest.mark.usefixtures("quick")
def test_places_are_those_that_the_optima_may_have() -> None:
    """Of random gaps: drawn between bound and value, optima are ranked at every place that is said and at no other."""
    rng, exact = random.Random(0), ranked(COST)
    for _ in range(20):
        gaps = [rng.choice([0.0, rng.uniform(0.0, 0.6)]) for _ in exact.answers]
        unproved = tuple(
            replace(one, optimum=replace(one.optimum, bound=one.optimum.value * (1 - gap)))
            for one, gap in zip(exact.answers, gaps, strict=True)
        )
        ranking = replace(exact, answers=unproved)
        seen: list[set[int]] = [set() for _ in unproved]
        for row, one in enumerate(unproved):
            for end in (one.optimum.bound, one.optimum.value):
                others = [other.optimum for place, other in enumerate(unproved) if place != row]
                least = sum(other.value < end for other in others)
                most = sum(other.bound < end for other in others)
                seen[row] |= {1 + least, 1 + most}
        assert [ranking.places(one) for one in unproved] == [(min(each), max(each)) for each in seen]
    assert [exact.places(one) for one in exact.answers] == [(n, n) for n in range(1, len(exact.answers) + 1)]


@pytest.mark.usefixtures("quick")
def test_days_and_cost_are_those_of_the_cluster_and_its_price() -> None:
    for one in ranked(COST).answers:
        asked, step, plain = one.optimum.question, one.optimum.result.best.step_seconds, Objective()
        assert one.days == pytest.approx(plain.training_seconds(asked, step) / 86400)
        assert one.cost == pytest.approx(
            Objective().gpu_hours(asked, step) * {"slow": 1.0, "fast": 2.0}[one.offer.name]
        )


@pytest.mark.usefixtures("quick")
def test_nothing_beats_the_frontier_in_both() -> None:
    ranking = ranked(Objective())
    frontier = ranking.frontier
    points = [(one.days or 0.0, one.cost or 0.0) for one in frontier]
    assert points == sorted(points)
    assert [cost for _, cost in points] == sorted((cost for _, cost in points), reverse=True)
    for one in ranking.answers:
        better = [p for p in points if p[0] <= (one.days or 0.0) and p[1] <= (one.cost or 0.0)]
        assert better, "what is not of the frontier is beaten by it"


@pytest.mark.usefixtures("quick")
def test_who_misses_the_deadline_is_left_out_with_the_days_it_takes() -> None:
    soonest = min(one.days or 0.0 for one in ranked(COST).answers)
    late = replace(COST, deadline=1.05 * soonest * 86400)
    ranking = ranked(late)
    assert ranking.best.offer.name == "fast"
    assert {(name, gpus) for name, gpus, _ in ranking.left_out} >= {("slow", 1), ("slow", 4)}
    assert all(why.startswith("at least ") for *_, why in ranking.left_out)
    with pytest.raises(InfeasibleError, match="on any of these clusters") as caught:
        ranked(replace(COST, deadline=0.5 * soonest * 86400))
    assert len(caught.value.problems) == 6


@pytest.mark.usefixtures("quick")
def test_what_time_did_not_reach_leaves_the_answer_open() -> None:
    with pytest.raises(RunError, match="time ran out"):
        ranked(COST, Budget(time_limit=0.0))
    whole = ranked(COST)
    stopped = replace(whole, unanswered=1)
    assert stopped.gap == 1
    assert stopped.bound == 0


@pytest.mark.usefixtures("quick")
def test_a_plan_file_names_the_clusters_and_is_verified_over_them() -> None:
    ranking = ranked(COST)
    optimum = ranking.best.optimum
    objective = optimum.for_file(4)
    written = objective.model_copy(update={"offers": tuple(offer.for_file for offer in ranking.offers)})
    plan = make_plan(optimum.question, optimum.result.best, optimum.result.certificate, None, written)
    assert [(one.name, one.sizes, one.price) for one in offers_of(plan)] == [
        ("slow", (1, 2, 4), 1.0),
        ("fast", (1, 2, 4), 2.0),
    ]
    (check,) = [check for check in verify(plan) if check.name == "clusters"]
    assert check.passed
    cheap = written.model_copy(
        update={"offers": tuple(one.model_copy(update={"price": 0.01}) for one in written.offers)}
    )
    (check,) = [one for one in verify(plan.model_copy(update={"objective": cheap})) if one.name == "clusters"]
    assert check.passed is False


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered must not hang on how busy the machine is."""
    monkeypatch.setattr(feasibility, "SECONDS_OF_REMEDIES", 60.0)
    monkeypatch.setattr(feasibility, "SECONDS_OF_A_REMEDY", 60.0)


def offered(question: Question, limits: Restrictions | None = None) -> dict[str, Alternative]:
    """By their first words."""
    whole = small_cluster(8, f"{question.cluster.gpu.memory!r} B")
    kept = limits or Restrictions()
    with pytest.raises(DoesNotFitError) as caught, with_remedies(question, kept, whole_nodes=whole):
        search(question, restrictions=kept)
    assert all(one.peak_bytes <= one.memory_limit for one in caught.value.would_fit)
    return {one.change: one for one in caught.value.would_fit}


def test_fewer_blocks_are_the_most_that_fit() -> None:
    question = small_question(1, memory="260 MiB")
    (change,) = [change for change in offered(question) if change.startswith("num_layers")]
    blocks = int(change.split()[1])
    assert 0 < blocks < MODEL.num_layers
    for layers, wanted in ((blocks, True), (blocks + 1, False)):
        model = MODEL.model_copy(update={"num_layers": layers})
        assert fits(replace(question, model=model)) is wanted


def test_states_in_16_bits_and_larger_gpus() -> None:
    question = small_question(1, memory="300 MiB")
    found = offered(question)
    assert "--state-dtype bf16" in found
    assert "state_dtype: bf16 and gradient_dtype: bf16 in --training FILE" in found
    larger = [change for change in found if change.endswith(" --gpus 1")]
    gpus = [catalog.load_cluster(change.split()[0]).gpu for change in larger]
    assert len({gpu.name for gpu in gpus}) == feasibility.MAX_LARGER
    assert [gpu.memory for gpu in gpus] == sorted(gpu.memory for gpu in gpus)
    assert not any("num_layers: 4" in change for change in found)


def test_shorter_sequences_only_where_activations_are_too_large() -> None:
    long = small_question(1, memory="2 GiB", sequence_length=2**16, global_batch=1)
    halves = [change for change in offered(long) if change.startswith("--sequence")]
    assert halves
    assert not fits(long)
    states = small_question(1, memory="150 MiB", sequence_length=2**10)
    assert not any(change.startswith("--sequence") for change in offered(states))


def test_the_restriction_to_leave_out_is_named() -> None:
    question = small_question(4, memory="250 MiB")
    assert fits(question)
    limits = parse_restrictions(["tp=1", "pp=1"], ["zero2"])
    stuck = replace(limits, max_memory=100 * 2.0**20)
    assert not fits(question, stuck)
    found = [change for change in offered(question, stuck) if change.startswith("without")]
    assert found
    assert "without --forbid zero=2" not in found


def test_a_recompute_policy_that_was_left_out_is_offered() -> None:
    full = small_question(1, memory="600 MiB", sequence_length=2**12)
    lean = full.training.model_copy(update={"recompute": ("none",)})
    assert fits(full)
    assert "recompute: full in --training FILE" in offered(replace(full, training=lean))


def test_a_host_smaller_than_the_states_says_how_large_one_must_be() -> None:
    cluster = small_cluster(1, "200 MiB").model_copy(update={"host_memory": float(2**30)})
    question = replace(small_question(1, memory="200 MiB"), cluster=cluster)
    states = 600 * 2**30  # a model of such size, where everything but one block is on the host
    changes = list(larger_hosts(question, Restrictions(), states))
    assert [one.words for one in changes] == [f"--host-memory {2**power}GiB" for power in (10, 11, 12, 13)]
    assert all(one.question.cluster.host_memory > 600 * 2**30 for one in changes)
    assert next(larger_hosts(question, Restrictions(), 0.0)).words == "--host-memory 2GiB"  # more than it has


def test_the_same_machine_comes_first_and_no_other_class_of_machines_is_named() -> None:
    """One 4090 and Llama 3 8B: an MI250X of Frontier was named, and not FSDP with offload, which fits."""
    question = ask("llama3-8b", "pcie-4090", 1, global_batch=8, sequence_length=8192)
    with pytest.raises(DoesNotFitError) as caught, with_remedies(question, Restrictions()):
        search(question)
    told = [one.change for one in caught.value.would_fit]
    stacks = [change for change in told if change.startswith("--stack ")]
    assert "--stack fsdp --allow offload" in stacks
    others = told[len(stacks) :]
    assert told[: len(stacks)] == stacks
    named = [change for change in others if not change.startswith("-")]
    machines = [catalog.load_cluster(change.split()[0]) for change in named if change.endswith(" --gpus 1")]
    assert all(one.links.intra_node.kind == "pcie" and one.gpu.kind == "cuda" for one in machines)
