"""Data frames for charts that need many searches or prices: over two objectives, numbers of GPUs, pairs of
degrees, link bandwidths or techniques.

A point is on the Pareto frontier of two objectives if no covered plan is better in one without being worse in
the other. On a fixed number of GPUs step time, GPU-hours and money rise together, so the time-optimal plan is
the best in all of them. Over several numbers of GPUs, each offers one such plan (for MFU one for each padding
of the vocabulary), and the frontier is the set of those that no other beats. Peak memory differs: against it
every number of GPUs has its own frontier, walked by the epsilon-constraint method (Haimes et al. 1971): the
time-optimal plan, then the time-optimal plan with less peak memory, until nothing fits.

Every point is a proven optimum. If there are more points than requested, the walk takes larger steps, so
points may lie between those shown, but none beats them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, RESIDENCIES, UPDATED_BY_CPU, USUAL_RING, Layout
from cost_models.axes.stages import even_layers
from cost_models.communication.topology import used_levels
from cost_models.errors import DoesNotFitError, InfeasibleError, InputError, Problem
from cost_models.estimate import Estimate
from cost_models.operators.flops import model_flops
from cost_models.pipeline.pricing import crossing
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import ClusterSpec, LinkLevels
from cost_models.specs.stack import STORES_SCORES
from cost_models.units import counted, format_bandwidth, format_bytes
from planner.answers.optimum import POINTS, MemoryDescent, limit_below, pareto_rows, split_by_padding
from planner.objectives import Objective
from planner.placement.leaf import TOLERANCE
from planner.search.branching import SearchResult
from planner.search.pools import count_layouts
from planner.search.search import Budget, Row, scaling_rows
from planner.space.axes import divisors
from planner.space.limits import left_out
from planner.space.restrictions import Restrictions
from planner.space.sizes import require_possible, resized
from planner.space.space import BalancedPrices, balanced_prices, cloud, legal_space

if TYPE_CHECKING:
    import pandas as pd


REASON_SEPARATOR = " / "
"""Text between several reasons why a pair of parallel degrees has no layout."""
MAX_DEGREES = 10
"""Maximum number of degrees of one axis in a heat map; if there are more, only powers of two and the plan's
own are searched."""
_WINDOW_STEPS = 40
"""Maximum number of points of a line over the blocks of a rank, besides zero blocks."""
MAX_BUILDINGS = 4
NARROWEST, WIDEST = -6, 3
"""Smallest and largest number of doublings (halvings if negative) of the bandwidth of the cluster's farthest
links."""
CHANGE_WORDS = ("parallel-block", "window=N", "batch=N")
"""Changes of the model's or training's mathematics that `--allow` permits."""
_NUMBERED = re.compile(r"(window|batch)=([1-9][0-9]{0,11})", re.ASCII)
_OVERLAP = 0.9
"""Share of tensor-parallel communication that chunked matrix products hide, assumed for a stack without
overlap: MegaScale's value."""


def _row(estimate: Estimate, *names: str) -> Row:
    """Row of a data frame from an estimate: its layout in short notation and its attributes `names`."""
    return {"layout": estimate.layout.brief, **{name: getattr(estimate, name) for name in names}}


