"""Pictures of plans, of what they were chosen from, and of run reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files.loading import resolve_cluster
from cost_models.question import parts_of
from meshwright.answers.plotted import Plotted
from meshwright.answers.ranked import Ranked
from meshwright.api.forecast import forecast
from meshwright.inputs.goals import Goal, objective_of
from meshwright.plots.drawing import (
    Drawing,
    Tradeoff,
    draw_frontier,
    draw_memory,
    draw_scaling,
    draw_time,
    draw_timeline,
    draw_topology,
    draw_window,
)
from meshwright.records import frames
from meshwright.render.words import sentence_list
from planner.answers.offers import Offer, offers_of, rank_offers
from planner.answers.optimum import answered_question
from planner.answers.pareto import POINTS
from planner.answers.scaling import KINDS
from planner.explaining.differing import differences
from planner.objectives import Objective
from planner.plan import Plan
from planner.plan_files import load_plan
from planner.repricing import priced_again
from planner.search.budget import Budget
from planner.search.search import search
from planner.space.gpu_counts import parse_sizes
from planner.space.notes import notes_of

RIVALS = 5
"""Bars of the time breakdown of a single plan."""
RIVALS_SECONDS = 20.0
"""Time limit of the search for them."""
CURVE_SECONDS = 120.0
"""Time limit of all searches of a curve, unless the user says otherwise."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
MOST_POINTS = 1000
"""Points of a frontier that can be asked for by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotOptions:
    """Options of the curves that are searched for."""

    gpus: str | None = None
    """Numbers of GPUs, for `scaling` and `frontier`; one for `topology`."""
    between: str | None = None
    """Two objectives, for `frontier`."""
    points: str | None = None
    """How many of a frontier, or `all`."""
    kind: str | None = None
    """`strong` or `weak`, for `scaling`."""
    tokens: str | None = None
    price: str | None = None
    operations: str | None = None
    """For `forecast`: catalogue name or file."""
    time_limit: float | None = None


_MEANT_FOR = {
    "gpus": ("scaling", "frontier", "topology"),
    "between": ("frontier",),
    "points": ("frontier",),
    "kind": ("scaling",),
    "tokens": ("frontier", "forecast"),
    "operations": ("forecast",),
    "price": ("frontier",),
    "time_limit": ("scaling", "frontier"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """Files to draw, options, and the notes met on the way."""

    files: Sequence[Path]
    options: PlotOptions
    budget: Budget
    """For the searches of a curve."""
    notes: list[str] = field(default_factory=list)
    """What the pictures pass over."""


def require_kind(kind: str) -> None:
    """Raise UnknownNameError where there is no such kind of plot."""
    if kind not in _KINDS:
        raise UnknownNameError("plot", kind, tuple(_KINDS), hint=f"there are {', '.join(_KINDS)}")


def plot(
    kind: str, *files: str | Path, options: PlotOptions | None = None, budget: Budget | None = None
) -> Plotted:
    """Draw one kind of plot of plan files; of run reports or tables `accuracy`, of a cluster and its plan `topology`.

    Raises:
        InputError: a file, an option or a list of GPUs that is wrong.
        UnknownNameError: there is no such kind.
    """
    require_kind(kind)
    chosen = options or PlotOptions()
    check_options(kind, chosen)
    spending = budget or Budget(time_limit=chosen.time_limit or CURVE_SECONDS, keep_on_interrupt=True)
    request = PlotRequest(files=tuple(map(Path, files)), options=chosen, budget=spending)
    return Plotted(kind=kind, drawing=_KINDS[kind](request), notes=tuple(request.notes))


def check_options(kind: str, options: PlotOptions) -> None:
    """Raises InputError where an option means nothing to this kind of plot."""
    problems = [
        Problem(
            "--" + name.replace("_", "-"),
            f"is for {sentence_list([f'`{one}`' for one in kinds])}, not `{kind}`",
        )
        for name, kinds in _MEANT_FOR.items()
        if getattr(options, name) is not None and kind not in kinds
    ]
    if problems:
        raise InputError(f"`{kind}` takes fewer flags", problems=problems)


def _only_plan(request: PlotRequest, kind: str) -> Plan:
    if len(request.files) != 1:
        raise InputError(f"`{kind}` draws one plan, not {len(request.files)}")
    return _plan(request, request.files[0])


def _plan(request: PlotRequest, path: Path) -> Plan:
    """Read a plan file, once as it may be a pipe, and note what its question says."""
    plan = load_plan(path)
    request.notes.extend(
        note for note in notes_of(plan.question, plan.restrictions.read) if note not in request.notes
    )
    return plan


def _frontier(request: PlotRequest) -> Drawing:
    plan, options = _only_plan(request, "frontier"), request.options
    question, chosen = plan.question, priced_again(plan)
    if offers := offers_of(plan):
        return _offers(offers, plan, options, request.budget)
    asked = question if options.gpus is None else answered_question(plan)
    names = _two_objectives(options.between)
    tokens = options.tokens or question.training.tokens
    aims = [
        objective_of(Goal(objective=name, tokens=tokens, price=options.price if name == "cost" else None))
        for name in names
    ]
    if aims[0][1] is not None:
        asked = replace(asked, training=asked.training.model_copy(update={"tokens": aims[0][1]}))
    tradeoff = Tradeoff(
        objectives=(aims[0][0], aims[1][0]),
        sizes=() if options.gpus is None else parse_sizes(options.gpus, asked),
        points=_points(options.points),
        restrictions=plan.restrictions.read,
    )
    return draw_frontier(asked, chosen, tradeoff, request.budget)


def _offers(offers: tuple[Offer, ...], plan: Plan, options: PlotOptions, budget: Budget) -> Drawing:
    """Rank the clusters that the plan was chosen from again, without its deadline."""
    given = [name for name in ("gpus", "points", "tokens", "price") if getattr(options, name) is not None]
    if given or options.between not in (None, "time,cost", "cost,time"):
        flags = ["--" + name for name in given] or ["--between"]
        raise InputError(
            "a plan chosen from several clusters has its frontier of cost and time over all of them",
            hint=f"leave out {sentence_list(flags)}",
        )
    objective = Objective(name="gpu-hours")
    ranking = rank_offers(offers, objective, restrictions=plan.restrictions.read, budget=budget)
    return Ranked(ranking=ranking, restrictions=plan.restrictions.read).plot()


def _two_objectives(text: str | None) -> tuple[str, str]:
    """ "time,memory" → its two words."""
    words = ("time,memory" if text is None else text).split(",")
    if len(words) != 2:
        raise InputError(
            f"a frontier lies between two objectives, not {len(words)}",
            hint="write it like --between time,cost",
        )
    return words[0].strip(), words[1].strip()


def _points(text: str | None) -> int | None:
    """A number of points; None: all of them."""
    if text is None:
        return POINTS
    if text == "all":
        return None
    if not text.isdecimal() or not 2 <= int(text) <= MOST_POINTS:
        raise InputError(f"--points: `{text}` is neither `all` nor a number from 2 to {MOST_POINTS}")
    return int(text)


def _scaling(request: PlotRequest) -> Drawing:
    question = _only_plan(request, "scaling").question
    options = request.options
    if options.kind not in (None, *KINDS):
        raise InputError(
            f"--kind: `{options.kind}` is not one of {sentence_list([f'`{one}`' for one in KINDS])}"
        )
    counts = None if options.gpus is None else parse_sizes(options.gpus, question)
    kinds = KINDS if options.kind is None else (options.kind,)
    return draw_scaling(question, counts, kinds, request.budget)


def _time(request: PlotRequest) -> Drawing:
    read = [_plan(request, path) for path in request.files]
    plans = [(plan.question, priced_again(plan)) for plan in read]
    if asked := differences([question for question, _ in plans]):
        what = "; ".join(f"{one.what} {' / '.join(one.values)}" for one in asked)
        request.notes.append(f"the plans answer different questions: {what}")
    if len(plans) == 1:
        if request.budget.on_status is not None:
            request.budget.on_status("searching for rivals")
        (question, own), restrictions = plans[0], read[0].restrictions.read
        rivals = search(question, top=RIVALS, restrictions=restrictions, time_limit=RIVALS_SECONDS).estimates
        plans += [(question, rival) for rival in rivals if rival.layout != own.layout][: RIVALS - 1]
    return draw_time([question for question, _ in plans], [estimate for _, estimate in plans])


def _memory(request: PlotRequest) -> Drawing:
    plan = _only_plan(request, "memory")
    return draw_memory(plan.question, priced_again(plan))


def _timeline(request: PlotRequest) -> Drawing:
    plan = _only_plan(request, "timeline")
    return draw_timeline(plan.question, priced_again(plan))


def _window(request: PlotRequest) -> Drawing:
    plan = _only_plan(request, "window")
    return draw_window(plan.question, priced_again(plan))


def _forecast(request: PlotRequest) -> Drawing:
    plan, options = _only_plan(request, "forecast"), request.options
    return forecast(plan, options.tokens, operations=options.operations).plot()


def _cache(request: PlotRequest) -> Drawing:
    return import_module("meshwright.plots.cache").draw_cache_of(request.files)  # type: ignore[no-any-return]


def _topology(request: PlotRequest) -> Drawing:
    """A cluster, alone or with a plan for it."""
    name, *plans = map(str, request.files)
    gpus = request.options.gpus
    if len(plans) > 1:
        raise InputError(f"`topology` draws one cluster with one plan, not {len(plans)}")
    if gpus is not None and not _NUMBER.fullmatch(gpus):
        raise InputError(
            f"--gpus: `{printable(gpus)}` is not one number of GPUs; `topology` draws one cluster"
        )
    if not plans:
        return draw_topology(resolve_cluster(name, None if gpus is None else int(gpus)))
    if gpus is not None:
        raise InputError("the plan says how many GPUs there are", hint="leave out --gpus")
    plan = _plan(request, Path(plans[0]))
    asked, planned = resolve_cluster(name).name, parts_of(plan.question)[0]
    if asked != planned.name:
        raise InputError(
            f"`{plans[0]}` is a plan for `{planned.name}`, not for `{asked}`",
            hint=f"meshwright plot topology {planned.name} {plans[0]}",
        )
    return draw_topology(planned, plan.question, priced_again(plan))


def _accuracy(request: PlotRequest) -> Drawing:
    from meshwright.plots.accuracy import accuracy

    frame = frames.accuracy_frame(request.files)
    figure = accuracy(frame, sentence_list([str(path) for path in request.files]))
    return Drawing(frame=frame, figure=figure)


_KINDS: dict[str, Callable[[PlotRequest], Drawing]] = {
    "frontier": _frontier,
    "scaling": _scaling,
    "time": _time,
    "memory": _memory,
    "timeline": _timeline,
    "window": _window,
    "forecast": _forecast,
    "cache": _cache,
    "topology": _topology,
    "accuracy": _accuracy,
}
