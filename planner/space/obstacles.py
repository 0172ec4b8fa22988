"""Reasons why a question has no answer (rules that the closest layouts break, or the memory that the closest
layout needs), and notes on parts of a question that have no effect.

Notes cover lengths that divide badly or exceed the model's positions, and windows and memory limits that
limit nothing.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import COLUMNS, USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import ZERO_STAGES, Layout
from cost_models.axes.rule import Rule, Words
from cost_models.axes.stages import even_layers, policies_by_schedule
from cost_models.axes.words import MAX_STAGES
from cost_models.defaults import OWN_STACKS
from cost_models.errors import DoesNotFitError, InfeasibleError, Problem, either
from cost_models.memory.device import memory_limit
from cost_models.pipeline.pricing import estimate, scenarios_of
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.schedules.registry import schedule_named
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.units import GIB, counted, format_bytes, format_count, grouped
from planner.formats.trainers import trainer_named
from planner.placement.leaf import Leaf
from planner.placement.rank_costs import RankCosts
from planner.rules.legality import RULES, SCHEDULE_RULE
from planner.rules.pools import fills_pools, pool_objections
from planner.rules.stack import FP8_SIDE, question_objections
from planner.space.axes import CLOSED, divisors
from planner.space.limits import beyond_limits, tensor_degrees
from planner.space.restrictions import Restrictions, with_context_ways
from planner.space.sizes import resized

_MESH, _SHAPE = ("tp", "cp", "pp", "dp"), ("vpp", "schedule")
MAX_EXAMPLES = 3
"""Maximum number of example layouts, if their obstacles differ."""


def obstacles(question: Question, limits: Restrictions) -> list[Words]:
    """Sentences on the rules that exclude every layout within the restrictions; empty if some layout is legal
    and covered by the search.

    The rules that all layouts break; if there is none, the rules broken by the layouts that break fewest.
    """
    rows = _rows_within(question, limits)
    if not len(rows):
        chunks = "1f1b and gpipe have one chunk a rank, interleaved several, zbv and dualpipev two"
        texts = (*limits.fix_words, *limits.forbid_words)
        shapes = [f"`{word}`" for word in texts if word.startswith(("vpp", "schedule"))]
        return [Words(f"{' and '.join(shapes)} exclude one another: {chunks}")] if len(shapes) > 1 else []
    rules = _rules(question, limits)
    broken_KN = np.zeros((len(rules), len(rows)), dtype=np.bool_)
    for index, rule in enumerate(rules[:-1]):
        broken_KN[index] = rule.broken(question, rows)
    unbroken = np.flatnonzero(~broken_KN.any(axis=0))  # where the last, on schedules, is checked
    broken_KN[-1, unbroken] = rules[-1].broken(question, rows.rows(unbroken))
    count_N = broken_KN.sum(axis=0)
    if not count_N.min():
        return []
    used_N = rows.tp * rows.cp * rows.pp * rows.dp / question.cluster.num_gpus
    closest_first = np.lexsort([rows.dp, np.abs(np.log(used_N)), count_N]).tolist()
    if always := np.flatnonzero(broken_KN.all(axis=1)).tolist():
        closest = rows.layout(closest_first[0])
        degrees = _degrees(question, limits) if 0 in always else None
        words = [rules[rule].sentence(question, closest) for rule in always]
        return [degrees, *words[1:]] if degrees else words
    examples: dict[tuple[int, ...], Layout] = {}
    for row in closest_first[: int((count_N == count_N.min()).sum())]:
        examples.setdefault(tuple(np.flatnonzero(broken_KN[:, row]).tolist()), rows.layout(row))
    cases = list(examples.items())[:MAX_EXAMPLES]
    return [rules[rule].sentence(question, layout) for broken, layout in cases for rule in broken]


def _degrees(question: Question, limits: Restrictions) -> Words | None:
    """Sentence on the parallel degrees fixed by the user if their product does not divide the number of GPUs;
    else None."""
    fixed = {axis: min(limits.only[axis]) for axis in _MESH if len(limits.only.get(axis, ())) == 1}
    gpus, divisor = question.cluster.num_gpus, math.prod(fixed.values())
    if gpus % divisor == 0:
        return None
    written = " ".join(f"{axis}{degree}" for axis, degree in fixed.items())
    message = f"`{written}` {'does' if len(fixed) == 1 else 'do'} not divide {counted(gpus, 'GPU')}"
    axis, degree = fixed.popitem()
    other_factor = divisor // degree
    limit = math.gcd(gpus, question.cluster.gpus_per_node) if axis == "tp" else gpus
    degrees = divisors(limit // other_factor) if limit % other_factor == 0 else []
    place = bisect(degrees, degree)
    fitting = [f"{axis}{value}" for value in degrees[max(place - 1, 0) : place + 1]]
    return Words(message, f"{either(fitting)} would" if fitting else "")


def _rules(question: Question, limits: Restrictions) -> tuple[Rule, ...]:
    """Rules to report when no layout is legal: on layouts, trainer, pools, schedules and the search's limits."""
    policies = limits.recompute(question)
    recomputes: Bools = np.asarray(policies_by_schedule(policies).any(axis=1))
    return (
        *RULES,
        *(trainer_named(limits.trainer).rules if limits.trainer else ()),
        Rule("ranks fill the pools", lambda q, x: ~fills_pools(q, x), lambda q, x: pool_objections(q, x)[0]),
        *beyond_limits(limits),
        Rule(
            "the schedule may recompute so",
            lambda q, x: ~recomputes[x.schedule],
            "`schedule={layout.schedule}` does not go with recompute=" + either(list(policies)),
        ),
        SCHEDULE_RULE,
    )


