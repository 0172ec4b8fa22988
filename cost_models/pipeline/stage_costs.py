"""Costs of a pipeline stage as affine functions of its layers: one record for one layout and for a million.

Everything downstream (estimate, bounds, ILP, timeline) reads these columns and nothing else, so no second model can
drift from the first. Shape legend: N layouts (rows), P recompute policies in the order of `RECOMPUTE_POLICIES`.

A virtual stage with `n` blocks under policy `q` takes, for one microbatch,

    forward  = stage_forward  + n · layer_forward         + embedding_forward  [first] + head_forward  [last]
    backward = stage_backward + n · layer_backward[q]     + embedding_backward [first] + head_backward [last]

A schedule that splits the backward pass runs its part towards the weights as an action of its own,

    weight = stage_weight + n · layer_weight + head_weight [last]          input = backward + stage_weight − weight

but the first stage, whose input wants no gradient, runs all of backward there: its input half takes `stage_backward`.
A pass that such a schedule leaves whole takes input + weight. (`stage_weight` is zero where few are split.)

A stage hands its result on after a delay of `p2p` (none inside one rank). Sends that block the sender are already
inside `stage_forward` / `stage_backward`. `first` is virtual stage 0, `last` is virtual stage pp·vpp − 1.

After its last backward a rank with N_r blocks in all still needs, before and for the optimizer step,

    sync      = rank_sync + N_r · layer_sync + embedding_sync [holds first] + head_sync [holds last]
    optimizer = rank_optimizer + N_r · layer_optimizer + embedding_optimizer [first] + head_optimizer [last]

    step = max over ranks (end of its last action + sync) + max over ranks (optimizer) + step_overhead

Memory of a rank, for each set of live (forwarded, not yet backwarded) microbatches w_c of its chunks c, of which u_c
are between the halves of their backward pass, that is maximal in the schedule, must stay below `memory_limit`:

    training  = static + Σ_c n_c (layer_static + w_c · layer_activation[q_c] + u_c · layer_pending [not first stage])
                + [holds first] (embedding_static + w_0 · embedding_activation)
                + [holds last]  (head_static + w_last · head_activation + u_last · head_pending)
                + max(max_c working[q_c] over its chunks, [holds last] head_moment)
    optimizer = static + rank_update + Σ_c n_c (layer_static + layer_update)
                + [first] (embedding_static + embedding_update) + [last] (head_static + head_update)

Where blocks are of several kinds `n · layer` is a sum over them; coefficients of the mean block are for what sums over
the whole model, or draws clouds of points (`cost_models.pipeline.terms`).

`stage_costs` is the one place where parts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns, is_overlapped, over_distinct
from cost_models.memory.device import memory_limit
from cost_models.pipeline.terms import (
    AXES,
    OF_BLOCKS,
    by_sort,
    each_kind,
    memory_terms,
    terms_by_kind,
    times_of_kinds,
)
from cost_models.pipeline.time_pieces import Terms, total
from cost_models.question import Question
from cost_models.schedules.registry import REGISTRY
from cost_models.specs.kinds import Kinds


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """Columns of seconds, each (N,) unless it says (N, P)."""

    layer_forward: Array
    layer_backward: Array
    """(N, P): includes what the policy recomputes and the communication that is not hidden."""
    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array
    stage_forward: Array
    stage_backward: Array
    layer_weight: Array
    """The part of `layer_backward` towards the weights, without recompute."""
    head_weight: Array
    stage_weight: Array
    """Seconds by which a pass is longer in two actions than in one."""
    p2p: Array
    """Delay between the end of an action and the start of its successor on another rank."""
    layer_sync: Array
    embedding_sync: Array
    head_sync: Array
    rank_sync: Array
    layer_optimizer: Array
    embedding_optimizer: Array
    head_optimizer: Array
    rank_optimizer: Array
    step_overhead: Array


@dataclass(frozen=True, kw_only=True)
class StageCosts(StageSeconds):
    """All columns, seconds and bytes; each has shape (N,) unless it says (N, P)."""

    static: Array
    layer_static: Array
    layer_activation: Array
    """(N, P): kept for the backward pass, per block and live microbatch."""
    layer_pending: Array
    """Gradients kept for the products towards the weights, per block and microbatch between the halves of backward."""
    layer_update: Array
    rank_update: Array
    """Bytes that the optimizer step of a rank holds besides, whatever its blocks."""
    embedding_static: Array
    embedding_activation: Array
    embedding_update: Array
    head_static: Array
    head_activation: Array
    head_pending: Array
    head_update: Array
    working: Array
    """(N, P): the largest temporary set of one block (recomputed activations, gathered weights, gradients)."""
    head_moment: Array
    """Held at once while the loss of a microbatch runs forward and backward: no block runs meanwhile."""
    memory_limit: Array
    kinds: tuple[dict[str, Array], ...] = ()
    """The columns of blocks, `OF_BLOCKS`, of each kind, where there are several; the others are of the mean block."""

    def __len__(self) -> int:
        return len(self.layer_forward)

    def of_kinds(self, each: Iterable[Mapping[str, Array]], kinds: Kinds) -> StageCosts:
        """Costs with block columns for each kind; columns that `each` lacks are the same for all kinds."""
        if kinds.number == 1:
            return self
        own = tuple({name: one.get(name, getattr(self, name)) for name in OF_BLOCKS} for one in each)
        mean = {name: kinds.mean([one[name] for one in own]) for name in OF_BLOCKS}
        return replace(self, **mean, kinds=own)

    def rows(self, index: Ints | slice) -> StageCosts:
        """Costs of some of the layouts."""
        kinds = tuple({name: value[index] for name, value in one.items()} for one in self.kinds)
        return StageCosts(**{name: getattr(self, name)[index] for name in COLUMNS}, kinds=kinds)

    @property
    def each_kind(self) -> tuple[StageCosts, ...]:
        """Costs if all blocks were of one kind, for each kind."""
        return tuple(replace(self, kinds=(), **own) for own in self.kinds) or (self,)

    @property
    def in_sorts(self) -> StageCosts:
        """Columns of blocks by sort (N, K·P), which price placements; of one kind as they are."""
        return self._joined(by_sort)

    @property
    def lightest(self) -> StageCosts:
        """Costs whose block columns are the minimum over the kinds: a lower bound for every block."""
        return self._joined(lambda values: np.min(values, axis=0))

    def _joined(self, join: Callable[[list[Array]], Array]) -> StageCosts:
        if not self.kinds:
            return self
        joined = {name: join([own[name] for own in self.kinds]) for name in OF_BLOCKS}
        return replace(self, kinds=(), **joined)


SECONDS = tuple(field.name for field in fields(StageSeconds))
COLUMNS = tuple(field.name for field in fields(StageCosts) if field.name != "kinds")
BYTES = tuple(name for name in COLUMNS if name not in (*SECONDS, "memory_limit"))
"""Names of the columns: of seconds, all, of bytes."""


def stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once. Raises InputError: the GPU has no rate for the training precision."""
    assert not question.has_pools, "ranks in several pools have no one price: see `pool_terms`"
    return over_distinct(
        as_priced(question, columns),
        AXES,
        lambda rows: _costs(
            question, rows, terms_by_kind(question, rows), memory_limit=memory_limit(question, rows)
        ),
    )


