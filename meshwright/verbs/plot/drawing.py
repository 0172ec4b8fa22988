"""Draws plans, the layouts they were chosen from, and run reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files.loading import resolve_cluster
from cost_models.question import parts_of
from meshwright.plots.drawing import Drawing
from meshwright.plots.pictures import draw_topology
from meshwright.records import frames
from meshwright.records.runs import read_report
from meshwright.render.words import sentence_list, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import option_word, verbs_of_plan
from meshwright.verbs.forecast import forecast
from meshwright.verbs.plot import CURVE_SECONDS, PLOTS, PlotOptions
from planner.plan import AnyPlan, Plan, load_any_plan, load_plan, priced_again
from planner.search.search import KINDS, Budget
from planner.space.obstacles import notes_of

P = TypeVar("P", bound=AnyPlan)


STACKED = "stacked"
"""Strong scaling with the parts of each step on one another, for families that draw it."""


def scaling_kinds(options: PlotOptions, *extra: str) -> Sequence[str]:
    """Kinds of scaling asked for, one kind or one of `extra`. Raises InputError for another word."""
    if options.kind is None:
        return KINDS
    kinds = (*KINDS, *extra)
    if options.kind not in kinds:
        names = sentence_list([f"`{one}`" for one in kinds])
        raise InputError(f"--kind: `{options.kind}` is not one of {names}")
    return (options.kind,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRequest:
    """Files to draw, or the plans in them, options, and the notes met on the way."""

    files: Sequence[Path] = ()
    plans: Sequence[AnyPlan] = ()
    options: PlotOptions
    budget: Budget
    """For the searches of a curve."""
    notes: list[str] = field(default_factory=list)
    """Notes on effects that the pictures leave out."""
    named: bool = True
    """Whether their data are read besides, so that every layout in them needs its name."""

    def note(self, notes: Iterable[str]) -> None:
        """Add those that are new."""
        self.notes.extend(note for note in notes if note not in self.notes)

    def only(self, kind: str, plan_type: type[P]) -> P:
        """Return the plan of the request, which has one only. Raises InputError where there are several."""
        if len(self.plans) != 1:
            raise InputError(f"`{kind}` draws one plan, not {len(self.plans)}")
        return self.all(plan_type)[0]

    def all(self, plan_type: type[P]) -> list[P]:
        """The plans. Raises InputError where one is of another family."""
        plans = [plan for plan in self.plans if isinstance(plan, plan_type)]
        if strangers := [plan for plan in self.plans if not isinstance(plan, plan_type)]:
            kinds = [f"`{plan.kind}` of {plan.model_name}" for plan in (plans[0], strangers[0])]
            raise InputError(f"plans of two kinds cannot be drawn together: {', '.join(kinds)}")
        return plans


_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


_KINDS_OF = {
    "gpus": ("scaling", "frontier", "topology"),
    "between": ("frontier",),
    "points": ("frontier",),
    "kind": ("scaling",),
    "tokens": ("frontier", "forecast"),
    "operations": ("forecast",),
    "price": ("frontier",),
    "time_limit": ("scaling", "frontier", "far-links", "heatmap", "tornado"),
    "allow": ("ladder",),
}


def require_kind(kind: str) -> None:
    """Raise UnknownNameError where there is no such kind of plot."""
    if kind not in _KINDS:
        raise UnknownNameError("plot", kind, tuple(_KINDS), hint=f"there are {', '.join(_KINDS)}")


def draw_kind(kind: str, files: Sequence[str | Path], options: PlotOptions, budget: Budget | None) -> Plotted:
    """Draw one kind of plot of files. Raises InputError, UnknownNameError."""
    require_kind(kind)
    check_options(kind, options)
    spending = budget or Budget(time_limit=options.time_limit or CURVE_SECONDS, keep_on_interrupt=True)
    spending.proof = "bounds"
    request = PictureRequest(files=tuple(map(Path, files)), options=options, budget=spending)
    return Plotted(kind=kind, drawing=_KINDS[kind](request), notes=tuple(request.notes))


def check_options(kind: str, options: PlotOptions) -> None:
    """Raises InputError where an option means nothing to this kind of plot."""
    problems = []
    for name, kinds in _KINDS_OF.items():
        if getattr(options, name) not in (None, ()) and kind not in kinds:
            names = sentence_list([f"`{one}`" for one in kinds])
            problems.append(Problem(option_word(name), f"is for {names}, not `{kind}`"))
    if problems:
        raise InputError(f"`{kind}` takes fewer flags", problems=problems)


def _of_plans(kind: str, request: PictureRequest) -> Drawing:
    """A kind that families draw of their plans; each file is read once, as it may be a pipe."""
    plans = [load_any_plan(path) for path in request.files]
    for plan in plans:
        request.note(verbs_of_plan(plan).notes(plan))
    verbs = verbs_of_plan(plans[0])
    if kind not in verbs.pictures:
        hint = f"{sentence_list(sorted(verbs.pictures))} are"
        raise InputError(f"`{kind}` is not drawn of {verbs.noun}", hint=hint)
    return verbs.pictures[kind](replace(request, plans=plans))


def _plan(request: PictureRequest, path: Path) -> Plan:
    """Read a transformer's plan, and note what its question says."""
    plan = load_plan(path)
    request.note(notes_of(plan.question, plan.restrictions.read))
    return plan