def scaling_frame(
    question: Question, gpu_counts: Sequence[int], kinds: Sequence[str], budget: Budget
) -> pd.DataFrame:
    """Data frame of the best layout at each number of GPUs, with a constant batch (strong scaling) or a batch
    proportional to the GPUs (weak scaling).

    Columns: `kind`, `gpus`, `global_batch`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `gap`, and
    seconds of the step by part. Numbers of GPUs on which no layout is legal or fits are left out, and those the
    budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    require_possible(question.cluster, gpu_counts)

    def row_at(gpus: int, global_batch: int) -> Row | None:
        """Row of the best plan with a number of GPUs and a global batch; None if there is none."""
        result = budget.search(resized(question, gpus, global_batch), Restrictions(), effort="bounds")
        if result is None:
            return None
        best = _row(result.best, "step_seconds", "tokens_per_second", "mfu") | {"gap": result.certificate.gap}
        return {"gpus": gpus, "global_batch": global_batch, **best, **result.best.time}

    rows = scaling_rows(question, gpu_counts, kinds, budget, row_at)
    return pd.DataFrame(rows).fillna(0.0)  # parts that some layouts lack


def heatmap_frame(question: Question, layout: Layout, limits: Restrictions, budget: Budget) -> pd.DataFrame:
    """Data frame of the best layout for each pair of `tp` and `pp`, a row per pair. Columns are `layout`,
    `mfu`, `step_seconds`, `peak_bytes` and `gap`, NaN if there is none.

    `reason` says why there is none: `memory` (then `peak_bytes` is that of the closest layout), `rule`,
    `limit` for degrees that are not searched by default (`planner.space.limits`), or `time` if the budget was
    spent; `why` is a sentence for it, with several rules separated by slashes. `chosen` marks the pair of a
    plan. Restrictions on the two degrees are ignored, all others hold. Degrees are divisors of the number of
    GPUs: `tp` those that divide a node and the first above a node, `pp` up to the first above the number of
    blocks.
    """
    import pandas as pd

    limits, plan = limits.without(("tp", "pp")), (layout.tp, layout.pp)
    per_node, degrees = question.cluster.gpus_per_node, divisors(question.cluster.num_gpus)
    of_a_node = [degree for degree in degrees if degree > per_node or per_node % degree == 0]
    tps = _heatmap_degrees(of_a_node, per_node, layout.tp)
    pps = _heatmap_degrees(degrees, question.model.num_layers, layout.pp)
    pairs = list(product(tps, pps))  # if time runs out, those far from the plan are missing
    pairs.sort(key=lambda pair: abs(log(pair[0] / layout.tp)) + abs(log(pair[1] / layout.pp)))
    rows: list[Row] = []
    with budget.spaces.shared():
        legal_space(limits.apply_confidence(question), limits)
    for tp, pp in pairs:
        budget.tell(f"tp{tp} pp{pp} ({len(rows) + 1} of {len(pairs)})")
        untried = "" if tp == layout.tp else next(iter(left_out(question, limits, Layout(tp=tp))), "")
        row = {"tp": tp, "pp": pp, **_cell(question, tp, pp, limits, untried, budget)}
        rows.append({**row, "chosen": (tp, pp) == plan})
    return pd.DataFrame(rows).sort_values(["tp", "pp"], ignore_index=True)


def _heatmap_degrees(degrees: Sequence[int], limit: int, plan_degree: int) -> Sequence[int]:
    """Select the parallel degrees to show in a heat map: degrees up to `limit`, the next degree above it, and
    the plan's degree. Of too many small degrees only powers of two are shown."""
    first_beyond = [degree for degree in degrees if degree > limit][:1]
    small = [degree for degree in degrees if degree <= limit]
    if len(small) > MAX_DEGREES:
        small = [degree for degree in small if degree & (degree - 1) == 0 or degree == plan_degree]
    return sorted({*small, *first_beyond, plan_degree})


def _cell(question: Question, tp: int, pp: int, limits: Restrictions, untried: str, budget: Budget) -> Row:
    """Row of a heat map: the best layout with this `tp` and `pp`, or the reason why there is none. `untried`
    says why such layouts are not searched by default."""
    limited = replace(limits, only={**limits.only, "tp": frozenset({tp}), "pp": frozenset({pp})})
    names = ("mfu", "step_seconds", "peak_bytes")
    cell: Row = {"layout": "", **dict.fromkeys((*names, "gap"), float("nan"))}
    if untried and count_layouts(question, limited):
        return {**cell, "reason": "limit", "why": untried}
    try:
        result = budget.search(question, limited, effort="bounds")
    except DoesNotFitError as error:
        detail = REASON_SEPARATOR.join(f"{one.where}: {one.what}" for one in error.problems)
        return {**cell, "peak_bytes": error.closest.peak_bytes, "reason": "memory", "why": detail}
    except InfeasibleError as error:
        detail = REASON_SEPARATOR.join(one.what for one in error.problems) or error.headline
        return {**cell, "reason": "rule", "why": detail}
    if result is None:
        return {**cell, "reason": "time", "why": "time ran out"}
    return {**_row(result.best, *names), "gap": result.certificate.gap, "reason": "", "why": ""}


