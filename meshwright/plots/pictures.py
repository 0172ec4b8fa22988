"""Kinds of pictures: each function draws one kind, with its data, for a request.

Those of plans are registered for the class of the plan, those of files (clusters, run reports, tables) for `Path`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cost_models.communication.topology import used_levels
from cost_models.errors import InfeasibleError, InputError, Problem, UnknownNameError
from cost_models.estimate import Estimate, fullest_pool
from cost_models.expected import ExpectedStep
from cost_models.files.loading import resolve_cluster
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import link_use
from cost_models.question import Question, parts_of
from cost_models.recommender.prices import estimate as price_sharding
from cost_models.reliability import Forecast
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.units import counted, format_bytes, format_seconds, grouped
from meshwright.inputs.goals import objective_of
from meshwright.inputs.options import Goal
from meshwright.inputs.questions import one_count
from meshwright.plots.drawing import PICTURES, Draw, Drawing, PictureRequest, PlotOptions, picture
from meshwright.records import frames
from meshwright.records.runs import read_report
from meshwright.records.shardings import shards_frame, stages_frame, tiers_frame
from meshwright.render.goals import gpus_in_words, sizes_text
from meshwright.render.words import in_unit, sentence_list, time_unit
from planner.answers.frontier import (
    exact_frontier,
    far_links_frame,
    frontier_frame,
    heatmap_frame,
    ladder_frame,
    pareto_frame,
    scaling_frame,
    window_frame,
)
from planner.answers.optimum import POINTS, answered_question
from planner.explain.compare import differences
from planner.explain.reasons import RIVALS, search_rivals, tornado_frame
from planner.plan import AnyPlan, Plan, PlanCache, load_plan, priced_again
from planner.recommender.plan import RecommenderPlan
from planner.search.search import KINDS, Budget, scaling_sizes
from planner.serving import ServingPlan, load_serving_plan
from planner.space.obstacles import notes_of
from planner.space.sizes import is_possible_size, on_whole_nodes, parse_sizes

MOST_POINTS = 1000
"""Largest number of points of a frontier that a user can ask for."""
MAX_NAMED_LAYOUTS = 2000
"""Largest number of layouts of a cloud that are named if the picture is to appear at once."""
_STACKED = "stacked"
"""Kind of scaling picture with bars: strong scaling, parts of each step stacked."""


def pictures_of(plan_type: type[AnyPlan]) -> dict[str, Draw]:
    """Kinds of pictures for a class of plans → function that draws the kind."""
    return PICTURES[plan_type]


def draw_plan(
    kind: str, plan: AnyPlan, estimates: Sequence[Estimate] = (), gpus: Sequence[int] | None = None
) -> Drawing:
    """Draw one kind of picture of a plan; some kinds also use its ranked layouts (best first), or the numbers `gpus`.

    Raises:
        UnknownNameError: there is no such kind.
    """
    kinds = PICTURES[type(plan)]
    if kind not in kinds:
        raise UnknownNameError("plot", kind, tuple(kinds), hint=f"there are {', '.join(kinds)}")
    options = PlotOptions(gpus=None if gpus is None else ",".join(map(str, gpus)))
    return kinds[kind](PictureRequest(plans=[plan], estimates=estimates, options=options, budget=Budget()))


def _several_kinds(kind: str, cluster: str) -> InputError:
    """Error that a kind of picture cannot be drawn for several GPU pools."""
    return InputError(
        f"`{kind}` is drawn for one kind of GPU, and `{cluster}` has several pools",
        hint="time, memory and timeline are drawn for any plan",
    )


_DrawPlan = Callable[[Plan, Estimate, PictureRequest], Drawing]


def _plan_picture(kind: str, *, of_pools: bool = False) -> Callable[[_DrawPlan], _DrawPlan]:
    """Decorator: register a picture of one transformer plan and its price; `of_pools` permits plans on several
    pools."""

    def register(draw: _DrawPlan) -> _DrawPlan:
        """Register the function for the kind of picture, and return it."""

        @picture(kind, Plan)
        def draw_request(request: PictureRequest) -> Drawing:
            """Draw the request's only plan, priced now unless the request has its price."""
            plan = request.only(kind, Plan)
            if plan.question.has_pools and not of_pools:
                raise _several_kinds(kind, plan.question.cluster.name)
            estimate = request.estimates[0] if request.estimates else priced_again(plan)
            return draw(plan, estimate, request)

        return draw

    return register