def _rows_within(question: Question, limits: Restrictions) -> LayoutColumns:
    """List layouts that satisfy the restrictions, legal or not. Axes without restriction have simple
    values."""
    stack, gpus, restricted = question.stack, question.cluster.num_gpus, limits.named_axes

    def values(axis: str, defaults: Iterable[int]) -> list[int]:
        """Values of an axis to try: the permitted ones among the defaults and the user's requests, or the
        smallest permitted value if none of these is."""
        bounds = {limit[axis] for limit in (limits.minima, limits.maxima) if axis in limit}
        permitted = limits.permitted(axis, sorted({*defaults, *limits.only.get(axis, ()), *bounds}))
        return permitted or limits.permitted(axis, limits.unbounded(axis, 1))[:1]

    runs = range(len(SCHEDULES)) if "schedule" in restricted else map(SCHEDULES.index, stack.schedules)
    pairs = product(values("schedule", runs), values("vpp", (1, 2)))
    shapes = [(vpp, index) for index, vpp in pairs if schedule_named(SCHEDULES[index]).runs_chunks(vpp)]
    # values of restricted columns, and of others
    simple = {
        name: (word.number_range or (word.simplest, word.simplest + 1), [word.simplest])
        for name, word in COLUMNS.items()
        if name not in (*_MESH, *_SHAPE)
    }
    degrees = values("tp", tensor_degrees(question.cluster))
    all_meshes = product(degrees, values("cp", divisors(gpus)), values("pp", divisors(gpus)))
    dividing = [mesh for mesh in all_meshes if gpus % math.prod(mesh) == 0]
    rows = []
    for tp, cp, pp in dividing or product(degrees, values("cp", [1]), values("pp", [1])):
        dp_left, remainder = divmod(gpus, tp * cp * pp)
        fitting = [shape for shape in shapes if pp * shape[0] <= MAX_STAGES]
        for dp in values("dp", [1 if remainder else dp_left]):
            switch = [0, 1] if tp > 1 else [0]
            tried = simple | {
                "ep": (divisors(max(1, question.model.num_experts)), [1]),
                "etp": ({1, *divisors(tp)}, [tp]),
                "mbs": (divisors(question.training.global_batch), [1]),
                "zero": (range(ZERO_STAGES), stack.zero_stages),
                "shard": (divisors(dp * cp), [dp * cp]),
                "sp": (switch, switch),
                "order": (range(len(ORDERS)), [ORDERS.index(stack.axis_orders[0])]),
                "context": (range(len(CONTEXTS)), [USUAL_CONTEXT]),
            }
            options = {name: values(name, tried[name][name not in restricted]) for name in simple}
            options |= {"context": [USUAL_CONTEXT]} if cp == 1 else {}
            inside = product(*options.values())
            rows += [(tp, cp, pp, dp, *inner, *shape) for inner, shape in product(inside, fitting)]
    names = (*_MESH, *simple, *_SHAPE)
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    columns = LayoutColumns(**dict(zip(names, np.ascontiguousarray(table.T), strict=True)))
    return columns.rows(np.flatnonzero(limits.allows(with_context_ways(question, columns))))


