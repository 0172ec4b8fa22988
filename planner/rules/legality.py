"""Legality of layouts, as named rules that the search, error messages and explanations share.

Every rule has two forms, a condition on many layouts (`broken`, a column) and a sentence for the user
(`sentence`); both read the same quantities (`q` the question, `x` columns of layouts, `y` one layout). Functions
named `_..._words` return the sentence on one rule that a layout breaks, with a hint. Rules of
software stacks and of the project's executor are in `planner.rules.stack`. A legal layout may still not fit in
memory, which the cost model decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cost_models.arrays import Bools, Ints, indivisible, product_of
from cost_models.axes.columns import LayoutColumns, exchanges_by, is_scheduled
from cost_models.axes.layout import USUAL_RING, Layout
from cost_models.axes.offload.residency import drive_bytes, host_bytes, offloads
from cost_models.axes.offload.residency import named_blocks as offloaded_by_number
from cost_models.axes.rule import (
    Row,
    Rule,
    Words,
    divisors_clause,
    objections,
    raise_problems,
    rules,
    unbroken,
)
from cost_models.axes.stages import ENDS, allowed_recompute, named_blocks
from cost_models.axes.words import EVERY
from cost_models.memory.device import usable_drive, usable_host_memory
from cost_models.question import Question
from cost_models.schedules.registry import engine_refusal, schedule_named
from cost_models.specs.choices import SCHEDULES, Recompute
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.training import NF4_BLOCK
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted, format_bytes
from planner.formats.trainers import refusals
from planner.rules.pools import pool_objections, with_mean_batch
from planner.rules.stack import STACK_RULES, split_rows


def _gpus_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a layout of another number of GPUs than the cluster has."""
    gpus, cluster = question.cluster.num_gpus, question.cluster
    text = f"layout `{layout}` uses {counted(layout.num_gpus, 'GPU')}; cluster `{cluster.name}` has {gpus:,}"
    dp, remainder = divmod(gpus, layout.tp * layout.cp * layout.pp)
    if dp and not remainder:
        return Words(text, f"dp{dp} fits")
    more_nodes, partial = divmod(layout.num_gpus - gpus, cluster.gpus_per_node)
    return Words(text, f"add {counted(more_nodes, 'node')}" if more_nodes > 0 and not partial else "")


def _divides(noun: str, count: Callable[[TransformerSpec], float]) -> dict[str, Row]:
    """Create the rule that the tensor-parallel degree divides a count of the model, such as its attention
    heads. The result maps the rule's name to (condition, sentence)."""

    def sentence(question: Question, layout: Layout) -> Words:
        """Sentence and hint for a number that tp does not divide."""
        total = int(count(question.model))
        hint = divisors_clause("tp", total, question.cluster.gpus_per_node)
        return Words(f"`tp{layout.tp}` splits {total:,} {noun}", hint)

    return {f"tp divides the {noun}": (lambda q, x: count(q.model) % x.tp != 0, sentence)}


def _splits_nf4_blocks(question: Question, x: LayoutColumns) -> Bools:
    """Whether tensor parallelism splits some nf4 quantisation block (64 weights with one scale) of each
    layout between two ranks, (N,)."""
    rows = split_rows(question, x.tp, x.etp)
    split: Bools = np.any([indivisible(width, NF4_BLOCK * degree) for _, width, degree in rows], axis=0)
    return split