def subject_of(question: Question, estimate: Estimate | None = None, *, sized: bool = True) -> str:
    """Subtitle of a picture: model, GPUs (without number if not `sized`), batch, sequence length, layout."""
    training = question.training
    gpus = gpus_in_words(question) if sized else question.cluster.gpu.name
    batch = f"global batch {training.global_batch}, sequence {training.sequence_length}"
    words = f"{question.model.name} on {gpus}, {batch}"
    return words if estimate is None else f"{words}: {estimate.layout.brief}"


@picture("time", Plan)
def _time(request: PictureRequest) -> Drawing:
    """Draw step time by part of each layout; layouts of different questions carry the question's name."""
    from meshwright.plots.layouts import time_breakdown

    plans = request.all(Plan)
    pairs = [(plan.question, priced_again(plan)) for plan in plans]
    if changes := differences([question for question, _ in pairs]):
        words = "; ".join(f"{one.what} {' / '.join(one.values)}" for one in changes)
        request.notes.append(f"the plans answer different questions: {words}")
    if request.estimates:
        pairs = [(plans[0].question, estimate) for estimate in request.estimates]
    elif len(pairs) == 1:
        request.budget.tell("searching for rivals")
        rivals = search_rivals(plans[0], PlanCache(plans[0]))
        others = [rival for rival in rivals if rival.layout != plans[0].layout]
        pairs += [(plans[0].question, rival) for rival in others[: RIVALS - 1]]
    frame = frames.time_frame([estimate for _, estimate in pairs])
    subjects = [subject_of(question) for question, _ in pairs]
    subject, count = subjects[0], len(set(subjects))
    if count > 1:
        frame.insert(0, "name", subjects)
        subject = f"{count} different questions, each named with its layout"
    return Drawing.of(time_breakdown, frame, subject)


@_plan_picture("memory", of_pools=True)
def _memory(plan: Plan, estimate: Estimate, _: PictureRequest) -> Drawing:
    """Draw memory by part, a bar for each pipeline rank."""
    from meshwright.plots.layouts import memory_by_rank, pool_spans

    frame = frames.memory_frame(estimate)
    subject = subject_of(plan.question, estimate)
    if estimate.replicas:
        subject += f"; in {fullest_pool(estimate.replicas).pool}, where devices are fullest"
    limits = estimate.rank_limits or [estimate.memory_limit] * len(frame)
    return Drawing.of(memory_by_rank, frame, limits, subject, pools=pool_spans(estimate.layout.pools))


@_plan_picture("timeline", of_pools=True)
def _timeline(plan: Plan, estimate: Estimate, _: PictureRequest) -> Drawing:
    """Draw the schedule of a step: every action on every pipeline rank over time."""
    from meshwright.plots.layouts import pool_spans
    from meshwright.plots.timelines import timeline

    layout = estimate.layout
    frame = frames.timeline_frame(plan.question, layout)
    subject = subject_of(plan.question, estimate)
    if estimate.replicas:
        slowest = max(estimate.replicas, key=lambda replica: replica.step_seconds)
        subject += f"; a replica in {slowest.pool}, which ends last"
    return Drawing.of(timeline, frame, layout.pp, subject, pools=pool_spans(layout.pools))


@_plan_picture("window")
def _window(plan: Plan, estimate: Estimate, _: PictureRequest) -> Drawing:
    """Draw step time and memory as more of a rank's blocks move to host memory. Raises InputError if the stack keeps
    none there."""
    from meshwright.plots.layouts import window

    question = plan.question
    frame = window_frame(question, estimate)
    if frame.empty:
        raise InputError(
            f"`window` has nothing to draw: stack `{question.stack.name}` keeps no states of blocks in host memory",
            hint="plan with another --stack, like meshwright or deepspeed",
        )
    usable = usable_host_memory(question.cluster) or None
    return Drawing.of(window, frame, estimate.memory_limit, usable, subject_of(question, estimate))