COMPARED = 4
"""Number of layouts roughly closest to fitting that are priced in full."""


def explain_infeasible(
    question: Question, columns: LayoutColumns, costs: StageCosts, policies: Sequence[Recompute]
) -> DoesNotFitError:
    """Create the error that no placement of any layout fits in memory. It names the closest layout, and what
    its fullest rank holds, as in `explain`, with the limit that communicators leave."""
    layers, gpus, x = question.model.num_layers, question.cluster.num_gpus, costs
    # roughly the peak of a rank with an even share of blocks and one live microbatch a rank, without both ends
    blocks: Ints = -(-layers // columns.pp)
    kept_NP = (blocks * columns.pp)[:, None] * x.layer_activation + x.working
    static_N, update_N = x.static + blocks * x.layer_static, blocks * x.layer_update
    peak_NP = static_N[:, None] + np.maximum(kept_NP, update_N[:, None])
    peak_NP = np.where(policies_by_schedule(policies)[columns.schedule], peak_NP, np.inf)
    priced = []
    for row in np.argsort(peak_NP.min(axis=1), kind="stable")[:COMPARED].tolist():
        layout, leanest = columns.layout(row), RECOMPUTE_POLICIES[int(peak_NP[row].argmin())]
        placement = {"layers": even_layers(layers, layout.num_stages), "recompute": (leanest,)}
        priced.append(estimate(question, layout.model_copy(update=placement)))
    closest = min(priced, key=lambda plan: (plan.peak_bytes - plan.memory_limit, str(plan.layout)))
    # weights, gradients and optimizer states over all GPUs together, of the layout that needs least
    one_pipeline = columns.pp * x.static + layers * x.layer_static + (x.embedding_static + x.head_static)
    states = float((columns.tp * columns.replicas * one_pipeline).min())
    limit = float(x.memory_limit.max())
    share = confident_share(question.confidence, question.memory_error)
    sure = f" with {100 * question.confidence:.4g} %" * (share < 1)
    enough = (limit + closest.peak_bytes - min(closest.memory_limit, limit)) / share
    hint = f"{format_bytes(enough)} a GPU would do; or use more GPUs, or shorter sequences"
    rank = closest.fullest_rank
    of = f" of {closest.limit_words}" if closest.memory_limit < limit else ""
    parts = " + ".join(f"{name} {size / GIB:.1f}" for name, size in closest.rank_memory[rank].items() if size)
    if limit and (needed := math.ceil(states / limit)) > gpus:
        hint = f"model states alone fill {counted(needed, 'GPU')} of this size"
    return DoesNotFitError(
        f"no layout of {question.model.name} fits {format_bytes(limit / share)} x {counted(gpus, 'GPU')}{sure}",
        problems=[
            Problem("closest", closest.layout.model_copy(update={"layers": ()}).brief),
            Problem("needs", f"{format_bytes(closest.peak_bytes)}{of} on pipeline rank {rank} = {parts}"),
        ],
        hint=hint,
        state_bytes=states,
        closest=closest,
    )


def nothing_legal(question: Question, limits: Restrictions) -> InfeasibleError:
    """Create the error that the software stack, the question or the restrictions leave no legal layout."""
    if refused := question_objections(question):
        problems = [Problem("", words.what) for words in refused[1:]]
        return InfeasibleError(refused[0].what, problems=problems, hint=refused[0].hint)
    batch, place = question.training.global_batch, counted(question.cluster.num_gpus, "GPU")
    if question.has_pools:
        place = f"the pools of `{question.cluster.name}`"
    message = f"no layout of {question.model.name} on {place} is legal with global batch {batch:,}"
    in_the_way, default = obstacles(question, Restrictions()), "try a global batch that more GPUs divide"
    sizes = _legal_sizes(question) if in_the_way and not question.has_pools else ""
    if limits.flags and not in_the_way:
        in_the_way = obstacles(question, limits)
        message += f" under {' '.join(limits.flags)}"
        default = "loosen --fix and --forbid" + ", or plan without --for" * (limits.trainer is not None)
    problems = [Problem("", words.what) for words in in_the_way]
    hint = sizes or next((words.hint for words in in_the_way if words.hint), default)
    return InfeasibleError(message, problems=problems, hint=hint)


_SIZES_TRIED = 32
"""Numbers of GPUs, and global batches, that are tried in each direction for one with a legal layout."""


def _legal_sizes(question: Question) -> str:
    """Hint with the nearest numbers of GPUs, fewer and more, and the nearest global batch, for which some layout is
    legal; empty if none of those tried has any."""
    cluster, batch, steps = question.cluster, question.training.global_batch, range(1, _SIZES_TRIED + 1)
    gpus = cluster.num_gpus
    # how many GPUs the node of a part of one has is not known
    step, more_steps = (cluster.gpus_per_node, steps) if cluster.nodes > 1 else (1, range(0))

    def first_legal(changes: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
        """First pair of GPUs and global batch with which some layout is legal; None without any."""
        useful_changes = (change for change in changes if min(change) > 0)
        return next(
            (size for size in useful_changes if not obstacles(resized(question, *size), Restrictions())), None
        )

    fewer = first_legal((gpus - count * step, batch) for count in steps)
    larger = first_legal((gpus + count * step, batch) for count in more_steps)
    dividing = {degree * round(batch / degree) for degree in divisors(gpus) if degree <= 2 * batch}
    nearest = sorted(dividing - {batch}, key=lambda size: abs(size - batch))[:_SIZES_TRIED]
    other_batch = first_legal((gpus, size) for size in nearest)
    words = [f"--gpus {size[0]}" for size in (fewer, larger) if size]
    words += [f"--global-batch {other_batch[1]}"] if other_batch else []
    return either(words) if words else ""


def least_share(group: RankCosts) -> Array:
    """Minimum memory that all ranks of a pipeline need together, as a share of the memory of all ranks, (N,)."""
    x, by_rank = group.costs, group.by_rank
    kept_NRP = by_rank(x.layer_activation)[..., group.allowed]
    blocks_N = group.num_layers * (by_rank(x.layer_static).min(axis=1) + kept_NRP.min(axis=(1, 2)))
    fixed_NR = group.with_ends(*map(by_rank, (x.static, x.embedding_static, x.head_static)))
    share_N: Array = (fixed_NR.sum(axis=1) + blocks_N) / by_rank(x.memory_limit).sum(axis=1).clip(min=1.0)
    return share_N


def fill_memory_evenly(leaf: Leaf) -> tuple[tuple[int, ...], float]:
    """Spread the blocks so that memory fills evenly; return the number of blocks on each rank, and the share
    of its memory that the fullest rank uses. All blocks are under the strongest recompute policy."""
    policy = int(np.flatnonzero(leaf.allowed)[-1])
    blocks_RP = leaf.no_blocks
    blocks_RP[:, policy] = 1
    one_R, limit_R = leaf.rank_bytes(blocks_RP), leaf.memory_limit.clip(min=1.0)
    blocks_RP[:, policy] = 2
    each_R = (leaf.rank_bytes(blocks_RP) - one_R) / limit_R
    full_R, layers_R = one_R / limit_R, np.ones(leaf.pp, dtype=np.int64)
    for _ in range(leaf.num_layers - leaf.pp):
        rank = int(np.argmin(full_R + each_R))
        layers_R[rank] += 1
        full_R[rank] += each_R[rank]
    return tuple(layers_R.tolist()), float(full_R.max())


def notes_of(question: Question, restrictions: Restrictions | None = None) -> tuple[str, ...]:
    """Sentences, without a full stop, on parts of the question that have no effect or divide badly."""
    return tuple(_notes(question, restrictions or Restrictions()))


def _notes(question: Question, limits: Restrictions) -> Iterator[str]:
    """Yield the notes on a question's positions, sequence divisors, windows, memory limit, risk and
    `--allow`."""
    model, training, length = question.model, question.training, question.training.sequence_length
    # the project's executor refuses sequences that are longer than the model's learned positions
    too_long = model.positions == "learned" and length > model.longest_sequence
    if too_long and question.stack.name not in OWN_STACKS:
        extra = format_count(float((length - model.longest_sequence) * model.hidden_size))
        yield (
            f"{model.name} has {grouped(model.longest_sequence)} learned positions; sequences of {grouped(length)}"
            f" tokens need a longer table, whose {extra} more parameters are not priced"
        )
    # tensor ranks share a sequence under `sp`, context ranks always; fp8 sums whole sixteens
    heads = math.gcd(model.num_heads, model.num_kv_heads)
    degrees = [degree for degree in divisors(question.cluster.gpus_per_node)[1:] if heads % degree == 0]
    unshared = [str(degree) for degree in degrees if length % degree]
    fp8 = training.precision == "fp8" and length % FP8_SIDE != 0
    unit = math.lcm(*degrees, FP8_SIDE) if fp8 else math.lcm(*degrees, 2) * 2
    note = f"sequences of {grouped(length)} tokens"
    if unshared:
        note += f" cannot be shared by {either(unshared)} ranks, so layouts in which they are (`sp`, `cp`) are left out"
    if fp8:
        note += " and" * bool(unshared) + " make gradients in fp8 slow, which sum whole sixteens"
    if unshared or fp8:
        yield f"{note}; {grouped(max(unit, round(length / unit) * unit))} tokens do better"
    if model.attention_window is not None and model.attention_window >= length:
        window = grouped(model.attention_window)
        yield f"windows of {window} tokens hide nothing of sequences of {grouped(length)}"
    if limits.max_memory is not None:
        single_gpu = LayoutColumns.of([Layout()])  # without communicators, so it has most memory
        share = confident_share(question.confidence, question.memory_error)
        fills = {  # limits without the margin of confidence
            pool.cluster.gpu.name: float(memory_limit(pool, single_gpu)[0]) / share for pool in question.pools
        }
        limit = limits.max_memory / share
        if limit > max(fills.values()):
            fill = " and ".join(f"{format_bytes(size)} of `{name}`" for name, size in fills.items())
            yield f"--max-memory {format_bytes(limit)} limits nothing: a plan may fill {fill} at most"
    if question.risk != "none" and not scenarios_of(question):
        owner = "several pools have" if question.has_pools else f"profile {question.hardware.name} has"
        yield f"{owner} no scenarios, so `--risk {question.risk}` minimises the step on paper"
    for name, reason in CLOSED.items():
        if name in limits.allowed and (words := reason(question, limits.trainer)):
            yield f"--allow {name} opens nothing: {words}"
