"""Data frames of many searches or prices: the best layout over numbers of GPUs, pairs of degrees and bandwidths of the
farthest links, and what each technique adds to a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import log
from typing import TYPE_CHECKING, Any, Literal

from cost_models.axes.layout import Layout
from cost_models.communication.levels import met_levels
from cost_models.errors import DoesNotFitError, InfeasibleError, InputError, Problem
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.pipeline.link_use import crossing
from cost_models.question import MixedQuestion, Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.links import LinkLevels
from cost_models.specs.stack import STORES_SCORES
from cost_models.units import counted, format_bandwidth
from planner.search.pools import count_layouts
from planner.search.search import KINDS, Budget, Row, scaling_rows
from planner.space.axes import divisors
from planner.space.limits import left_out
from planner.space.restrictions import Restrictions
from planner.space.sizes import require_possible, resized
from planner.space.space import legal_space

if TYPE_CHECKING:
    import pandas as pd

REASON_SEPARATOR = " / "
"""Separator of the reasons of one pair of degrees."""
MAX_DEGREES = 10
"""Most degrees of one axis. Of more, only powers of two and the plan's own are searched."""
MAX_BUILDINGS = 4
NARROWEST, WIDEST = 2**-6, 2**3
"""Least and greatest bandwidth of the farthest links, as a share of the cluster's own."""
TECHNIQUES = ("parallel-block", "window=N", "batch=N")
"""Changes of what is trained that `--allow` opens."""
_NUMBERED = re.compile(r"(window|batch)=([1-9][0-9]{0,11})", re.ASCII)
_OVERLAP = 0.9
"""Share of tensor-parallel communication that chunked products hide, on a stack that has none: MegaScale's own."""


def _row(estimate: Estimate, *names: str) -> Row:
    """A layout and some quantities of its price."""
    return {"layout": estimate.layout.brief, **{name: getattr(estimate, name) for name in names}}


