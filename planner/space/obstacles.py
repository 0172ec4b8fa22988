"""Obstacles: rules that the closest layouts break where restrictions leave no legal layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import COLUMNS, USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import ZERO_STAGES, Layout
from cost_models.axes.pipeline import goes_with
from cost_models.axes.recompute import allowed_recompute
from cost_models.axes.rule import Rule, Words, refuses, rule_when
from cost_models.axes.words import MAX_STAGES
from cost_models.errors import either
from cost_models.question import MixedQuestion, Question
from cost_models.specs.choices import CONTEXTS, ORDERS, SCHEDULES
from cost_models.units import counted
from planner.formats.trainers import trainer_named
from planner.rules.legality import RULES, SCHEDULE_RULE
from planner.rules.pools import fills_pools, pool_objections
from planner.space.axes import divisors
from planner.space.limits import beyond_limits, tensor_degrees
from planner.space.restrictions import Restrictions, with_context_ways

_MESH, _SHAPE = ("tp", "cp", "pp", "dp"), ("vpp", "schedule")
MAX_EXAMPLES = 3
"""Maximum number of example layouts, where their obstacles differ."""


def obstacles(question: Question, limits: Restrictions) -> list[Words]:
    """Rules that keep every layout within the restrictions from being legal and covered; empty if some layout is.

    The rules that all layouts break; if there is none, the rules broken by the layouts that break fewest.
    """
    rows = _rows_within(question, limits)
    if not len(rows):
        return _exclude_one_another(limits)
    rules, broken_KN = _broken(question, limits, rows)
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


def _exclude_one_another(limits: Restrictions) -> list[Words]:
    """Sentence on fixed chunks and schedules that exclude one another."""
    words = [
        word for word in (*limits.fix_words, *limits.forbid_words) if word.startswith(("vpp", "schedule"))
    ]
    if len(words) < 2:
        return []
    chunks = "1f1b and gpipe have one chunk a rank, interleaved several, zbv and dualpipev two"
    return [Words(f"{' and '.join(f'`{word}`' for word in words)} exclude one another: {chunks}")]


def _broken(question: Question, limits: Restrictions, rows: LayoutColumns) -> tuple[tuple[Rule, ...], Bools]:
    """Rules, K, and the layouts that break them, (K, N); the last, on schedules, is checked where no other is
    broken."""
    rules = (*RULES, *_rules_besides(question, limits), SCHEDULE_RULE)
    broken_KN = np.zeros((len(rules), len(rows)), dtype=np.bool_)
    for index, rule in enumerate(rules[:-1]):
        broken_KN[index] = rule.broken(question, rows)
    unbroken = np.flatnonzero(~broken_KN.any(axis=0))
    broken_KN[-1, unbroken] = SCHEDULE_RULE.broken(question, rows.rows(unbroken))
    return rules, broken_KN


def _degrees(question: Question, limits: Restrictions) -> Words | None:
    """Sentence on fixed degrees that do not divide the GPUs; None if they do."""
    fixed = {
        axis: min(limits.only[axis])
        for axis in ("tp", "cp", "pp", "dp")
        if len(limits.only.get(axis, ())) == 1
    }
    gpus, divisor = question.cluster.num_gpus, math.prod(fixed.values())
    if gpus % divisor == 0:
        return None
    written = " ".join(f"{axis}{degree}" for axis, degree in fixed.items())
    message = f"`{written}` {'does' if len(fixed) == 1 else 'do'} not divide {counted(gpus, 'GPU')}"
    axis, degree = fixed.popitem()
    other_factor = divisor // degree
    limit = math.gcd(gpus, question.cluster.gpus_per_node) if axis == "tp" else gpus
    degrees = divisors(limit // other_factor) if limit % other_factor == 0 else []
    near = [value for value in degrees if value < degree][-1:] + [
        value for value in degrees if value > degree
    ][:1]
    fitting = [f"{axis}{value}" for value in near]
    return Words(message, f"{either(fitting)} would" if fitting else "")


def _rules_besides(question: Question, limits: Restrictions) -> tuple[Rule, ...]:
    """Rules of the trainer, of pools and of the search's limits."""
    policies = limits.recompute(question)
    policies_of_schedules = [allowed_recompute(schedule) for schedule in SCHEDULES]
    recomputes = np.array([bool(set(policies) & set(allowed)) for allowed in policies_of_schedules])
    return (
        *(trainer_named(limits.trainer).rules if limits.trainer else ()),
        _pool_words,
        *beyond_limits(limits),
        refuses(
            "the schedule may recompute so",
            lambda q, x: ~recomputes[x.schedule],
            "`schedule={layout.schedule}` does not go with recompute=" + either(list(policies)),
        ),
    )