def _nf4_block_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for tensor parallelism that would split blocks of nf4 elements."""
    rows = split_rows(question, layout.tp, layout.expert_tp)
    cuts = [(name, width // degree) for name, width, degree in rows]
    parts = " and ".join(f"{cut:,} elements of `{name}`" for name, cut in cuts if cut % NF4_BLOCK)
    text = f"`tp{layout.tp}` splits blocks of {NF4_BLOCK} elements that share a scale of nf4"
    return Words(f"{text}: a rank has rows of {parts}", "use a smaller tp, or --base-precision int8")


def _pieces(question: Question, x: LayoutColumns) -> Ints:
    """Number of pieces into which context parallelism cuts each sequence, for each layout, (N,): two per
    rank, or one if cp is 1 or all-to-alls exchange tokens for heads. Two, one from either end, make causal
    work equal."""
    return x.cp * np.where((x.cp == 1) | exchanges_by(question, x, "all-to-all"), 1, 2)


def _length_words(question: Question, layout: Layout) -> Words:
    """Sentence for a sequence length that the pieces of context parallelism do not divide."""
    length, pieces = question.training.sequence_length, int(_pieces(question, LayoutColumns.of([layout]))[0])
    return Words(f"`cp{layout.cp}` deals a sequence of {length} tokens in {pieces:,} pieces")


def _splits_odd_sequence(question: Question, x: LayoutColumns) -> Bools:
    """Whether sequence parallelism (`sp`) splits a sequence of each layout into unequal parts, as the number
    of tensor ranks does not divide its length, (N,)."""
    length, target_length = question.training.sequence_length, question.training.target_length or 0
    odd = indivisible(length, x.cp, x.tp) | indivisible(target_length, x.tp)
    return np.where(x.sp == 1, odd, False)


def _kv_heads_words(question: Question, layout: Layout) -> Words:
    """Sentence for key/value heads that the product of tp and cp does not divide, where context parallelism
    trades tokens for heads."""
    who = "`context=all-to-all`" if layout.context else f"software stack `{question.stack.name}`"
    text = f"{who} trades tokens for heads: tp{layout.tp} x cp{layout.cp} ranks share"
    return Words(f"{text} {question.model.num_kv_heads} key/value heads")


def _experts_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for experts that ep does not divide."""
    count = question.model.num_experts
    return Words(f"`ep{layout.ep}` shares {counted(count, 'expert')}", divisors_clause("ep", count, count))


def _expert_group_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for ep × etp ranks of an expert group that do not divide the tp × cp × dp ranks."""
    ranks, group_ranks = layout.tp * layout.data_ranks, layout.ep * layout.expert_tp
    text = f"ep{layout.ep} x etp{layout.expert_tp} = {group_ranks:,} ranks hold the experts of a block"
    return Words(f"{text}; tp x cp x dp has {ranks:,}", "they must divide it")


def _no_experts_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for expert parallelism in a model without experts."""
    text = f"`ep{layout.ep}`" if layout.ep > 1 else f"`etp{layout.etp}`"
    return Words(f"{text} shares experts, and model `{question.model.name}` has none", "leave it out")


def _empty_stage_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for more pipeline stages than blocks."""
    written = f"pp{layout.pp} vpp{layout.vpp}" if layout.vpp > 1 else f"pp{layout.pp}"
    has = f"makes {counted(layout.num_stages, 'stage')}; the model has"
    hint = "only the first stage and the last may have none: they have the embedding and the head"
    return Words(f"`{written}` {has} {counted(question.model.num_layers, 'block')}", hint)


def _batch_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a global batch that is not a multiple of dp × mbs."""
    batch, step_batch = question.training.global_batch, layout.dp * layout.mbs
    lower_batch = batch // step_batch * step_batch
    neighbours = f"{lower_batch} and {lower_batch + step_batch} are" if lower_batch else f"{step_batch} is"
    return Words(f"global batch {batch} is not a multiple of dp{layout.dp} x mbs{layout.mbs}", neighbours)


def _backward_update_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for updates in the backward pass with several microbatches or stages."""
    count = layout.microbatches(question.training.global_batch)
    text = "updates in the backward pass (`--optimizer-in-backward`) leave no gradients to add up: a step has one"
    return Words(f"{text} microbatch without stages, and {count} with pp{layout.pp} here", "a smaller batch")


UNPRICED_OFFLOAD = (
    "what offloading takes is not priced where adapters or preferences are trained, parts are frozen or images read,"
    " nor with this optimizer"
)


def is_offload_unpriced(question: Question) -> bool:
    """Whether the cost model cannot price offload to host memory in this training job, as it would offload
    frozen weights, or optimizer states of another size than Adam's."""
    training = question.training
    of_adam = training.optimizer in ("adamw", "sgd", "lamb")
    return not of_adam or any((training.freeze, question.model.tower, training.tuning, training.reference))


def _cpu_updates(columns: LayoutColumns) -> Bools:
    """Whether the CPU (not the GPU) updates the optimizer states of some transformer blocks in each layout,
    (N,)."""
    return (columns.offload_states > 0) | (columns.offload_streamed > 0)