@_plan_picture("frontier")
def draw_frontier(plan: Plan, estimate: Estimate, request: PictureRequest) -> Drawing:
    """Draw the proven frontier of two objectives; for time and memory, over the cloud of all legal layouts.

    Raises:
        InputError: an objective lacks what it needs.
        InfeasibleError: nothing fits.
    """
    options, question = request.options, plan.question
    target = question if options.gpus is None else answered_question(plan)
    names = [word.strip() for word in (options.between or "time,memory").split(",")]
    if len(names) != 2:
        reason = f"a frontier lies between two objectives, not {len(names)}"
        raise InputError(reason, hint="write it like --between time,cost")
    tokens = options.tokens or question.training.tokens
    prices = {"cost": options.price}
    goals = [Goal(objective=name, tokens=tokens, price=prices.get(name)) for name in names]
    (first, count), (second, _) = map(objective_of, goals)
    target = target if count is None else target.updated("training", tokens=count)
    points, sizes = _points(options.points), () if options.gpus is None else parse_sizes(options.gpus, target)
    limits, budget = plan.user_restrictions, request.budget
    if {first.name, second.name} == {"time", "memory"} and not sizes:
        from meshwright.plots.frontiers import frontier

        most = None if request.named else MAX_NAMED_LAYOUTS
        frame = frontier_frame(target, estimate, limits, budget, exact=True, points=points, max_named=most)
        return Drawing.of(frontier, frame, estimate.memory_limit, subject_of(target))
    from meshwright.plots.frontiers import pareto

    objectives = first, second
    answer = exact_frontier(
        target, objectives, sizes=sizes, points=points, restrictions=limits, budget=budget
    )
    one_size = len({point.question.cluster.num_gpus for point in answer.points}) == 1
    subject = subject_of(answer.points[0].question, sized=one_size)
    ends = (first.name, second.name), (first.measure, second.measure)
    return Drawing.of(pareto, pareto_frame(answer), *ends, subject, complete=answer.complete)


def _points(text: str | None) -> int | None:
    """Parse `--points`, the number of points of a frontier: a default if not given, None for `all`. Raises
    InputError."""
    if text is None or text == "all":
        return POINTS if text is None else None
    if not text.isdecimal() or not 2 <= int(text) <= MOST_POINTS:
        raise InputError(f"--points: `{text}` is neither `all` nor a number from 2 to {MOST_POINTS}")
    return int(text)


@_plan_picture("scaling")
def _scaling(plan: Plan, _: Estimate, request: PictureRequest) -> Drawing:
    """Draw the best layout for each number of GPUs, with a constant and with a growing batch.

    Raises:
        InfeasibleError: nothing fits on any of them.
    """
    from meshwright.plots.scaling import scaling, stacked_scaling

    question = plan.question
    kinds = _scaling_kinds(request.options, _STACKED)
    is_stacked = kinds == (_STACKED,)
    gpus = request.options.gpus
    counts = scaling_sizes(question) if gpus is None else parse_sizes(gpus, question)
    frame = scaling_frame(question, counts, ("strong",) if is_stacked else kinds, request.budget)
    if frame.empty:
        raise InfeasibleError(f"nothing fits on {sizes_text(tuple(counts))}")
    if is_stacked:
        return Drawing.of(stacked_scaling, frame, subject_of(question, sized=False))
    gpu, sequence = question.cluster.gpu.name, question.training.sequence_length
    subject = f"{question.model.name} on {gpu}, sequence {sequence}; the best layout at each point"
    return Drawing.of(scaling, frame, subject)