def scaling_frame(
    question: Question,
    gpu_counts: Sequence[int],
    *,
    kinds: Sequence[str] = KINDS,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """The best layout at each number of GPUs, for strong and for weak scaling.

    Columns: `kind`, `gpus`, `global_batch`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `gap`, and
    seconds of the step by part. Numbers of GPUs on which no layout is legal or fits are left out, and those the
    budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    require_possible(question.cluster, gpu_counts)
    spending = budget or Budget()

    def row_at(gpus: int, global_batch: int) -> Row | None:
        sized = resized(question, gpus, global_batch)
        result = spending.search(sized, Restrictions(), effort="bounds")
        if result is None:
            return None
        point = {"gpus": gpus, "global_batch": global_batch}
        best = _row(result.best, "step_seconds", "tokens_per_second", "mfu")
        return {**point, **best, "gap": result.certificate.gap, **result.best.time.as_dict()}

    rows = scaling_rows(question, gpu_counts, kinds, spending, row_at)
    return pd.DataFrame(rows).fillna(0.0)  # parts that some layouts lack


def heatmap_frame(
    question: Question,
    chosen: Estimate | None = None,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A row for each pair of `tp` and `pp`: `layout`, `mfu`, `step_seconds`, `peak_bytes` and `gap` of the best layout
    with them, NaN where there is none.

    `reason` says why there is none: `memory` (then `peak_bytes` is that of the layout that comes closest), `rule`,
    `limit` where plans are not searched for unless asked (`planner.space.limits`), or `time` where the budget was
    spent; `why` says it in words, every rule between slashes. `chosen` marks the pair of a plan. What the restrictions
    say of both degrees is left aside, all else holds. Degrees are those that divide the GPUs: `tp` those that divide a
    node and the first over nodes, `pp` up to the first beyond the blocks.
    """
    import pandas as pd

    limits, spending = (restrictions or Restrictions()).without(("tp", "pp")), budget or Budget()
    plan = None if chosen is None else (chosen.layout.tp, chosen.layout.pp)
    per_node, degrees = question.cluster.gpus_per_node, divisors(question.cluster.num_gpus)
    of_a_node = [degree for degree in degrees if degree > per_node or per_node % degree == 0]
    tps = _degrees(of_a_node, per_node, plan and plan[0])
    pps = _degrees(degrees, question.model.num_layers, plan and plan[1])
    pairs = list(product(tps, pps))
    if plan is not None:  # where time runs out, what is far from the plan is left
        pairs.sort(key=lambda pair: abs(log(pair[0] / plan[0])) + abs(log(pair[1] / plan[1])))
    rows: list[Row] = []
    with spending.spaces.shared():
        _ = isinstance(question, MixedQuestion) or legal_space(limits.apply_confidence(question), limits)
    for tp, pp in pairs:
        spending.tell(f"tp{tp} pp{pp} ({len(rows) + 1} of {len(pairs)})")
        untried = () if plan and tp == plan[0] else left_out(question, limits, Layout(tp=tp))
        row = {"tp": tp, "pp": pp, **_cell(question, tp, pp, limits, untried, spending)}
        rows.append({**row, "chosen": (tp, pp) == plan})
    return pd.DataFrame(rows).sort_values(["tp", "pp"], ignore_index=True)


def _degrees(degrees: Sequence[int], most: int, plan: int | None) -> Sequence[int]:
    """Those up to a number, the plan's own, and the first beyond."""
    beyond = [degree for degree in degrees if degree > most][:1]
    within = [degree for degree in degrees if degree <= most]
    if len(within) > MAX_DEGREES:
        within = [degree for degree in within if degree & (degree - 1) == 0 or degree == plan]
    return sorted({*within, *beyond, *([] if plan is None else [plan])})


def _cell(
    question: Question, tp: int, pp: int, limits: Restrictions, untried: Sequence[str], budget: Budget
) -> Row:
    """The best layout with both degrees, or why there is none; `untried` is why a plan would not be searched there."""
    within = replace(limits, only={**limits.only, "tp": frozenset({tp}), "pp": frozenset({pp})})
    names = ("mfu", "step_seconds", "peak_bytes")
    cell: Row = {"layout": "", **dict.fromkeys((*names, "gap"), float("nan"))}
    if untried and count_layouts(question, within):
        return {**cell, "reason": "limit", "why": untried[0]}
    try:
        result = budget.search(question, within, effort="bounds")
    except DoesNotFitError as error:
        why = REASON_SEPARATOR.join(f"{one.where}: {one.what}" for one in error.problems)
        return {**cell, "peak_bytes": error.least_bytes, "reason": "memory", "why": why}
    except InfeasibleError as error:
        why = REASON_SEPARATOR.join(one.what for one in error.problems) or error.headline
        return {**cell, "reason": "rule", "why": why}
    if result is None:
        return {**cell, "reason": "time", "why": "time ran out"}
    return {**_row(result.best, *names), "gap": result.certificate.gap, "reason": "", "why": ""}


def far_links_frame(
    question: Question, restrictions: Restrictions | None = None, budget: Budget | None = None
) -> pd.DataFrame:
    """The best layout over the bandwidth of the farthest links: a row per bandwidth and number of domains that they
    join (buildings, or 0 where a list of levels says what is joined).

    Columns: `domains`, `bandwidth` (bytes/s of a GPU), `layout`, `step_seconds`, `mfu`, `crossing` (axes, the fullest
    first), `share` of the step that its fullest axis keeps the links busy, `gap`. One building has one row, with its
    network's bandwidth. Points that the budget's time did not reach are left out.
    """
    import pandas as pd

    spending, limits, rows = budget or Budget(), restrictions or Restrictions(), list[Row]()
    points = list(_far_links(question.cluster))
    for number, (domains, bandwidth, cluster) in enumerate(points, start=1):
        buildings = f"{counted(domains, 'building')}, " if domains else ""
        spending.tell(f"{buildings}{format_bandwidth(bandwidth)} ({number} of {len(points)})")
        linked = replace(question, cluster=cluster)
        try:
            result = spending.search(linked, limits, effort="bounds")
        except InfeasibleError:
            continue
        if result is None:
            continue
        far = crossing(linked, result.best)
        uses = () if far is None else far.uses
        rows.append(
            {
                "domains": domains,
                "bandwidth": bandwidth,
                **_row(result.best, "step_seconds", "mfu"),
                "crossing": " ".join(one.axis for one in uses),
                "share": max((one.share for one in uses), default=0.0),
                "gap": result.certificate.gap,
            }
        )
    return pd.DataFrame(rows)


def _far_links(cluster: ClusterSpec) -> Iterator[tuple[int, float, ClusterSpec]]:
    """(domains, bandwidth, cluster): from one building to several, from narrow links to wide ones."""
    if cluster.buildings is None:
        yield from ((0, rate, _with_farthest(cluster, rate)) for rate in _bandwidths(cluster))
        return
    single = cluster.model_copy(update={"buildings": None})
    yield 1, met_levels(single)[-1].bandwidth, single
    numbers = {number for number in range(2, MAX_BUILDINGS + 1) if cluster.nodes % number == 0}
    for domains in sorted((numbers | {cluster.nodes // cluster.buildings.nodes}) - {1}):
        nodes, per_leaf = cluster.nodes // domains, cluster.nodes_per_leaf
        buildings = cluster.buildings.model_copy(update={"nodes": nodes})
        placed = cluster.model_copy(update={"buildings": buildings})
        if not per_leaf or nodes % per_leaf == 0:
            yield from ((domains, rate, _with_farthest(placed, rate)) for rate in _bandwidths(placed))


def _bandwidths(cluster: ClusterSpec) -> list[float]:
    """Bandwidths of the farthest links, bytes/s: doublings through the cluster's own, up to the next level's."""
    inside, farthest = met_levels(cluster)[-2:]
    most, rates = farthest.bandwidth * WIDEST, list[float]()
    rate = farthest.bandwidth * NARROWEST
    while rate < min(inside.bandwidth, most * 1.001):
        rates.append(rate)
        rate *= 2
    return [*rates, inside.bandwidth] if inside.bandwidth <= most else rates


def _with_farthest(cluster: ClusterSpec, bandwidth: float) -> ClusterSpec:
    """The cluster with another bandwidth between its buildings, or at the last of its levels that its nodes meet."""
    update = {"bandwidth": bandwidth}
    if cluster.buildings is not None:
        link = cluster.buildings.link.model_copy(update=update)
        buildings = cluster.buildings.model_copy(update={"link": link})
        return cluster.model_copy(update={"buildings": buildings})
    assert isinstance(cluster.links, LinkLevels)
    levels, at = list(cluster.links.root), len(met_levels(cluster)) - 1
    levels[at] = levels[at].model_copy(update=update)
    return cluster.model_copy(update={"links": LinkLevels.model_construct(tuple(levels))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One thing that trainers do (communication behind compute, fused kernels) or, where it is allowed, one that
    changes what is trained (a parallel block, a window, a larger batch)."""

    name: str
    kind: Literal["trainer", "mathematics"]
    part: Literal["stack", "model", "training"]
    """The part of the question that says whether it is used."""
    on: dict[str, Any]
    """Fields of that part with it."""
    off: dict[str, Any] = field(default_factory=dict)
    """Fields of that part without it; empty: the question has it not."""
    is_used: bool = False
    """Whether the plan has it as it is."""


def ladder_frame(question: Question, chosen: Estimate, allow: Sequence[str] = ()) -> pd.DataFrame:
    """What each technique adds to a plan, whose layout stays as it is: a row per rung from the bare trainer up, the one
    that saves most first.

    Columns: `name`, `kind` (base, trainer or mathematics), `has` (whether the plan has it as it is), `step_seconds`
    (for the tokens of the plan's own batch), `mfu`, `adds` (MFU), `fits`.

    Raises:
        InputError: words of `allow` that cannot be read, or mean nothing to the model.
    """
    import pandas as pd

    left = [*_trainer_techniques(question, chosen.layout), *_mathematics(question, allow)]
    layout = chosen.layout.model_copy(update={"overlap": None})
    tokens = question.training.tokens_per_step
    for technique in left:
        question = question.updated(technique.part, **technique.off)
    rows = list[Row]()

    def tokens_of(priced: Estimate) -> float:
        return priced.tokens_per_second * priced.step_seconds

    def add_row(name: str, kind: str, is_used: bool, priced: Estimate, before: float) -> None:
        seconds = priced.step_seconds * tokens / tokens_of(priced)
        row = {"name": name, "kind": kind, "has": is_used, "step_seconds": seconds, "mfu": priced.mfu}
        rows.append({**row, "adds": priced.mfu - before, "fits": priced.fits})

    reached = price(question, layout)
    add_row("nothing of it", "base", True, reached, reached.mfu)
    while left:
        questions = [question.updated(technique.part, **technique.on) for technique in left]
        tried = [price(one, layout) for one in questions]
        best = min(range(len(left)), key=lambda at: tried[at].step_seconds / tokens_of(tried[at]))
        technique = left.pop(best)
        add_row(technique.name, technique.kind, technique.is_used, tried[best], reached.mfu)
        question, reached = questions[best], tried[best]
    return pd.DataFrame(rows)


def _trainer_techniques(question: Question, layout: Layout) -> Iterator[Technique]:
    """Techniques of trainers that leave the mathematics as it is; overlaps only along axes of several ranks."""
    stack, overlaps = question.stack, layout.overlap or ()

    def technique(name: str, is_used: bool, **values: tuple[Any, Any]) -> Technique:
        """With (off, on) of each field."""
        off, on = ({fact: pair[at] for fact, pair in values.items()} for at in (0, 1))
        return Technique(name=name, kind="trainer", part="stack", on=on, off=off, is_used=is_used)

    no_yes, share = (False, True), stack.overlap_tensor_parallel
    if layout.tp > 1:
        shares = (0.0, share or _OVERLAP)
        is_used = share > 0 or "tp" in overlaps
        yield technique("tensor-parallel overlap", is_used, overlap_tensor_parallel=shares)
    if layout.pp > 1:
        is_used = stack.overlap_pipeline_sends or "pp" in overlaps
        yield technique("pipeline overlap", is_used, overlap_pipeline_sends=no_yes)
    if layout.dp * layout.cp > 1:
        is_used = (stack.overlap_gradient_reduce and stack.overlap_parameter_gather) or "dp" in overlaps
        fields = ("overlap_gradient_reduce", "overlap_parameter_gather")
        yield technique("data-parallel overlap", is_used, **dict.fromkeys(fields, no_yes))
    is_used = not stack.broadcasts_every_batch
    yield technique("batches not broadcast", is_used, broadcasts_every_batch=(True, False))
    is_used = stack.attention not in STORES_SCORES
    kernels = ("fused-softmax", stack.attention if is_used else "flash2")
    yield technique("flash attention", is_used, attention=kernels)
    fused = dict.fromkeys(("fused_elementwise", "fused_norms"), no_yes)
    yield technique("fused norms and activations", stack.fused_elementwise, **fused)


def _mathematics(question: Question, allow: Sequence[str]) -> list[Technique]:
    """Techniques that change the training: what `allow` opens, and nothing that the model has already."""
    model, training, techniques, problems = question.model, question.training, list[Technique](), list[str]()

    def add(name: str, part: Literal["model", "training"], problem: str, **on: Any) -> None:
        if problem:
            problems.append(problem)
        else:
            techniques.append(Technique(name=name, kind="mathematics", part=part, on=on))

    for word in dict.fromkeys(allow):
        match = _NUMBERED.fullmatch(word)
        size = int(match[2]) if match else 0
        if word == "parallel-block":
            problem = f"`{model.name}` has parallel blocks already" if model.parallel_block else ""
            add("parallel block", "model", problem, parallel_block=True)
        elif match is None:
            problems.append(f"`{word}` is none of {', '.join(TECHNIQUES)}")
        elif match[1] == "batch":
            smaller = f"`{word}` is no larger than the batch, {training.global_batch}"
            problem = smaller if size <= training.global_batch else ""
            add(f"batch of {size:,}", "training", problem, global_batch=size)
        else:
            problem = f"`{model.name}` has windows of its own" if model.attention_window is not None else ""
            if size >= training.sequence_length:
                problem = f"`{word}` hides nothing of sequences of {training.sequence_length} tokens"
            add(f"window of {size:,}", "model", problem, attention_window=size)
    if problems:
        where = [Problem("--allow", problem) for problem in problems]
        raise InputError("what is allowed cannot be drawn", problems=where)
    return techniques