def time_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price the seconds of N layouts; every byte is zero.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    return _costs(question, columns, times_of_kinds(question, columns))


def byte_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price the bytes of N layouts; every second is zero."""
    return over_distinct(
        as_priced(question, columns),
        AXES,
        lambda rows: _costs(
            question, rows, each_kind(question, rows, memory_terms), memory_limit=memory_limit(question, rows)
        ),
    )


def _costs(
    question: Question, columns: LayoutColumns, by_kind: Sequence[Terms], **limit: Array
) -> StageCosts:
    """Columns of the terms of each kind of block; zero where these have none."""
    zeros = dict.fromkeys(COLUMNS, np.zeros(len(columns)))
    costs = StageCosts(**zeros | add_up(by_kind[-1]) | limit, kinds=())
    of_blocks = ({name: terms[name] for name in OF_BLOCKS if name in terms} for terms in by_kind)
    return costs.of_kinds(map(add_up, of_blocks), question.kinds)


def add_up(terms: Terms) -> dict[str, Array]:
    """Sum of the parts of each coefficient."""
    return {name: total(term) for name, term in terms.items()}


def costs_of(terms: Terms, limit: Array) -> StageCosts:
    """Sum each coefficient over its parts; `limit` (N,) is what a device's peak may reach."""
    return StageCosts(**add_up(terms), memory_limit=limit, kinds=())


def as_priced(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """Columns reduced to the axes that stage prices depend on, so that few rows differ.

    Chunks and schedules make the pipeline; of the coefficients of one stage few know of them: a chunk is the part that
    data parallelism cannot hide.
    """
    stack, vpp = question.stack, columns.vpp
    if not stack.torch_pipelining:
        always = stack.reduces_chunks_in_turn and stack.overlap_gradient_reduce
        vpp = np.where(is_overlapped(columns, "dp", default=always), vpp, 1)
    return replace(columns, vpp=vpp, schedule=_PRICED_AS[columns.schedule])


_TRAITS = [(own.splits == "always", own.v_shaped, own.keeps_all_logits) for own in REGISTRY.values()]
_PRICED_AS = np.array([_TRAITS.index(traits) for traits in _TRAITS])
"""The first schedule whose stages are priced by the same rules, for each schedule."""