def far_links_frame(question: Question, restrictions: Restrictions, budget: Budget) -> pd.DataFrame:
    """Data frame of the best layout for each bandwidth of the cluster's farthest links, such as links between
    buildings. It has a row per bandwidth and per number of domains that the links join (buildings, or 0 for a
    list of levels).

    Columns: `domains`, `bandwidth` (bytes/s of a GPU), `layout`, `step_seconds`, `mfu`, `crossing` (axes that
    cross these links, the busiest first), `share` (share of the step in which the busiest axis uses them),
    `gap`. One building has one row, with its network's bandwidth. Every point gets an even share of the time
    left; those without a layout by then are left out.
    """
    import pandas as pd

    rows, points = list[Row](), list(_far_link_variants(question.cluster))
    for number, (domains, bandwidth, cluster) in enumerate(points):
        buildings = f"{counted(domains, 'building')}, " if domains else ""
        budget.tell(f"{buildings}{format_bandwidth(bandwidth)} ({number + 1} of {len(points)})")
        seconds = budget.seconds_left / (len(points) - number)
        linked = replace(question, cluster=cluster)
        if (result := budget.try_search(linked, restrictions, seconds=seconds, effort="bounds")) is not None:
            far, row = crossing(linked, result.best), _row(result.best, "step_seconds", "mfu")
            uses = () if far is None else far.uses  # the busiest axis first
            row |= {"crossing": " ".join(one.axis for one in uses)}
            row |= {"share": uses[0].share if uses else 0.0, "gap": result.certificate.gap}
            rows.append({"domains": domains, "bandwidth": bandwidth, **row})
    return pd.DataFrame(rows)