def _scaling_kinds(options: PlotOptions, *extra: str) -> Sequence[str]:
    """Kinds of scaling that `--kind` names (all if not given), including those in `extra`. Raises InputError for
    another word."""
    kinds = (*KINDS, *extra)
    if options.kind is not None and options.kind not in kinds:
        names = sentence_list([f"`{one}`" for one in kinds])
        raise InputError(f"--kind: `{options.kind}` is not one of {names}")
    return KINDS if options.kind is None else (options.kind,)


@_plan_picture("far-links")
def _far_links(plan: Plan, _: Estimate, request: PictureRequest) -> Drawing:
    """Draw MFU of the best layout against the bandwidth of the slowest network level, with the axes that cross it.

    Raises:
        InputError: all nodes are on one network.
        InfeasibleError: nothing fits.
    """
    from meshwright.plots.scaling import far_links

    question, levels = plan.question, used_levels(plan.question.cluster)
    if sum(level.network for level in levels) < 2:
        raise InputError(
            f"`far-links` has nothing to draw: all nodes of `{question.cluster.name}` are on one network",
            hint="describe `buildings`, or links level by level, in the cluster's file",
        )
    frame = far_links_frame(question, plan.user_restrictions, request.budget)
    if frame[frame["domains"] != 1].empty:
        raise InfeasibleError(f"nothing fits on {counted(question.cluster.num_gpus, 'GPU')}")
    return Drawing.of(far_links, frame, levels[-1].bandwidth, levels[-2].name, subject_of(question))


@_plan_picture("ladder")
def _ladder(plan: Plan, estimate: Estimate, request: PictureRequest) -> Drawing:
    """Draw the MFU that each technique adds, from a bare trainer to the plan. Raises InputError for unknown words of
    `--allow`."""
    from meshwright.plots.sensitivity import ladder

    allowed = [word for text in request.options.allow for word in text.split(",")]
    frame = ladder_frame(plan.question, estimate.layout, allowed)
    return Drawing.of(ladder, frame, subject_of(plan.question, estimate))


@_plan_picture("heatmap")
def _heatmap(plan: Plan, estimate: Estimate, request: PictureRequest) -> Drawing:
    """Draw MFU of the best layout for each pair of tensor and pipeline degree, or why there is no layout."""
    from meshwright.plots.sensitivity import heatmap

    frame = heatmap_frame(plan.question, estimate.layout, plan.user_restrictions, request.budget)
    return Drawing.of(heatmap, frame, subject_of(plan.question))


@_plan_picture("tornado")
def _tornado(plan: Plan, estimate: Estimate, request: PictureRequest) -> Drawing:
    """Draw how the step time changes with 25 % more or less of each quantity, for the plan's layout and
    re-planned."""
    from meshwright.plots.sensitivity import tornado

    frame = tornado_frame(plan.question, estimate, plan.restrictions.read, request.budget)
    return Drawing.of(tornado, frame, subject_of(plan.question, estimate))


def draw_forecast(question: Question, outlook: Forecast, expected: ExpectedStep | None) -> Drawing:
    """Draw days until a job ends against the checkpoint interval, and goodput against the number of GPUs."""
    from meshwright.plots.sensitivity import forecast, forecast_frame

    frame = forecast_frame(outlook, None if expected is None else expected.likely_steps)
    subject = f"{question.model.name} on {gpus_in_words(question)}, operations {outlook.operations.name}"
    return Drawing.of(forecast, frame, outlook, subject)


@_plan_picture("topology", of_pools=True)
def _topology_of_plan(plan: Plan, estimate: Estimate, _: PictureRequest) -> Drawing:
    """Draw the plan's cluster: network levels, and how busy the plan keeps them."""
    return draw_topology(parts_of(plan.question)[0], plan.question, estimate)


