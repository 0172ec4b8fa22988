"""Which layouts may run at all: a list of named rules, shared by the search, the errors and the explanations.

Every rule says it twice, once for many layouts (`broken`, a column) and once in the user's words (`sentence`); both
read the same quantities. A legal layout may still not fit in memory: that is for the cost model to say.
"""

from __future__ import annotations

import numpy as np

from cost_models import schedules
from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout, late_rules
from cost_models.axes.recompute import allowed_recompute, named_blocks, policies_in
from cost_models.axes.rule import Rule, Words, in_order, multiplied, rule_when
from cost_models.errors import InputError, Problem
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from cost_models.units import counted
from planner.formats.trainers import refusals
from planner.rules.pools import pool_objections
from planner.rules.searched import searched
from planner.rules.stack import STACK_RULES


@rule_when("uses every GPU", lambda q, x: multiplied(x.tp, x.cp, x.pp, x.dp) != q.cluster.num_gpus)
def _uses_every_gpu(question: Question, layout: Layout) -> Words:
    have, cluster = question.cluster.num_gpus, question.cluster
    what = f"layout `{layout}` uses {counted(layout.num_gpus, 'GPU')}; cluster `{cluster.name}` has {have:,}"
    fits, rest = divmod(have, layout.tp * layout.cp * layout.pp)
    if fits and not rest:
        return Words(what, f"dp{fits} fits")
    more_nodes, partial = divmod(layout.num_gpus - have, cluster.gpus_per_node)
    return Words(what, f"add {counted(more_nodes, 'node')}" if more_nodes > 0 and not partial else "")


def _recompute_objection(layout: Layout) -> Words | None:
    """What forbids the layout's recompute under its schedule; asked of layouts, as recompute is no column."""
    allowed = allowed_recompute(layout.schedule)
    named = {policy for mix in layout.recompute for policy in policies_in(mix)}
    refused = sorted(named - set(allowed))
    if not refused:
        return None
    what = f"`recompute={refused[0]}` does not go with `schedule={layout.schedule}`, which splits backward passes"
    why = "PyTorch would recompute for every piece of them"
    return Words(f"{what}: {why}", "leave out `recompute`, or use another schedule")


def _schedule_refuses(question: Question, x: LayoutColumns) -> Bools:
    """The scalar rule of each schedule, asked once for every distinct (schedule, pp, vpp, microbatches)."""
    shapes = np.stack([x.schedule, x.pp, x.vpp, x.microbatches(question.training.global_batch)], axis=1)
    distinct, index = np.unique(shapes, axis=0, return_inverse=True)
    refused = [
        schedules.legal(SCHEDULES[schedule], pp, vpp, microbatches) is not None
        for schedule, pp, vpp, microbatches in distinct.tolist()
    ]
    return np.array(refused, dtype=np.bool_)[index.reshape(-1)]


@rule_when("the schedule can run", _schedule_refuses)
def _schedule_runs(question: Question, layout: Layout) -> Words:
    microbatches = layout.microbatches(question.training.global_batch)
    return Words(schedules.legal(layout.schedule, layout.pp, layout.vpp, microbatches) or "")


_EVERY_GPU = _uses_every_gpu
_FIRST_TOLD = (
    "tp divides the heads",
    "tp divides the key/value heads",
    "tp divides the MLP",
    "tp divides the shared experts",
    "etp divides an expert",
    "ep divides the experts",
    "expert groups divide the ranks of a stage",
    "stages between the ends have blocks",
    "batch divides into microbatches",
    "ZeRO needs replicas",
    "hybrid sharding needs ZeRO",
    "shard groups divide the replicas",
    "sequence parallelism needs tensor parallelism",
    "tp divides the sequence",
    "cp divides the sequence",
    "cp divides the heads it trades",
    "experts are for a mixture",
    "chunks need a pipeline",
    "the schedule needs a pipeline",
)
"""The order in which the rules of the axes are told; others, of new axes, follow."""
RULES: tuple[Rule, ...] = (
    _EVERY_GPU,
    *in_order(_FIRST_TOLD, (rule for axis in AXES.values() for rule in axis.rules)),
    *STACK_RULES,
)

SIZED_RULES = AXES["mbs"].rules
"""Those that read the microbatch size, whatever the schedule: they are asked of every size."""

SCHEDULE_RULE = _schedule_runs
"""Asked last, and only of layouts whose batch divides: it speaks of microbatches."""


def legal_rows(
    question: Question, columns: LayoutColumns, *, shaped: bool = True, hosts: bool = True
) -> Bools:
    """(N,): which layouts break no rule; where they are not `shaped`, none but that of their schedule and those that
    read the microbatch size. That they are more than `hosts` hold may be left to their price."""
    legal = np.ones(len(columns), dtype=np.bool_)
    for rule in RULES if shaped else [rule for rule in RULES if rule not in SIZED_RULES]:
        legal &= ~rule.broken(question, columns)
    for rule in [*late_rules() * hosts, *[SCHEDULE_RULE] * shaped]:
        candidates = np.flatnonzero(legal)
        legal[candidates] = ~rule.broken(question, columns.rows(candidates))
    return legal