def _far_link_variants(cluster: ClusterSpec) -> Iterator[tuple[int, float, ClusterSpec]]:
    """Yield copies of the cluster with other numbers of buildings and other bandwidths of the farthest links,
    as (domains, bandwidth in bytes/s, cluster). They go from one building to several, and from narrow links
    to wide links."""
    if cluster.buildings is None:
        yield from _with_other_rates(0, cluster)
        return
    single = cluster.model_copy(update={"buildings": None})
    yield 1, used_levels(single)[-1].bandwidth, single
    numbers = {number for number in range(2, MAX_BUILDINGS + 1) if cluster.nodes % number == 0}
    for domains in sorted((numbers | {cluster.nodes // cluster.buildings.nodes}) - {1}):
        nodes, per_leaf = cluster.nodes // domains, cluster.nodes_per_leaf
        buildings = cluster.buildings.model_copy(update={"nodes": nodes})
        divided = cluster.model_copy(update={"buildings": buildings})
        if not per_leaf or nodes % per_leaf == 0:
            yield from _with_other_rates(domains, divided)


def _with_other_rates(domains: int, cluster: ClusterSpec) -> Iterator[tuple[int, float, ClusterSpec]]:
    """Yield copies of the cluster with other bandwidths of its farthest links, as (domains, bandwidth in
    bytes/s, cluster). The bandwidths are the present one times powers of two, up to that of the next nearer
    links. The farthest links are between buildings, or at the last link level that the nodes use."""
    levels, buildings = used_levels(cluster), cluster.buildings
    nearer, at = levels[-2].bandwidth, len(levels) - 1
    doubled = [levels[-1].bandwidth * 2.0**doublings for doublings in range(NARROWEST, WIDEST + 1)]
    for rate in [*(rate for rate in doubled if rate < nearer), *[nearer] * (nearer <= doubled[-1])]:
        if buildings is not None:
            link = buildings.link.model_copy(update={"bandwidth": rate})
            changed: dict[str, object] = {"buildings": buildings.model_copy(update={"link": link})}
        else:
            assert isinstance(cluster.links, LinkLevels)
            links = list(cluster.links.root)
            links[at] = links[at].model_copy(update={"bandwidth": rate})
            changed = {"links": LinkLevels.model_construct(tuple(links))}
        yield domains, rate, cluster.model_copy(update=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """Technique that saves step time, such as overlapped communication, fused kernels or, if the user allows
    a change of the mathematics, a larger batch."""

    name: str
    part: Literal["stack", "model", "training"]
    """Part of the question whose fields the technique sets. Those of the stack keep the mathematics."""
    on: dict[str, Any]
    """Names and values of those fields with the technique."""
    off: dict[str, Any] = field(default_factory=dict)
    """Names and values of those fields without the technique; empty: as in the question."""
    is_used: bool = False
    """Whether the plan already uses the technique."""


def window_frame(question: Question, estimate: Estimate) -> pd.DataFrame:
    """Data frame of a plan's step time and memory for several numbers of blocks that each rank offloads. It
    has a row for each kind of offload (residency) of the stack and each of some numbers from no blocks to
    all."""
    import pandas as pd

    layout, blocks = estimate.layout, question.model.num_layers // estimate.layout.pp
    has = [part for part in RESIDENCIES if part in question.stack.residencies]
    counts = sorted({round(blocks * step / _WINDOW_STEPS) for step in range(_WINDOW_STEPS + 1)})
    rows = []
    for part in has:
        window = getattr(layout.offload, part)
        besides = NOWHERE._replace(activations=layout.offload.activations)
        if part in UPDATED_BY_CPU:
            besides = besides._replace(drive=layout.offload.drive)
        single = layout.offload == besides._replace(**{part: window})
        current = min(window, blocks) if single and any(layout.offload[:3]) else None
        for count in sorted({*counts, *([] if current is None else [current])}):
            offload = besides._replace(**{part: count}, drive=besides.drive if count else 0)
            ring = layout.ring if part == "streamed" and count >= layout.ring else USUAL_RING
            changed = layout.model_copy(update={"offload": offload, "ring": ring})
            priced = price(question, changed).within(estimate.memory_limit)
            is_plan = current == count or (not count and not any(layout.offload[:3]))
            values = _row(priced, "step_seconds", "peak_bytes", "host_bytes", "fits")
            values |= {"layout": str(priced.layout), "chosen": is_plan}
            rows.append({"residency": part, "blocks": count, **values})
    return pd.DataFrame(rows)


def ladder_frame(question: Question, target: Layout, allow: Sequence[str]) -> pd.DataFrame:
    """Data frame of the step time saved by each technique, when techniques are added one by one to a bare
    trainer with the plan's layout. It has a row per technique, the one that saves most first.

    Columns: `name`, `kind` (base, trainer or mathematics), `has` (whether the plan has it as it is), `step_seconds`
    (for the tokens of the plan's own batch), `mfu`, `adds` (MFU), `fits`.

    Raises:
        InputError: words of `allow` that cannot be read, or mean nothing to the model.
    """
    import pandas as pd

    techniques = [*_trainer_techniques(question, target), *_math_techniques(question, allow)]
    layout, tokens = target.model_copy(update={"overlap": None}), question.training.tokens_per_step
    for technique in techniques:
        question = question.updated(technique.part, **technique.off)

    def tokens_of(priced: Estimate) -> float:
        """Number of tokens per step."""
        return priced.tokens_per_second * priced.step_seconds

    names, reached = [("nothing of it", "base", True)], [price(question, layout)]
    while techniques:
        questions = [question.updated(technique.part, **technique.on) for technique in techniques]
        tried = [price(one, layout) for one in questions]
        best = min(range(len(techniques)), key=lambda at: tried[at].step_seconds / tokens_of(tried[at]))
        technique, question = techniques.pop(best), questions[best]
        kind = "trainer" if technique.part == "stack" else "mathematics"
        names.append((technique.name, kind, technique.is_used))
        reached.append(tried[best])
    seconds = [one.step_seconds * tokens / tokens_of(one) for one in reached]
    mfu, fits = np.array([one.mfu for one in reached]), [one.fits for one in reached]
    frame = pd.DataFrame(names, columns=["name", "kind", "has"])
    return frame.assign(step_seconds=seconds, mfu=mfu, adds=np.diff(mfu, prepend=mfu[0]), fits=fits)


def _trainer_techniques(question: Question, layout: Layout) -> Iterator[Technique]:
    """Yield techniques of trainers that apply to a plan and keep the mathematics. Overlaps apply only to axes
    of several ranks."""
    stack, overlaps = question.stack, layout.overlap or ()

    def technique(name: str, is_used: bool, **values: tuple[Any, Any]) -> Technique:
        """Create a `Technique` that sets fields of the software stack. Each field is given as a pair: its
        values without and with the technique."""
        off, on = ({fact: pair[at] for fact, pair in values.items()} for at in (0, 1))
        return Technique(name=name, part="stack", on=on, off=off, is_used=is_used)

    no_yes, share = (False, True), stack.overlap_tensor_parallel
    if layout.tp > 1:
        is_used = share > 0 or "tp" in overlaps
        yield technique("tensor-parallel overlap", is_used, overlap_tensor_parallel=(0.0, share or _OVERLAP))
    if layout.pp > 1:
        is_used = stack.overlap_pipeline_sends or "pp" in overlaps
        yield technique("pipeline overlap", is_used, overlap_pipeline_sends=no_yes)
    if layout.dp * layout.cp > 1:
        is_used = (stack.overlap_gradient_reduce and stack.overlap_parameter_gather) or "dp" in overlaps
        fields = dict.fromkeys(("overlap_gradient_reduce", "overlap_parameter_gather"), no_yes)
        yield technique("data-parallel overlap", is_used, **fields)
    yes_no, is_used = (True, False), stack.attention not in STORES_SCORES
    yield technique("batches not broadcast", not stack.broadcasts_every_batch, broadcasts_every_batch=yes_no)
    kernels = ("fused-softmax", stack.attention if is_used else "flash2")
    yield technique("flash attention", is_used, attention=kernels)
    fused = dict.fromkeys(("fused_elementwise", "fused_norms"), no_yes)
    yield technique("fused norms and activations", stack.fused_elementwise, **fused)


def _math_techniques(question: Question, allow: Sequence[str]) -> list[Technique]:
    """Techniques named by `allow` that change the mathematics, unless the model already has them."""
    model, training = question.model, question.training
    techniques, problems = list[Technique](), list[Problem]()

    def add(name: str, part: Literal["model", "training"], problem: str, **on: Any) -> None:
        """Append a technique that sets the fields `on` of the question's `part`, and record `problem` if it
        is not empty."""
        techniques.append(Technique(name=name, part=part, on=on))
        problems.extend([Problem("--allow", problem)] * bool(problem))

    for word in dict.fromkeys(allow):
        match = _NUMBERED.fullmatch(word)
        size = int(match[2]) if match else 0
        if word == "parallel-block":
            problem = f"`{model.name}` has parallel blocks already" if model.parallel_block else ""
            add("parallel block", "model", problem, parallel_block=True)
        elif match is None:
            problems.append(Problem("--allow", f"`{word}` is none of {', '.join(CHANGE_WORDS)}"))
        elif match[1] == "batch":
            problem = f"`{word}` is no larger than the batch, {training.global_batch}"
            is_larger = size > training.global_batch
            add(f"batch of {size:,}", "training", "" if is_larger else problem, global_batch=size)
        else:
            problem = f"`{model.name}` has windows of its own" if model.attention_window is not None else ""
            if size >= training.sequence_length:
                problem = f"`{word}` hides nothing of sequences of {training.sequence_length} tokens"
            add(f"window of {size:,}", "model", problem, attention_window=size)
    if problems:
        raise InputError("what is allowed cannot be drawn", problems=problems)
    return techniques


MAX_PRICED = 150
"""Maximum number of layouts priced in full for a frontier, of those whose quick price beats every known
plan."""
_MEMORY = Objective(name="memory")
_PRICES = ("peak_bytes", "step_seconds", "tokens_per_second", "mfu")


class Point(NamedTuple):
    """One plan on a Pareto frontier of two objectives."""

    question: Question
    estimate: Estimate
    gap: float
    """Largest share of the plan's step time that another plan within the same memory may save; 0 proves that
    no plan is faster."""


class Frontier(NamedTuple):
    """Pareto frontier of two objectives, as plans from the best in the first objective to the best in the
    second."""

    objectives: tuple[Objective, Objective]
    points: tuple[Point, ...]
    complete: bool
    """Whether every plan of the frontier was found: none was skipped, and no search ran out of time."""


def exact_frontier(
    question: Question,
    objectives: tuple[Objective, Objective],
    *,
    sizes: Sequence[int] = (),
    points: int | None = POINTS,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Frontier:
    """Find the Pareto frontier of two objectives over all layouts, placements and numbers of GPUs in `sizes`,
    by default the question's own number.

    If memory is one of the objectives, at most `points` points of each size are searched; None: all. On
    Ctrl-C and at the budget's limit the points found so far are returned.

    Raises:
        InputError: an objective lacks what it needs, or both are the same.
        InfeasibleError: nothing fits on any of the sizes.
        RunError: time ran out before anything was placed.
    """
    names = {objective.name for objective in objectives}
    if len(names) == 1:
        raise InputError(f"a frontier needs two objectives, not `{objectives[0].name}` twice")
    for objective in objectives:
        objective.require_complete(question, single=False)
    limits, spending = restrictions or Restrictions(), budget or Budget()
    candidates, complete, failure = list[Point](), True, None
    for sized in [resized(question, gpus) for gpus in sizes] or [question]:
        for group in split_by_padding(sized, limits) if "mfu" in names else [limits]:
            descent = MemoryDescent(sized, group, spending)
            try:
                if names == {"memory", "gpus"}:
                    smallest = descent.least_memory(_MEMORY)
                    candidates += [] if smallest is None else [_point(sized, smallest[0])]
                elif (fastest := spending.search(sized, group, effort="bounds")) is None:
                    continue
                elif "memory" in names:
                    complete &= _walk_down(descent, fastest, points, candidates)
                else:
                    candidates.append(_point(sized, fastest))
            except InfeasibleError as error:
                failure = failure or error
    if not candidates:
        raise failure or spending.nothing_found()

    def losses(point: Point) -> list[float]:
        """Loss of a point under each objective, lower is better."""
        return [objective.loss(point.question, point.estimate) for objective in objectives]

    unbeaten, least_loss = list[Point](), math.inf
    for point in sorted(candidates, key=losses):  # unbeaten points: none is as good in both objectives
        second = losses(point)[1]
        if second < least_loss - TOLERANCE * abs(second):
            unbeaten.append(point)
            least_loss = second
    proven = all(point.gap <= 0 for point in unbeaten) and not spending.ended
    return Frontier(objectives=objectives, points=tuple(unbeaten), complete=complete and proven)


def _point(question: Question, result: SearchResult) -> Point:
    """Convert the best plan of a search to a frontier point."""
    return Point(question=question, estimate=result.best, gap=result.certificate.gap)


def _walk_down(descent: MemoryDescent, fastest: SearchResult, points: int | None, plans: list[Point]) -> bool:
    """Append to `plans` the plans on the frontier of step time and memory on one number of GPUs, from the
    fastest to the plan with least memory. Returns whether no plan in between was skipped.

    Each point is followed by its successor, the fastest plan with less memory; an equally fast successor
    replaces the point. Once a plan was skipped, successors are only searched for at given levels: memory
    limits that fall in equal ratios; there are none if all points are wanted.
    """
    point, last, levels, complete = _point(descent.question, fastest), None, list[float](), True
    smallest = None if points is None else descent.least_memory(_MEMORY, fastest=fastest)
    if points is not None and smallest is not None:
        last, steps, high = _point(descent.question, smallest[0]), max(points - 1, 1), fastest.best.peak_bytes
        ratio = last.estimate.peak_bytes / high
        levels = [high * ratio ** (step / steps) * (1 + TOLERANCE) for step in range(1, steps)]
    while True:
        peak = point.estimate.peak_bytes
        descent.budget.tell(f"frontier below {format_bytes(peak)}")
        walks = complete or last is None
        successor = _fastest_within(descent, limit_below(peak), None if walks else point)
        slowest = point.estimate.step_seconds * (1 + TOLERANCE)  # that counts as equally fast
        if successor is not None and successor.estimate.step_seconds <= slowest:
            point = successor
            continue
        plans.append(point)
        if (walks and successor is None) or descent.budget.ended:
            break
        successor_bytes = math.inf if successor is None else successor.estimate.peak_bytes
        level = next((level for level in levels if level < peak), math.inf)
        if last is not None and math.isinf(level):
            complete &= last.estimate.peak_bytes >= limit_below(successor_bytes)
            break
        jump = successor if successor_bytes <= level else _fastest_within(descent, level)
        complete &= jump is successor
        if jump is None:
            break
        point = jump
    plans += [last] if last is not None else []
    return complete and not descent.budget.ended


def _fastest_within(descent: MemoryDescent, limit: float, as_fast_as: Point | None = None) -> Point | None:
    """Fastest plan within a memory limit (bytes); if a point is given, any plan within the limit that is as
    fast as the point. None if no such plan exists, or time ran out."""
    question, limited = descent.question, replace(descent.limits, max_memory=limit)
    if as_fast_as is None:
        result = descent.budget.try_search(question, limited, effort="bounds")
        return None if result is None else _point(question, result)
    slowest = as_fast_as.estimate.compared_seconds * (1 + TOLERANCE)
    estimate = descent.budget.faster_than(slowest, question, limited)
    return None if estimate is None else Point(question=question, estimate=estimate, gap=0.0)


def pareto_frame(frontier: Frontier) -> pd.DataFrame:
    """Data frame of an exact frontier, a row per plan, from the best plan in its first objective to the best
    in its second.

    Columns: `gpus`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `peak_bytes`, `gap`, `proven`, and the two
    objectives under their names.
    """
    import pandas as pd

    rows = [
        {
            "gpus": point.question.cluster.num_gpus,
            **_row(point.estimate, *_PRICES),
            "gap": point.gap,
            "proven": point.gap <= 0,
            **{one.name: one.value(point.question, point.estimate) for one in frontier.objectives},
        }
        for point in frontier.points
    ]
    return pd.DataFrame(rows)


def frontier_frame(
    question: Question,
    plan: Estimate,
    limits: Restrictions,
    budget: Budget,
    *,
    exact: bool = False,
    points: int | None = POINTS,
    max_named: int | None = None,
) -> pd.DataFrame:
    """Data frame for a plot of step time over memory: layouts at quick prices (blocks spread evenly) under
    every recompute policy, and the plans of the Pareto frontier.

    A row per layout and policy: `layout`, `peak_bytes` of the fullest device, `step_seconds`,
    `tokens_per_second`, `mfu`, `fits`, `pareto` (no known plan that fits is both smaller and faster),
    `proven` (no layout at all is), `chosen`. Blocks are spread evenly, except in the chosen plan. With
    `exact` the frontier starts from the exact one over all placements, with at most `points` points (None:
    all). Rows whose cheap price beats the frontier are priced in full, and join it or fall below; none is
    left above. In a cloud of more than `max_named` rows (None: any number) only rows priced in full have a
    name, as writing the others takes longer than pricing them.

    Raises:
        InfeasibleError: `exact`, and nothing fits.
    """
    import pandas as pd

    columns, limit, walked = cloud(question, limits, plan.layout), plan.memory_limit, tuple[Point, ...]()
    if exact:
        pair = (_MEMORY, Objective(name="time"))
        walked = exact_frontier(question, pair, points=points, restrictions=limits, budget=budget).points
    line = [one.estimate for one in walked if one.estimate.layout != plan.layout] + [plan]
    proven = {one.estimate.layout for one in walked if one.gap <= 0}
    prices = balanced_prices(question, columns)
    open_rows, priced = _price_near_frontier(question, columns, prices, line, budget)
    line = priced + line  # the chosen plan stays last
    cheap = pd.DataFrame(_cheap_rows(question, columns, prices, open_rows, max_named))
    frame = pd.concat([cheap, pd.DataFrame([_row(one, *_PRICES) for one in line])], ignore_index=True)
    peaks, seconds = (frame[name].to_numpy()[len(cheap) :] for name in ("peak_bytes", "step_seconds"))
    pareto = len(cheap) + pareto_rows(peaks, seconds, limit)
    return frame.assign(
        fits=frame["peak_bytes"] <= limit,
        pareto=np.isin(frame.index, pareto),
        proven=[False] * len(cheap) + [one.layout in proven for one in line],
        chosen=frame.index == len(frame) - 1,
    )


def _price_near_frontier(
    question: Question, columns: LayoutColumns, prices: BalancedPrices, line: list[Estimate], budget: Budget
) -> tuple[Bools, list[Estimate]]:
    """Price in full the layouts that, by their quick prices, would improve the Pareto frontier of the known
    plans in `line`. The last plan in `line` is the chosen one. Returns the mask of quick prices that do not
    improve it, and the plans priced in full.

    A cheap price may be too low; the best-looking layouts are priced in full until none looks better any
    more. Beyond `MAX_PRICED` layouts the remaining ones are left out, as their real prices are unknown.
    """
    seconds, peaks = prices.step_seconds.ravel(), prices.peak_bytes.ravel()
    open_rows, priced, limit = np.isfinite(seconds), list[Estimate](), line[-1].memory_limit
    while True:
        # smaller or faster than every known plan that fits
        points = sorted((one.peak_bytes, one.step_seconds) for one in (*line, *priced) if one.fits)
        fastest = np.minimum.accumulate(np.array([np.inf, *(step for _, step in points)]))
        better = np.flatnonzero(open_rows & (peaks <= limit))
        smaller = np.searchsorted(np.array([size for size, _ in points]), peaks[better], side="right")
        better = better[seconds[better] < fastest[smaller]]
        best = better[pareto_rows(peaks[better], seconds[better], limit)]
        if not len(best) or len(priced) + len(best) > MAX_PRICED:
            open_rows[better] = False
            return open_rows, priced
        budget.tell(f"pricing {len(best)} layouts near the frontier in full")
        priced += [price(question, evenly_spread(question, columns, flat)) for flat in best.tolist()]
        open_rows[best] = False


def evenly_spread(question: Question, columns: LayoutColumns, flat: int) -> Layout:
    """Layout with evenly spread blocks and one recompute policy, at the index `flat` of the flattened table
    of layouts × policies."""
    row, policy = divmod(flat, len(RECOMPUTE_POLICIES))
    layout = columns.layout(row)
    layers = even_layers(question.model.num_layers, layout.num_stages)
    return layout.model_copy(update={"layers": layers, "recompute": (RECOMPUTE_POLICIES[policy],)})


def _cheap_rows(
    question: Question, x: LayoutColumns, prices: BalancedPrices, shown_mask: Bools, max_named: int | None
) -> dict[str, object]:
    """Columns of the data frame, by name, for the quick prices that `shown_mask` selects. The mask covers the
    flattened price table (layouts, recompute policies)."""
    row, policy = np.nonzero(shown_mask.reshape(prices.step_seconds.shape))
    seconds = prices.step_seconds[row, policy]
    named_rows = np.unique(row) if max_named is None or len(row) <= max_named else row[:0]
    names = {number: str(x.layout(number)) for number in named_rows.tolist()}
    words = ["" if name == "none" else f" recompute={name}" for name in RECOMPUTE_POLICIES]
    pairs = zip(row.tolist(), policy.tolist(), strict=True)
    degrees, place = np.unique(x.tp[row], return_inverse=True)
    flops = np.array([model_flops(question.model, question.training, tp) for tp in degrees.tolist()])[place]
    peak = question.cluster.gpu.peak[question.training.precision]
    return {
        "layout": [names[r] + words[p] if r in names else "" for r, p in pairs],
        "peak_bytes": prices.peak_bytes[row, policy],
        "step_seconds": seconds,
        "tokens_per_second": question.training.tokens_per_step / seconds,
        "mfu": flops / (seconds * question.cluster.num_gpus * peak),
    }