@picture("topology", Path)
def _topology(request: PictureRequest) -> Drawing:
    """Draw a cluster's network levels; with a plan file, also how busy the plan keeps them."""
    name, *plans = map(str, request.files)
    gpus = request.options.gpus
    if len(plans) > 1:
        raise InputError(f"`topology` draws one cluster with one plan, not {len(plans)}")
    if not plans:
        return draw_topology(resolve_cluster(name, one_count(gpus, hint="`topology` draws one cluster")))
    if gpus is not None:
        raise InputError("the plan says how many GPUs there are", hint="leave out --gpus")
    plan = plan_in(request, Path(plans[0]))
    cluster, planned = resolve_cluster(name).name, parts_of(plan.question)[0]
    if cluster != planned.name:
        hint = f"meshwright plot topology {planned.name} {plans[0]}"
        raise InputError(f"`{plans[0]}` is a plan for `{planned.name}`, not for `{cluster}`", hint=hint)
    return draw_topology(planned, plan.question, priced_again(plan))


def draw_topology(
    cluster: ClusterSpec | MixedCluster, question: Question | None = None, estimate: Estimate | None = None
) -> Drawing:
    """Draw a cluster's network levels; with an estimate, also how busy each axis keeps them.

    Raises:
        InputError: a cluster of several pools.
    """
    from meshwright.plots.topology import topology
    from meshwright.render.links import links_finding, links_frame, links_table

    if isinstance(cluster, MixedCluster):
        raise _several_kinds("topology", cluster.name)
    use = None
    subject = f"{cluster.name}: {counted(cluster.num_gpus, 'GPU')}, {counted(cluster.nodes, 'node')}"
    if question is not None and estimate is not None:
        use = link_use(question, estimate)
        subject = f"{subject_of(question, estimate)}; bars: share of {format_seconds(estimate.step_seconds)}"
    figure = topology(cluster, links_finding(cluster, use), subject, use)
    return Drawing(frame=links_frame(cluster, use), figure=figure, table=links_table(cluster, use))


def plan_in(request: PictureRequest, path: Path) -> Plan:
    """Load a transformer's plan from a file, and add notes on its question to the request."""
    plan = load_plan(path)
    request.note(notes_of(plan.question, plan.restrictions.read))
    return plan


@picture("accuracy", Path)
def _accuracy(request: PictureRequest) -> Drawing:
    """Draw predicted against measured quantities, from run reports and tables."""
    from meshwright.plots.measured import accuracy

    frame = frames.accuracy_frame(request.files)
    return Drawing.of(accuracy, frame, sentence_list([str(path) for path in request.files]))


@picture("timeline", Path)
def _timelines(request: PictureRequest) -> Drawing:
    """Draw the passes of a measured run above those of its plan."""
    from meshwright.plots.timelines import timelines

    place, report_place = request.files
    plan, report = plan_in(request, place), read_report(report_place)
    if report.layout != plan.layout:
        differ = [Problem("the plan", plan.layout.brief), Problem("the run", report.layout.brief)]
        raise InputError(f"`{report_place}` is of another layout than `{place}`", problems=differ)
    measured = frames.passes_frame(report)
    if measured.empty:
        hint = "`measure` needs the traces of all ranks of one pipeline; `run` tells them of its own"
        raise InputError(f"`{report_place}` tells no passes", hint=hint)
    planned = frames.timeline_frame(plan.question, plan.layout)
    planned = planned[planned["lane"] == ""] if "lane" in planned else planned
    subject = f"{plan.model.name}, {plan.layout.brief} on {report.environment.device}"
    return Drawing.of(timelines, measured, planned, plan.layout.pp, subject)


@picture("ranks", Path)
def _ranks(request: PictureRequest) -> Drawing:
    """Draw each rank's time at work at each step of a run, or, with traces, how long others waited for each rank."""
    from meshwright.plots.measured import late_ranks, ranks

    path = request.file("ranks", "run report")
    report = read_report(path)
    subject = f"{report.model}, {report.layout} on {report.environment.device}"
    if len(late := frames.late_frame(report)):
        return Drawing.of(late_ranks, late, subject)
    if report.is_foreign:
        reason = "tells nothing of what each rank did: it was read from another trainer's log"
        hint = f"meshwright plot accuracy {path} draws what it tells"
        raise InputError(f"`{path}` {reason}", hint=hint)
    frame, first = frames.ranks_frame(report), report.first_measured_step
    return Drawing.of(ranks, frame, report.slow_ranks, first, subject)


