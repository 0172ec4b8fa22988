"""What a pipeline stage costs, as affine functions of the layers it holds: one record for one layout and for a million.

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
the whole model, or draws clouds of points (`cost_models.pipeline.terms.kinds`).

`stage_costs` is the one place where parts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns, runs_behind
from cost_models.axes.distinct import over_distinct
from cost_models.memory.device import memory_limit
from cost_models.pipeline.terms import memory_terms as memory
from cost_models.pipeline.terms.kinds import OF_BLOCKS, by_sort, each_kind
from cost_models.pipeline.terms.memory_terms import MemoryCoefficients, MemoryTerms, memory_terms
from cost_models.pipeline.time_pieces import total as total_seconds
from cost_models.pipeline.time_terms import TimeCoefficients, TimeTerms, time_terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import REGISTRY
from cost_models.specs.model.kinds import Kinds


@dataclass(frozen=True, kw_only=True)
class StageCosts(MemoryCoefficients[Array], TimeCoefficients[Array]):
    """The columns; each has shape (N,) unless it says (N, P). Seconds and bytes."""

    memory_limit: Array
    kinds: tuple[StageCosts, ...] = ()
    """As if all blocks were of one kind, for each kind, where there are several; the rest is of the mean block."""

    def __len__(self) -> int:
        return len(self.layer_forward)

    @classmethod
    def of_kinds(cls, each: Sequence[StageCosts], kinds: Kinds) -> StageCosts:
        """Of the mean block, from costs that differ in blocks alone."""
        if len(each) == 1:
            return each[0]
        mean = {name: kinds.mean([getattr(one, name) for one in each]) for name in OF_BLOCKS}
        return replace(each[0], **mean, kinds=tuple(each))

    def rows(self, index: Ints | slice) -> StageCosts:
        """The same columns for some of the layouts."""
        kinds = tuple(one.rows(index) for one in self.kinds)
        return StageCosts(**{name: getattr(self, name)[index] for name in COLUMNS}, kinds=kinds)

    @property
    def each_kind(self) -> tuple[StageCosts, ...]:
        """As if all blocks were of one kind, for each kind."""
        own = [{name: getattr(one, name) for name in OF_BLOCKS} for one in self.kinds]
        return tuple(replace(self, kinds=(), **columns) for columns in own) or (self,)

    @property
    def in_sorts(self) -> StageCosts:
        """Columns of blocks by sort (N, K·P), which price placements; of one kind as they are."""
        return self._joined(by_sort)

    @property
    def lightest(self) -> StageCosts:
        """As if every block had the least of any kind in each column: no block has less."""
        return self._joined(lambda values: np.min(values, axis=0))

    def _joined(self, join: Callable[[list[Array]], Array]) -> StageCosts:
        if not self.kinds:
            return self
        joined = {name: join([getattr(one, name) for one in self.kinds]) for name in OF_BLOCKS}
        return replace(self, kinds=(), **joined)


COLUMNS = tuple(field.name for field in fields(StageCosts) if field.name != "kinds")
"""Names of the columns."""


def stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once. Raises InputError: the GPU has no rate for the training precision."""
    assert not isinstance(question, MixedQuestion), (
        "ranks in several pools have no one price: see `pool_terms`"
    )
    names = [field.name for field in fields(LayoutColumns)]
    return over_distinct(as_priced(question, columns), names, lambda rows: _stage_costs(question, rows))


def _stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    limit = memory_limit(question, columns)
    times, memories = each_kind(question, columns, time_terms), each_kind(question, columns, memory_terms)
    each = [add_up(*own, limit) for own in zip(times, memories, strict=True)]
    return StageCosts.of_kinds(each, question.kinds)


def as_priced(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """The same with as few different rows as there are different prices of their stages.

    Chunks and schedules make the pipeline; of the coefficients of one stage few know of them: a chunk is the part that
    data parallelism cannot hide.
    """
    stack, vpp = question.stack, columns.vpp
    if not stack.retains_boundary_tensors:
        always = stack.reduces_chunks_in_turn and stack.overlap_gradient_reduce
        vpp = np.where(runs_behind(columns, "dp", always=always), vpp, 1)
    return replace(columns, vpp=vpp, schedule=_PRICED_AS[columns.schedule])


def _priced_as() -> Ints:
    """The first schedule whose stages are priced by the same rules, for each schedule."""
    traits = [(own.splits == "always", own.v_shaped, own.keeps_all_logits) for own in REGISTRY.values()]
    return np.array([traits.index(own) for own in traits])


_PRICED_AS = _priced_as()


def time_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """The seconds alone, for who asks nothing else; every byte is zero.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    none = np.zeros(len(columns))
    space = {field.name: none for field in fields(MemoryTerms)}
    each = [
        StageCosts(**_seconds(own), **space, memory_limit=none, kinds=())
        for own in each_kind(question, columns, time_terms)
    ]
    return StageCosts.of_kinds(each, question.kinds)


def byte_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """The bytes alone; every second is zero."""
    names = [field.name for field in fields(LayoutColumns)]
    return over_distinct(as_priced(question, columns), names, lambda rows: _byte_costs(question, rows))


def _byte_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    limit, none = memory_limit(question, columns), np.zeros(len(columns))
    seconds = {field.name: none for field in fields(TimeTerms)}
    each = [
        StageCosts(**seconds, **_space(own), memory_limit=limit, kinds=())
        for own in each_kind(question, columns, memory_terms)
    ]
    return StageCosts.of_kinds(each, question.kinds)


def add_up(times: TimeTerms, memories: MemoryTerms, limit: Array) -> StageCosts:
    """Sum each coefficient over its parts; `limit` (N,) is what a device's peak may reach."""
    return StageCosts(**_seconds(times), **_space(memories), memory_limit=limit, kinds=())


def _seconds(times: TimeTerms) -> dict[str, Array]:
    return {field.name: total_seconds(getattr(times, field.name)) for field in fields(TimeTerms)}


def _space(memories: MemoryTerms) -> dict[str, Array]:
    return {field.name: memory.total(getattr(memories, field.name)) for field in fields(MemoryTerms)}