def _offloaded_blocks_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for more offloaded blocks than a rank has."""
    blocks, has = counted(layout.offload.explicit_blocks, "block"), question.model.num_layers // layout.pp
    text = f"`offload` moves {blocks} of every rank; `pp{layout.pp}` gives a rank {has}"
    return Words(text, "name fewer, or leave out the count: every block")


def _outnumbers_streamed(question: Question, x: LayoutColumns) -> Bools:
    """Whether each layout has more transfer buffers (`ring`) than streamed blocks on a rank, (N,)."""
    streamed = np.minimum(x.offload_streamed, question.model.num_layers // x.pp)
    return np.where(x.offload_streamed > 0, (x.ring != USUAL_RING) & (x.ring > streamed), False)


def _ring_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a ring with more buffers than streamed blocks."""
    streamed = min(layout.offload.streamed, question.model.num_layers // layout.pp)
    text = f"`ring={layout.ring}` has more buffers than the {counted(streamed, 'block')} that are streamed"
    return Words(text, f"use `ring={streamed}` or less")


def overflows_hosts(question: Question, x: LayoutColumns, used: Sequence[Recompute] | None = None) -> Bools:
    """Whether the offloaded data of each layout overflows the memory of some host, (N,), if blocks follow the
    recompute policies `used`. With None they follow the allowed policy that offloads least."""
    pools = question.pools if offloads(x).any() or question.training.reference == "host" else ()
    excess = [host_bytes(pool, x, used) > usable_host_memory(pool.cluster) for pool in pools]
    overflows: Bools = np.any([np.zeros(len(x), np.bool_), *excess], axis=0)
    return overflows


def _overflows_drive(question: Question, x: LayoutColumns) -> Bools:
    """Whether the offloaded data of each layout overflows the drive of some host (node), (N,)."""
    pools = question.pools if x.offload_drive.any() else ()
    excess = [drive_bytes(pool, x) > usable_drive(pool.cluster) for pool in pools]
    overflows: Bools = np.any([np.zeros(len(x), np.bool_), *excess], axis=0)
    return overflows


def _host_memory_words(question: Question, layout: Layout) -> Words:
    """Sentence for offloaded data that overflow host memory."""
    columns = LayoutColumns.of([layout])
    pool = next(pool for pool in question.pools if overflows_hosts(pool, columns)[0])
    cluster, size = pool.cluster, format_bytes(float(host_bytes(pool, columns)[0]))
    text = f"`{layout.brief}` offloads {size} to the memory of each host"
    if question.training.reference == "host":
        text = f"the reference model of `{layout.brief}` takes {size} of the memory of each host"
    if cluster.host_memory is None:
        text += f", and cluster `{cluster.name}` does not say how much one has"
        return Words(text, "add `host_memory`, or say --host-memory")
    usable = f"they may fill {format_bytes(usable_host_memory(cluster))}"
    return _capacity_words(text, cluster, cluster.host_memory, usable)


def _drive_words(question: Question, layout: Layout) -> Words:
    """Sentence for optimizer states that overflow the host's drive."""
    columns = LayoutColumns.of([layout])
    pool = next(pool for pool in question.pools if _overflows_drive(pool, columns)[0])
    cluster, size = pool.cluster, format_bytes(float(drive_bytes(pool, columns)[0]))
    text = f"`{layout.brief}` keeps {size} on the drive of each host"
    if cluster.drive is None:
        hint = "add `drive: {capacity: 30 TB, read: 20 GB/s, write: 10 GB/s}` to its file"
        return Words(f"{text}, and cluster `{cluster.name}` does not say that one has any", hint)
    usable = f"states may fill {format_bytes(usable_drive(cluster))}"
    return _capacity_words(text, cluster, cluster.drive.capacity, usable)


def _capacity_words(text: str, cluster: ClusterSpec, size: float, usable: str) -> Words:
    """Sentence that offloaded data overflow a host, with the size of the host's memory or drive and the
    usable part."""
    have = f"of the {format_bytes(size)} of a host of `{cluster.name}`"
    return Words(f"{text}; {have} {usable}", "use more nodes, or offload fewer blocks")


_RULES: dict[str, Row] = {
    "uses every GPU": (lambda q, x: product_of(x.tp, x.cp, x.pp, x.dp) != q.cluster.num_gpus, _gpus_words),
    **_divides("attention heads", lambda m: m.num_heads * (m.attention_share > 0)),
    **_divides("key/value heads", lambda m: m.num_kv_heads * (m.attention_share > 0)),
    **_divides("columns of the MLP", lambda m: m.ffn_hidden_size * (m.dense_share > 0)),
    **_divides("columns of the shared experts", lambda m: m.shared_expert_ffn_hidden_size),
    "etp divides an expert": (
        lambda q, x: q.model.has_experts & (q.model.moe_ffn_hidden_size % x.etp != 0),
        "`etp{layout.expert_tp}` splits {model.moe_ffn_hidden_size:,} columns of an expert",
        "`etp1` leaves experts whole",
    ),
    "ep divides the experts": (lambda q, x: q.model.num_experts % x.ep != 0, _experts_words),
    "expert groups divide the ranks of a stage": (
        lambda q, x: q.model.has_experts & indivisible(product_of(x.tp, x.cp, x.dp), x.ep, x.etp),
        _expert_group_words,
    ),
    "stages between the ends have blocks": (
        lambda q, x: product_of(x.pp, x.vpp) > q.model.num_layers + ENDS,
        _empty_stage_words,
    ),
    "the batch divides": (lambda q, x: indivisible(q.training.global_batch, x.dp, x.mbs), _batch_words),
    "ZeRO needs replicas": (
        lambda q, x: (x.zero > 0) & (x.dp == 1) & (x.cp == 1),
        "`zero{layout.zero}` shards over dp, which is 1 here",
        "write zero0",
    ),
    "hybrid sharding needs ZeRO": (
        lambda q, x: (x.zero == 0) & (x.shard != x.replicas),
        "`shard{layout.shard}` says what ZeRO shards over, and zero0 shards nothing",
        "write zero1",
    ),
    "shard groups divide the replicas": (
        lambda q, x: indivisible(product_of(x.dp, x.cp), x.shard),
        "`shard{layout.shard}` does not divide the {layout.data_ranks:,} ranks of dp x cp",
    ),
    "sequence parallelism needs tensor parallelism": (
        lambda q, x: (x.sp == 1) & (x.tp == 1),
        "`sp` splits the sequence over tp, and tp{layout.tp} has one rank",
        "leave out `sp`, or use tp2 or more",
    ),
    "tp divides the sequence": (
        _splits_odd_sequence,
        "`sp` splits a sequence of {training.sequence_length} tokens over {layout.sequence_ranks}",
    ),
    "cp divides the sequence": (lambda q, x: q.training.sequence_length % _pieces(q, x) != 0, _length_words),
    "cp divides the heads it trades": (
        lambda q, x: exchanges_by(q, x, "all-to-all") & indivisible(q.model.num_kv_heads, x.cp, x.tp),
        _kv_heads_words,
    ),
    "experts are for a mixture": (
        lambda q, x: (not q.model.has_experts) & ((x.ep > 1) | (x.etp != x.tp)),
        _no_experts_words,
    ),
    "chunks need a pipeline": (
        lambda q, x: (x.vpp > 1) & (x.pp == 1),
        "`vpp{layout.vpp}` interleaves chunks over pp, which is 1 here",
        "leave out `vpp`",
    ),
    "the schedule needs a pipeline": (
        lambda q, x: (x.pp == 1) & (x.vpp == 1) & ~is_scheduled(x, ("1f1b",)),
        "`schedule={layout.schedule}` needs pp2 or more",
        "leave out `schedule`",
    ),
    **_divides("groups of heads with states", lambda m: m.recurrence.split_units if m.recurrence else 0),
    **_divides("heads of the tower", lambda m: m.tower.num_heads if m.tower else 0),
    **_divides("columns of the tower's MLP", lambda m: m.tower.ffn_hidden_size if m.tower else 0),
    "tp keeps quantisation blocks whole": (_splits_nf4_blocks, _nf4_block_words),
    "cp divides the heads of states": (
        lambda q, x: (x.cp > 1) & indivisible(getattr(q.model.recurrence, "heads", 0), x.cp, x.tp),
        "a scan's tokens are traded for heads: tp{layout.tp} x cp{layout.cp} ranks share"
        " {model.recurrence.heads} heads of its {model.recurrence.title}",
    ),
    "cp splits one sequence": (
        lambda q, x: (x.cp > 1) & bool(q.model.stacks or q.model.tower or q.model.diffusion),
        "`cp{layout.cp}` splits one sequence, and `{model.name}` is priced for whole ones alone",
        "use cp1",
    ),
    "updates in the backward pass have one microbatch": (
        lambda q, x: q.training.optimizer_in_backward & (x.pp * x.microbatches(q.training.global_batch) != 1),
        _backward_update_words,
    ),
    "an indexer picks from all keys": (
        lambda q, x: exchanges_by(q, x, "ring") & (q.model.window_kind == "picked"),
        "`cp{layout.cp}` passes keys round a ring, and an indexer of `{model.name}` picks from all of them",
        "`context=all-gather` has them together",
    ),
    "a rank has the blocks that it offloads": (
        lambda q, x: offloaded_by_number(x) > q.model.num_layers // x.pp,
        _offloaded_blocks_words,
    ),
    "offloading is priced of all parameters and of moments in full": (
        lambda q, x: offloads(x) & is_offload_unpriced(q),
        UNPRICED_OFFLOAD,
        "leave out `offload`",
    ),
    "activations move of every block": (
        lambda q, x: (x.offload_activations > 0) & (x.offload_activations < EVERY),
        "the activations of all blocks move, or of none",
        "write `activations` without a count",
    ),
    "the drive takes all states that it takes": (
        lambda q, x: (x.offload_drive > 0) & (x.offload_drive < EVERY),
        "all states that the CPU updates lie on the drive, or none",
        "write `drive` without a count",
    ),
    "LAMB updates on the device": (
        lambda q, x: _cpu_updates(x) & (q.training.optimizer == "lamb"),
        "`optimizer: lamb` scales a parameter by the norm of all of it, which its ranks add up before they change it;"
        " the CPU updates blocks one after another as their gradients come",
        "use `offload=parked`, whose states the device updates, or `optimizer: adamw`",
    ),
    "the drive is for states that the CPU updates": (
        lambda q, x: (x.offload_drive > 0) & ~_cpu_updates(x),
        "`offload` has states on the drive and none that the CPU updates",
        "add `states` or `streamed`: `offload=states/drive`",
    ),
    "a ring is for streamed weights": (
        lambda q, x: (x.offload_streamed == 0) & (x.ring != USUAL_RING),
        "`ring={layout.ring}` says how many weights are streamed at once",
    ),
    "a ring has no more buffers than streamed blocks": (_outnumbers_streamed, _ring_words),
    "tensor overlap splits the sequence": (
        lambda q, x: (x.overlap_tp == 1) & (x.sp == 0),
        "`overlap=tp` hides gathers and scatters of parts of a sequence, and without `sp` there are none",
        "write `sp`",
    ),
}
RULES = (*rules(_RULES), *STACK_RULES)
"""Rules of model, cluster and stack, except `SCHEDULE_RULE` and `LATE_RULES`, in the order in which broken
rules are reported."""

_SIZED = ("the batch divides", "updates in the backward pass have one microbatch")
SIZED_RULES = tuple(rule for rule in RULES if rule.name in _SIZED)
"""Rules that depend on the microbatch size but not on the schedule, which the search checks for every
size."""


def _schedule_refuses(question: Question, x: LayoutColumns) -> Bools:
    """Whether the pipeline schedule of each layout cannot run with the layout's pp, vpp and number of
    microbatches, (N,). The scalar rule of a schedule is evaluated once for every distinct (schedule, pp, vpp,
    microbatches)."""
    shapes = np.stack([x.schedule, x.pp, x.vpp, x.microbatches(question.training.global_batch)], axis=1)
    distinct, index = np.unique(shapes, axis=0, return_inverse=True)
    refused = [
        engine_refusal(SCHEDULES[schedule], *shape) is not None for schedule, *shape in distinct.tolist()
    ]
    return np.array(refused, dtype=np.bool_)[index.reshape(-1)]


SCHEDULE_RULE = Rule(
    "the schedule can run",
    _schedule_refuses,
    lambda q, y: Words(
        engine_refusal(y.schedule, y.pp, y.vpp, y.microbatches(q.training.global_batch)) or ""
    ),
)
"""Rule that the pipeline schedule can run, checked last, as it needs a batch that divides into
microbatches."""


def _is_host_unknown(question: Question) -> bool:
    """Whether the host memory of some pool of GPUs is unknown."""
    return any(pool.cluster.host_memory is None for pool in question.pools)


def _is_drive_unknown(question: Question) -> bool:
    """Whether the drive of some pool's hosts is unknown."""
    return any(pool.cluster.drive is None for pool in question.pools)


LATE_RULES = (
    Rule("hosts hold what is offloaded", overflows_hosts, _host_memory_words, unknown=_is_host_unknown),
    Rule("drives hold what lies on them", _overflows_drive, _drive_words, unknown=_is_drive_unknown),
)
"""Rules on the capacity of host memory and drives. They need prices, so they are checked only for layouts
that break no other rule."""


def legal_rows(question: Question, x: LayoutColumns, *, shaped: bool = True, hosts: bool = True) -> Bools:
    """Whether each layout obeys all rules, (N,). Unless `shaped`, rules on schedule and microbatch size are
    left out. Unless `hosts`, rules on host memory and drives are left out."""
    legal = unbroken((rule for rule in RULES if shaped or rule not in SIZED_RULES), question, x)
    for rule in [*LATE_RULES * hosts, *[SCHEDULE_RULE] * shaped]:
        candidates = np.flatnonzero(legal)
        legal[candidates] = unbroken([rule], question, x.rows(candidates))
    return legal


def check(question: Question, layout: Layout, trainer: str | None = None, hosts: bool = True) -> list[Words]:
    """Sentences about the rules that a layout breaks, including rules on its placement and the rules of
    `trainer`, if given; empty if the layout is legal. With `hosts` false, host memory and drives of known
    size may overflow."""
    mean_question = with_mean_batch(question, layout)
    problems = objections(RULES, mean_question, layout)
    if not problems:
        late = _late_objections(mean_question, layout)
        problems = [words for rule, words in late if hosts or (rule.unknown and rule.unknown(mean_question))]
        problems += objections([SCHEDULE_RULE], mean_question, layout)
    problems += _objections_without_columns(question, layout)
    return problems if trainer is None else [*problems, *refusals(trainer, question, layout)]


def require_legal(question: Question, layout: Layout, trainer: str | None = None, hosts: bool = True) -> None:
    """Raise InputError unless a layout is legal and `trainer`, if given, can run it. With `hosts`, host
    memory of known size must hold its offloaded data.

    Raises:
        InputError: with every broken rule and the hint of the first.
    """
    problems = check(question, layout, trainer, hosts=hosts)
    raise_problems(problems, f"layout `{layout}` cannot run: {len(problems)} problems")


def require_offload_room(question: Question, layout: Layout) -> None:
    """Raise InputError unless host memory and drives have room for the data that a layout offloads to them.

    Raises:
        InputError: with the first broken rule.
    """
    raise_problems([words for _, words in _late_objections(question, layout)][:1], "")


def _late_objections(question: Question, layout: Layout) -> list[tuple[Rule, Words]]:
    """Rules on host memory and drives that a layout breaks under the recompute policies of its stages, each
    with its sentence."""
    columns = LayoutColumns.of([layout])
    pairs = [(rule, question.recomputing(policy)) for rule in LATE_RULES for policy in layout.policies]
    broken = {rule.name: (rule, own) for rule, own in pairs if np.all(rule.broken(own, columns))}
    return [(rule, rule.sentence(own, layout)) for rule, own in broken.values()]


def _objections_without_columns(question: Question, layout: Layout) -> Iterator[Words]:
    """Yield sentences on broken rules that `LayoutColumns` cannot express: on recompute policies, pools and
    blocks per stage."""
    num_layers, blocks = question.model.num_layers, sum(layout.layers)
    if refused := sorted({*layout.policies} - {*allowed_recompute(layout.schedule)}):
        splits = f"`schedule={layout.schedule}`, which splits backward passes"
        text = f"`recompute={refused[0]}` does not go with {splits}: PyTorch would recompute for every piece of them"
        yield Words(text, "leave out `recompute`, or use another schedule")
    yield from pool_objections(question, layout)
    if not layout.layers:
        return
    named_count = layout.offload.explicit_blocks
    rank_of = schedule_named(layout.schedule).rank_of_stage(layout.pp, layout.vpp)
    fewest_blocks = int(np.bincount(rank_of, weights=layout.layers).min())
    if blocks != num_layers:
        complaint = f"`layers` places {counted(blocks, 'block')}; the model has {num_layers}"
        yield Words(complaint, "leave out `layers` to have them placed")
    elif named_count > fewest_blocks:
        text = f"`offload` names {counted(named_count, 'block')} of every rank; `layers` gives one {fewest_blocks}"
        yield Words(text, "name fewer, or spread blocks evenly")
    if 0 in layout.layers[1:-1]:
        text = f"`layers` leaves stage {layout.layers.index(0, 1)} empty; only the first and the last may be"
        yield Words(text, "they have the embedding and the head")
    for stage, (blocks, mix) in enumerate(zip(layout.layers, layout.stage_recompute, strict=True)):
        if (named_count := named_blocks(mix)) > blocks:
            text = f"`recompute={mix}` names {counted(named_count, 'block')}; stage {stage} has {blocks}"
            yield Words(text, "name fewer, or leave out the number")