@picture("time", RecommenderPlan)
def _stages(request: PictureRequest) -> Drawing:
    """Draw the stages of a recommender's step (such as the index exchange) on each GPU."""
    from meshwright.plots.shardings import stages

    plan = request.only("time", RecommenderPlan)
    priced = price_sharding(plan.question, plan.sharding)
    return Drawing.of(stages, stages_frame(priced), _sharding_subject(plan, priced.step_seconds))


@picture("memory", RecommenderPlan)
def _tiers(request: PictureRequest) -> Drawing:
    """Draw memory by part of each GPU, and of each host that holds embedding tables."""
    from meshwright.plots.shardings import tiers

    plan = request.only("memory", RecommenderPlan)
    priced = price_sharding(plan.question, plan.sharding)
    return Drawing.of(tiers, tiers_frame(priced), _sharding_subject(plan, priced.step_seconds))


@picture("sharding", RecommenderPlan)
def _places(request: PictureRequest) -> Drawing:
    """Draw which GPU holds which part of each embedding table."""
    from meshwright.plots.shardings import places

    plan = request.only("sharding", RecommenderPlan)
    frame = shards_frame(plan.question, plan.sharding)
    step_seconds = price_sharding(plan.question, plan.sharding).step_seconds
    return Drawing.of(places, frame, _sharding_subject(plan, step_seconds))


def _sharding_subject(plan: RecommenderPlan, step_seconds: float) -> str:
    """Subtitle of a sharding's picture: model, GPUs, batch, step."""
    question = plan.question
    cluster, training = question.cluster, question.training
    samples = f"{grouped(training.global_batch)} samples/step ({training.precision})"
    gpus = f"{grouped(cluster.num_gpus)} x {cluster.gpu.name}"
    unit = time_unit(step_seconds)
    return f"{question.model.name} on {gpus}, {samples}; step {in_unit(step_seconds, unit)} {unit[0]}"


@picture("scaling", RecommenderPlan)
def _sharding_scaling(request: PictureRequest) -> Drawing:
    """Draw the best sharding for each number of GPUs. Raises InfeasibleError if nothing fits on any."""
    from meshwright.plots.shardings import sharding_scaling
    from planner.recommender.search import sharding_scaling_frame

    question = request.only("scaling", RecommenderPlan).question
    options, kinds = request.options, _scaling_kinds(request.options)
    rounded = on_whole_nodes(question)
    counts: Sequence[int] = [one for one in scaling_sizes(question) if is_possible_size(one, rounded.cluster)]
    if options.gpus is not None:
        counts = parse_sizes(options.gpus, rounded)
    frame = sharding_scaling_frame(question, counts, kinds, request.budget)
    if frame.empty:
        raise InfeasibleError(f"nothing fits on {sizes_text(tuple(counts))}, or the batch does not divide")
    subject = f"{question.model.name} on {question.cluster.gpu.name}; the best sharding at each point"
    return Drawing.of(sharding_scaling, frame, subject)


@picture("cache", Path)
def _cache(request: PictureRequest) -> Drawing:
    """Draw hit rate and latency against the size of the embedding cache, from a plan file for serving."""
    return draw_cache(load_serving_plan(request.file("cache", "plan")))


def draw_cache(plan: ServingPlan) -> Drawing:
    """Draw hit rate and latency of a serving plan against the size of its cache of embedding rows, up to all
    tables."""
    from meshwright.plots.shardings import cache, cache_frame

    frame, question = cache_frame(plan), plan.question
    tables = f"tables of {format_bytes(question.tables.bytes)}"
    order = "most" if question.policy == "hottest" else "last"
    gpus = f"{question.cluster.num_gpus} x {question.cluster.gpu.name}"
    subject = f"{question.model.name} on {gpus}, {tables}, rows used {order}; star: the plan"
    return Drawing.of(cache, frame, plan, subject)