def objections(question: Question, layout: Layout, *, hosts: bool = True) -> list[tuple[Rule, Words]]:
    """Every rule the layout breaks, with its words; empty for a legal layout. That it is more than `hosts` of known
    memory and drives hold may be left to its price."""
    for axis in searched().values():
        question = axis.asked_as(question, layout) if axis.asked_as else question
    columns = LayoutColumns.of([layout])
    if broken := [rule for rule in RULES if rule.broken(question, columns)[0]]:
        return [(rule, rule.sentence(question, layout)) for rule in broken]
    late = broken_late(question, layout)
    found = [(rule, words) for rule, words in late if hosts or (rule.unknown and rule.unknown(question))]
    if SCHEDULE_RULE.broken(question, columns)[0]:
        found.append((SCHEDULE_RULE, SCHEDULE_RULE.sentence(question, layout)))
    return found


def broken_late(question: Question, layout: Layout) -> list[tuple[Rule, Words]]:
    """Every late rule that a layout breaks with what its stages recompute, with its words."""
    columns = LayoutColumns.of([layout])
    used = dict.fromkeys(policy for mix in layout.recompute for policy in policies_in(mix))
    asked = [(rule, question.recomputing(policy)) for rule in late_rules() for policy in used]
    broken = {rule.name: (rule, own) for rule, own in asked if rule.broken(own, columns)[0]}
    return [(rule, rule.sentence(own, layout)) for rule, own in broken.values()]


def check(
    question: Question, layout: Layout, trainer: str | None = None, *, hosts: bool = True
) -> list[Problem]:
    """What is wrong with a layout (for a trainer), all problems at once; where it is placed, with its placement too.
    That it is more than `hosts` of known memory hold may be left to its price."""
    return [problem for problem, _ in _problems(question, layout, trainer, hosts=hosts)]


def require_legal(
    question: Question, layout: Layout, trainer: str | None = None, *, hosts: bool = True
) -> None:
    """Nothing for a legal layout (that the trainer would start with; that `hosts` of known memory hold).

    Raises:
        InputError: with every broken rule and the hint of the first.
    """
    problems = _problems(question, layout, trainer, hosts=hosts)
    if len(problems) == 1:
        raise InputError(problems[0][0].what, hint=problems[0][1])
    if problems:
        raise InputError(
            f"layout `{layout}` cannot run: {len(problems)} problems",
            problems=[problem for problem, _ in problems],
            hint=problems[0][1],
        )


def require_held(question: Question, layout: Layout) -> None:
    """Nothing for a layout that late rules allow, as that hosts hold what it offloads.

    Raises:
        InputError: the first that it breaks.
    """
    for _, words in broken_late(question, layout):
        raise InputError(words.what, hint=words.hint)


def _fewest_blocks(layout: Layout) -> int:
    """Blocks of the rank that `layers` gives fewest."""
    rank_of = schedules.rank_of_stage(layout.schedule, layout.pp, layout.vpp)
    return int(np.bincount(rank_of, weights=layout.layers).min())


def _problems(
    question: Question, layout: Layout, trainer: str | None, *, hosts: bool = True
) -> list[tuple[Problem, str]]:
    found = [(Problem("", words.what), words.hint) for _, words in objections(question, layout, hosts=hosts)]
    if words := _recompute_objection(layout):
        found.append((Problem("", words.what), words.hint))
    found += [(Problem("", words.what), words.hint) for words in pool_objections(question, layout)]
    if layout.layers and sum(layout.layers) != question.model.num_layers:
        placed = f"`layers` places {counted(sum(layout.layers), 'block')}; the model has {question.model.num_layers}"
        found.append((Problem("", placed), "leave out `layers` to have them placed"))
    elif layout.layers:
        told = [
            axis.placed_rule(layout, _fewest_blocks(layout)) for axis in AXES.values() if axis.placed_rule
        ]
        found += [(Problem("", words.what), words.hint) for words in told if words]
    if 0 in layout.layers[1:-1]:
        what = f"`layers` leaves stage {layout.layers.index(0, 1)} empty; only the first and the last may be"
        found.append((Problem("", what), "they have the embedding and the head"))
    for stage, (blocks, mix) in enumerate(
        zip(layout.layers, layout.stage_recompute if layout.layers else (), strict=True)
    ):
        if named_blocks(mix) > blocks:
            what = (
                f"`recompute={mix}` names {counted(named_blocks(mix), 'block')}; stage {stage} has {blocks}"
            )
            found.append((Problem("", what), "name fewer, or leave out the number"))
    if trainer is not None:
        refused = refusals(trainer, question, layout)
        found += [(Problem("", words.what), words.hint) for words in refused]
    return found
