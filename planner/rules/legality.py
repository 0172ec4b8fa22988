"""Which layouts may run at all: a list of named rules, shared by the search, the errors and the explanations.

Every rule says it twice, once for many layouts (`broken`, a column) and once in the user's words (`sentence`); both
read the same quantities. A legal layout may still not fit in memory: that is for the cost model to say.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cost_models import schedules
from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.context import CONTEXTS
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import SCHEDULES
from cost_models.axes.recompute import allowed_recompute, named_blocks, policies_in
from cost_models.communication.context import context_ways
from cost_models.errors import InputError, Problem
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted
from planner.placement.leaf import ENDS
from planner.rule import Bools as Bools
from planner.rule import Rule as Rule
from planner.rule import Words as Words
from planner.rule import either
from planner.rules.host import HOST_RULE
from planner.rules.pools import pool_objections
from planner.rules.stack import STACK_RULES
from planner.trainers import refusals


def _uses_every_gpu(question: Question, layout: Layout) -> Words:
    have, cluster = question.cluster.num_gpus, question.cluster
    what = f"layout `{layout}` uses {counted(layout.num_gpus, 'GPU')}; cluster `{cluster.name}` has {have:,}"
    fits, rest = divmod(have, layout.tp * layout.cp * layout.pp)
    if fits and not rest:
        return Words(what, f"dp{fits} fits")
    more_nodes, partial = divmod(layout.num_gpus - have, cluster.gpus_per_node)
    return Words(what, f"add {counted(more_nodes, 'node')}" if more_nodes > 0 and not partial else "")


def _tensor_group_in_node(question: Question, layout: Layout) -> Words:
    size = question.cluster.gpus_per_node
    return Words(
        f"`tp{layout.tp}` does not divide a node of {counted(size, 'GPU')}", _degrees("tp", size, size)
    )


def _splits(count: Callable[[TransformerSpec], int], noun: str) -> Callable[[Question, Layout], Words]:
    def sentence(question: Question, layout: Layout) -> Words:
        total = count(question.model)
        hint = _degrees("tp", total, question.cluster.gpus_per_node)
        return Words(f"`tp{layout.tp}` splits {total:,} {noun}", hint)

    return sentence


def _stages_have_blocks(question: Question, layout: Layout) -> Words:
    stages, blocks = layout.num_stages, question.model.num_layers
    written = f"pp{layout.pp} vpp{layout.vpp}" if layout.vpp > 1 else f"pp{layout.pp}"
    what = f"`{written}` makes {counted(stages, 'stage')}; the model has {counted(blocks, 'block')}"
    return Words(
        what, "only the first stage and the last may have none: they have the embedding and the head"
    )


def _batch_divides(question: Question, layout: Layout) -> Words:
    batch, together = question.training.global_batch, layout.dp * layout.mbs
    below = batch // together * together
    neighbours = f"{below} and {below + together} are" if below else f"{together} is"
    return Words(
        f"global batch {batch} is not a multiple of dp{layout.dp} x mbs{layout.mbs}",
        neighbours,
    )


def _zero_needs_replicas(question: Question, layout: Layout) -> Words:
    return Words(f"`zero{layout.zero}` shards over dp, which is 1 here", "write zero0")


def _shard_needs_zero(question: Question, layout: Layout) -> Words:
    return Words(f"`shard{layout.shard}` says what ZeRO shards over, and zero0 shards nothing", "write zero1")


def _shard_divides(question: Question, layout: Layout) -> Words:
    return Words(f"`shard{layout.shard}` does not divide the {layout.replicas:,} ranks of dp x cp")


def _sequence_parallel_needs_tensor(question: Question, layout: Layout) -> Words:
    return Words(
        f"`sp` splits the sequence over tp, and tp{layout.tp} has one rank",
        "leave out `sp`, or use tp2 or more",
    )


def _sequence_divides(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    if layout.cp == 1:
        return Words(f"`sp` splits a sequence of {length} tokens over tp{layout.tp}")
    return Words(f"`sp` splits a sequence of {length} tokens over cp{layout.cp} x tp{layout.tp}")


def _sequence_divides_over_context(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    pieces = layout.cp * int(_pieces(question, LayoutColumns.of([layout]))[0])
    return Words(f"`cp{layout.cp}` deals a sequence of {length} tokens in {pieces:,} pieces")


def _heads_divide_over_context(question: Question, layout: Layout) -> Words:
    heads = question.model.num_kv_heads
    who = "`context=all-to-all`" if layout.context else f"software stack `{question.stack.name}`"
    what = f"{who} trades tokens for heads: tp{layout.tp} x cp{layout.cp}"
    return Words(f"{what} ranks share {heads} key/value heads")


def _pieces(question: Question, x: LayoutColumns) -> Ints:
    """(N,) pieces of a sequence that each context rank has: two, one from either end, give causal attention equal work;
    one where heads are traded."""
    return np.where(_trades_heads(question, x), 1, 2)


def _trades_heads(question: Question, x: LayoutColumns) -> Bools:
    trades: Bools = context_ways(question, x) == CONTEXTS.index("all-to-all")
    return trades


def _no_experts(question: Question, layout: Layout) -> Words:
    what = f"`ep{layout.ep}`" if layout.ep > 1 else f"`etp{layout.etp}`"
    return Words(f"{what} shares experts, and model `{question.model.name}` has none", "leave it out")


def _expert_splits(question: Question, layout: Layout) -> Words:
    width = question.model.moe_ffn_hidden_size
    return Words(
        f"`etp{layout.expert_tp}` splits {width:,} columns of an expert", "`etp1` leaves experts whole"
    )


def _experts_split(question: Question, layout: Layout) -> Words:
    count = question.model.num_experts
    return Words(f"`ep{layout.ep}` shares {counted(count, 'expert')}", _degrees("ep", count, count))


def _expert_groups_divide(question: Question, layout: Layout) -> Words:
    ranks, together = layout.tp * layout.replicas, layout.ep * layout.expert_tp
    what = f"ep{layout.ep} x etp{layout.expert_tp} = {together:,} ranks hold the experts of a block"
    return Words(f"{what}; tp x cp x dp has {ranks:,}", "they must divide it")


def _chunks_need_a_pipeline(question: Question, layout: Layout) -> Words:
    return Words(f"`vpp{layout.vpp}` interleaves chunks over pp, which is 1 here", "leave out `vpp`")


def _schedule_needs_a_pipeline(question: Question, layout: Layout) -> Words:
    return Words(f"`schedule={layout.schedule}` needs pp2 or more", "leave out `schedule`")


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


def _schedule_runs(question: Question, layout: Layout) -> Words:
    microbatches = layout.microbatches(question.training.global_batch)
    return Words(schedules.legal(layout.schedule, layout.pp, layout.vpp, microbatches) or "")


def _schedule_refuses(question: Question, x: LayoutColumns) -> Bools:
    """The scalar rule of each schedule, asked once for every distinct (schedule, pp, vpp, microbatches)."""
    shapes = np.stack([x.schedule, x.pp, x.vpp, x.microbatches(question.training.global_batch)], axis=1)
    distinct, index = np.unique(shapes, axis=0, return_inverse=True)
    refused = [
        schedules.legal(SCHEDULES[schedule], pp, vpp, microbatches) is not None
        for schedule, pp, vpp, microbatches in distinct.tolist()
    ]
    return np.array(refused, dtype=np.bool_)[index.reshape(-1)]


def _product(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """In floating point, where absurd degrees grow large instead of wrapping round."""
    product: npt.NDArray[np.float64] = np.prod(np.stack(columns).astype(np.float64), axis=0)
    return product


RULES: tuple[Rule, ...] = (
    Rule(
        name="uses every GPU",
        broken=lambda q, x: _product(x.tp, x.cp, x.pp, x.dp) != q.cluster.num_gpus,
        sentence=_uses_every_gpu,
    ),
    Rule(
        name="tensor group lies in one node",
        broken=lambda q, x: q.cluster.gpus_per_node % x.tp != 0,
        sentence=_tensor_group_in_node,
    ),
    Rule(
        name="tp divides the heads",
        broken=lambda q, x: q.model.num_heads % x.tp != 0,
        sentence=_splits(lambda model: model.num_heads, "attention heads"),
    ),
    Rule(
        name="tp divides the key/value heads",
        broken=lambda q, x: q.model.num_kv_heads % x.tp != 0,
        sentence=_splits(lambda model: model.num_kv_heads, "key/value heads"),
    ),
    Rule(
        name="tp divides the MLP",
        broken=lambda q, x: (q.model.moe_share < 1) & (q.model.ffn_hidden_size % x.tp != 0),
        sentence=_splits(lambda model: model.ffn_hidden_size, "columns of the MLP"),
    ),
    Rule(
        name="tp divides the shared experts",
        broken=lambda q, x: q.model.shared_expert_ffn_hidden_size % x.tp != 0,
        sentence=_splits(lambda model: model.shared_expert_ffn_hidden_size, "columns of the shared experts"),
    ),
    Rule(
        name="etp divides an expert",
        broken=lambda q, x: q.model.has_experts & (q.model.moe_ffn_hidden_size % x.etp != 0),
        sentence=_expert_splits,
    ),
    Rule(
        name="ep divides the experts",
        broken=lambda q, x: q.model.has_experts & (q.model.num_experts % x.ep != 0),
        sentence=_experts_split,
    ),
    Rule(
        name="expert groups divide the ranks of a stage",
        broken=lambda q, x: (
            q.model.has_experts & (np.fmod(_product(x.tp, x.cp, x.dp), _product(x.ep, x.etp)) != 0)
        ),
        sentence=_expert_groups_divide,
    ),
    Rule(
        name="stages between the ends have blocks",
        broken=lambda q, x: _product(x.pp, x.vpp) > q.model.num_layers + ENDS,
        sentence=_stages_have_blocks,
    ),
    Rule(
        name="batch divides into microbatches",
        broken=lambda q, x: np.fmod(float(q.training.global_batch), _product(x.dp, x.mbs)) != 0,
        sentence=_batch_divides,
    ),
    Rule(
        name="ZeRO needs replicas",
        broken=lambda q, x: (x.zero > 0) & (x.dp == 1) & (x.cp == 1),
        sentence=_zero_needs_replicas,
    ),
    Rule(
        name="hybrid sharding needs ZeRO",
        broken=lambda q, x: (x.zero == 0) & (x.shard != x.replicas),
        sentence=_shard_needs_zero,
    ),
    Rule(
        name="shard groups divide the replicas",
        broken=lambda q, x: np.fmod(_product(x.dp, x.cp), x.shard) != 0,
        sentence=_shard_divides,
    ),
    Rule(
        name="sequence parallelism needs tensor parallelism",
        broken=lambda q, x: (x.sp == 1) & (x.tp == 1),
        sentence=_sequence_parallel_needs_tensor,
    ),
    Rule(
        name="tp divides the sequence",
        broken=lambda q, x: (x.sp == 1) & (np.fmod(q.training.sequence_length, _product(x.cp, x.tp)) != 0),
        sentence=_sequence_divides,
    ),
    Rule(
        name="cp divides the sequence",
        broken=lambda q, x: (x.cp > 1) & (q.training.sequence_length % (_pieces(q, x) * x.cp) != 0),
        sentence=_sequence_divides_over_context,
    ),
    Rule(
        name="cp divides the heads it trades",
        broken=lambda q, x: (
            (x.cp > 1) & _trades_heads(q, x) & (np.fmod(q.model.num_kv_heads, _product(x.cp, x.tp)) != 0)
        ),
        sentence=_heads_divide_over_context,
    ),
    Rule(
        name="experts are for a mixture",
        broken=lambda q, x: (not q.model.has_experts) & ((x.ep > 1) | (x.etp != x.tp)),
        sentence=_no_experts,
    ),
    Rule(
        name="chunks need a pipeline",
        broken=lambda q, x: (x.vpp > 1) & (x.pp == 1),
        sentence=_chunks_need_a_pipeline,
    ),
    Rule(
        name="the schedule needs a pipeline",
        broken=lambda q, x: (x.pp == 1) & (x.vpp == 1) & ~schedules.is_scheduled(x, ("1f1b",)),
        sentence=_schedule_needs_a_pipeline,
    ),
    *STACK_RULES,
)

SCHEDULE_RULE = Rule(name="the schedule can run", broken=_schedule_refuses, sentence=_schedule_runs)
"""Asked last, and only of layouts whose batch divides: it speaks of microbatches."""


def legal_rows(question: Question, columns: LayoutColumns, *, scheduled: bool = True) -> Bools:
    """(N,): which layouts break no rule; where they are not `scheduled`, no rule but that of their schedule."""
    legal = np.ones(len(columns), dtype=np.bool_)
    for rule in RULES:
        legal &= ~rule.broken(question, columns)
    for rule in (HOST_RULE, SCHEDULE_RULE) if scheduled else (HOST_RULE,):
        candidates = np.flatnonzero(legal)
        legal[candidates] = ~rule.broken(question, columns.rows(candidates))
    return legal


def objections(question: Question, layout: Layout) -> list[tuple[Rule, Words]]:
    """Every rule the layout breaks, with its words; empty for a legal layout."""
    columns = LayoutColumns.of([layout])
    broken = [rule for rule in RULES if rule.broken(question, columns)[0]]
    if not broken:
        broken = [rule for rule in (HOST_RULE, SCHEDULE_RULE) if rule.broken(question, columns)[0]]
    return [(rule, rule.sentence(question, layout)) for rule in broken]


def check(question: Question, layout: Layout, trainer: str | None = None) -> list[Problem]:
    """What is wrong with a layout (for a trainer), all problems at once; where it is placed, with its placement too."""
    return [problem for problem, _ in _problems(question, layout, trainer)]


def require_legal(question: Question, layout: Layout, trainer: str | None = None) -> None:
    """Nothing for a legal layout (that the trainer would start with).

    Raises:
        InputError: with every broken rule and the hint of the first.
    """
    problems = _problems(question, layout, trainer)
    if len(problems) == 1:
        raise InputError(problems[0][0].what, hint=problems[0][1])
    if problems:
        raise InputError(
            f"layout `{layout}` cannot run: {len(problems)} problems",
            problems=[problem for problem, _ in problems],
            hint=problems[0][1],
        )


def _problems(question: Question, layout: Layout, trainer: str | None) -> list[tuple[Problem, str]]:
    found = [(Problem("", words.what), words.hint) for _, words in objections(question, layout)]
    if words := _recompute_objection(layout):
        found.append((Problem("", words.what), words.hint))
    found += [(Problem("", words.what), words.hint) for words in pool_objections(question, layout)]
    if layout.layers and sum(layout.layers) != question.model.num_layers:
        placed = f"`layers` places {counted(sum(layout.layers), 'block')}; the model has {question.model.num_layers}"
        found.append((Problem("", placed), "leave out `layers` to have them placed"))
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


def _degrees(axis: str, total: int, limit: int) -> str:
    """ "tp1, tp2 or tp4 divide them": the degrees up to `limit` that divide `total`."""
    fitting = [
        f"{axis}{degree}" for degree in range(1, limit + 1) if total % degree == 0 and limit % degree == 0
    ]
    return f"{either(fitting)} divide{'s' if len(fitting) == 1 else ''} them"