def _forecast(request: PictureRequest) -> Drawing:
    if len(request.files) != 1:
        raise InputError(f"`forecast` draws one plan, not {len(request.files)}")
    plan, options = _plan(request, request.files[0]), request.options
    return forecast(plan, options.tokens, operations=options.operations).plot()


def _cache(request: PictureRequest) -> Drawing:
    from meshwright.plots.shardings import draw_cache_of

    return draw_cache_of(request.files)


def _topology(request: PictureRequest) -> Drawing:
    """A cluster, alone or with a plan for it."""
    name, *plans = map(str, request.files)
    gpus = request.options.gpus
    if len(plans) > 1:
        raise InputError(f"`topology` draws one cluster with one plan, not {len(plans)}")
    if gpus is not None and not _NUMBER.fullmatch(gpus):
        reason = f"`{printable(gpus)}` is not one number of GPUs"
        raise InputError(f"--gpus: {reason}; `topology` draws one cluster")
    if not plans:
        return draw_topology(resolve_cluster(name, None if gpus is None else int(gpus)))
    if gpus is not None:
        raise InputError("the plan says how many GPUs there are", hint="leave out --gpus")
    plan = _plan(request, Path(plans[0]))
    cluster, planned = resolve_cluster(name).name, parts_of(plan.question)[0]
    if cluster != planned.name:
        hint = f"meshwright plot topology {planned.name} {plans[0]}"
        raise InputError(f"`{plans[0]}` is a plan for `{planned.name}`, not for `{cluster}`", hint=hint)
    return draw_topology(planned, plan.question, priced_again(plan))


def _accuracy(request: PictureRequest) -> Drawing:
    from meshwright.plots.measured import accuracy

    frame = frames.accuracy_frame(request.files)
    figure = accuracy(frame, sentence_list([str(path) for path in request.files]))
    return Drawing(frame=frame, figure=figure)


def _timeline(request: PictureRequest) -> Drawing:
    """A plan alone, or with the report of a run above it."""
    if len(request.files) != 2:
        return _of_plans("timeline", request)
    from meshwright.plots.measured import timelines

    plan, report = _plan(request, request.files[0]), read_report(request.files[1])
    if report.layout != plan.layout:
        differ = [Problem("the plan", plan.layout.brief), Problem("the run", report.layout.brief)]
        reason = f"`{request.files[1]}` is of another layout than `{request.files[0]}`"
        raise InputError(reason, problems=differ)
    measured = frames.passes_frame(report)
    if measured.empty:
        hint = "`measure` needs the traces of all ranks of one pipeline; `run` tells them of its own"
        raise InputError(f"`{request.files[1]}` tells no passes", hint=hint)
    planned = frames.timeline_frame(plan.question, plan.layout)
    planned = planned[planned["lane"] == ""] if "lane" in planned else planned
    subject = f"{plan.model.name}, {plan.layout.brief} on {report.environment.device}"
    figure = timelines(measured, planned, plan.layout.pp, subject)
    return Drawing(frame=measured, figure=figure)


def _ranks(request: PictureRequest) -> Drawing:
    from meshwright.plots.measured import ranks

    if len(request.files) != 1:
        raise InputError(f"`ranks` draws one run report, not {len(request.files)}")
    report = read_report(request.files[0])
    subject = f"{report.model}, {report.layout} on {report.environment.device}"
    if len(late := frames.late_frame(report)):
        from meshwright.plots.measured import late_ranks

        return Drawing(frame=late, figure=late_ranks(late, subject))
    if report.is_foreign:
        reason = "tells nothing of what each rank did: it was read from another trainer's log"
        hint = f"meshwright plot accuracy {request.files[0]} draws what it tells"
        raise InputError(f"`{request.files[0]}` {reason}", hint=hint)
    frame = frames.ranks_frame(report)
    return Drawing(frame=frame, figure=ranks(frame, report.slow_ranks, report.first_measured_step, subject))


_KINDS: dict[str, Callable[[PictureRequest], Drawing]] = {
    **{kind: partial(_of_plans, kind) for kind in PLOTS},
    "timeline": _timeline,
    "forecast": _forecast,
    "cache": _cache,
    "topology": _topology,
    "accuracy": _accuracy,
    "ranks": _ranks,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Plotted(Answer):
    """One kind of plot, drawn."""

    kind: str
    drawing: Drawing
    notes: tuple[str, ...] = ()
    """Notes on effects that the picture leaves out."""
    file: Path | None = None
    """File to which the picture is written."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the data drawn, in base units."""
        return self.drawing.points

    def document(self) -> dict[str, Any]:
        plot = {"plot": self.kind, "file": self.file and str(self.file), "title": self.drawing.title}
        return plot | {"notes": list(self.notes), "points": self.rows}

    @property
    def text(self) -> tuple[str, ...]:
        """Text that `meshwright plot` prints."""
        table = self.drawing.table
        return (wrapped(self.drawing.title), *(("", table) if table else ()))

    def __repr__(self) -> str:
        return self.drawing.title