def _outside_pools(question: Question, x: LayoutColumns) -> Bools:
    if not isinstance(question, MixedQuestion):
        return np.zeros(len(x), dtype=np.bool_)
    return ~fills_pools(question, x)


@rule_when("ranks fill the pools", _outside_pools)
def _pool_words(question: Question, layout: Layout) -> Words:
    return pool_objections(question, layout)[0]


def _rows_within(question: Question, limits: Restrictions) -> LayoutColumns:
    """Layouts within the restrictions, legal or not, (N,); axes without restriction have simple values."""
    stack, model, restricted = question.stack, question.model, limits.named_axes

    def values(axis: str, defaults: Iterable[int]) -> list[int]:
        """Permitted defaults and requested values of an axis; if there are none, the least permitted value."""
        bounds = {limit[axis] for limit in (limits.at_least, limits.at_most) if axis in limit}
        minimum = max(1, limits.at_least.get(axis, 1))
        spare = np.arange(minimum, minimum + len(limits.never.get(axis, ())) + 1)
        numbers = np.array(sorted({*defaults, *limits.only.get(axis, ()), *bounds}), dtype=np.int64)
        permitted = numbers[limits.permits(axis, numbers)]
        usable = permitted if len(permitted) else spare[limits.permits(axis, spare)][:1]
        return [int(value) for value in usable]

    def choices(axis: str, options: Iterable[int], defaults: int) -> list[int]:
        return values(axis, options if axis in restricted else [defaults])

    runs = range(len(SCHEDULES)) if "schedule" in restricted else map(SCHEDULES.index, stack.schedules)
    shapes = [
        (vpp, schedule)
        for schedule in values("schedule", runs)
        for vpp in values("vpp", (1, 2))
        if goes_with(SCHEDULES[schedule], vpp)
    ]
    inside = [name for name in COLUMNS if name not in (*_MESH, *_SHAPE)]
    rows = []
    for tp, cp, pp in _meshes(question, values):
        dp_left, remainder = divmod(question.cluster.num_gpus, tp * cp * pp)
        for dp in values("dp", [1 if remainder else dp_left]):
            tried = {
                "ep": choices("ep", divisors(max(1, model.num_experts)), 1),
                "etp": choices("etp", {1, *divisors(tp)}, tp),
                "mbs": choices("mbs", divisors(question.training.global_batch), 1),
                "zero": values("zero", range(ZERO_STAGES) if "zero" in restricted else stack.zero_stages),
                "shard": choices("shard", divisors(dp * cp), dp * cp),
                "sp": values("sp", (0, 1) if tp > 1 else (0,)),
                "order": choices("order", range(len(ORDERS)), ORDERS.index(stack.axis_orders[0])),
                "context": [USUAL_CONTEXT],
            }
            if cp > 1:
                tried["context"] = choices("context", range(len(CONTEXTS)), USUAL_CONTEXT)
            options = [tried[name] if name in tried else choices(name, *_any_of(name)) for name in inside]
            fitting = [shape for shape in shapes if pp * shape[0] <= MAX_STAGES]
            rows += [(tp, cp, pp, dp, *inner, *shape) for inner, shape in product(product(*options), fitting)]
    names = (*_MESH, *inside, *_SHAPE)
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    columns = LayoutColumns(**dict(zip(names, np.ascontiguousarray(table.T), strict=True)))
    return columns.rows(np.flatnonzero(limits.allows(with_context_ways(question, columns))))


def _any_of(name: str) -> tuple[Iterable[int], int]:
    """Values of a column without defaults, and its simplest value."""
    word = COLUMNS[name]
    return word.every or (word.simplest, word.simplest + 1), word.simplest


def _meshes(
    question: Question, values: Callable[[str, Iterable[int]], list[int]]
) -> list[tuple[int, int, int]]:
    """Degrees tp, cp and pp whose product divides the GPUs; if none does, requested degrees and otherwise 1."""
    gpus = question.cluster.num_gpus
    tp = values("tp", tensor_degrees(question.cluster))
    meshes = product(tp, values("cp", divisors(gpus)), values("pp", divisors(gpus)))
    dividing = [mesh for mesh in meshes if gpus % math.prod(mesh) == 0]
    return dividing or list(product(tp, values("cp", [1]), values("pp", [1])))
