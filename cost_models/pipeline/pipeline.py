"""Step time and peak memory of one pipeline for any placement of blocks on its stages, computed from its
schedule and the costs of its ranks.

The formulas are those of `stage_costs`, for one placement or a batch, on ranks with equal costs or, in
several pools, with different costs.

A rank's memory is that of the fullest moment of its step: one at which its live microbatches are maximal in
the schedule, or the optimizer step.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, C chunks of a rank, P recompute
policies, K moments, Q parts in the order of `MEMORY_PARTS`, or only their total. A placement is its blocks
(S, P), the number of each stage under each policy, or with several kinds (S, K·P), by sort: a kind under a
policy (`stage_costs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.estimate import Breakdown
from cost_models.pipeline.seconds import MEMORY_PARTS, Term
from cost_models.pipeline.stage_costs import BYTES, StageCosts
from cost_models.schedules.actions import ActionTable, peak_moments
from cost_models.schedules.registry import SPLIT_BACKWARD, schedule_named, shortened_table
from cost_models.schedules.timeline import Timeline, compile_timeline
from cost_models.specs.choices import Schedule


def stacked_parts(term: Term, parts: Iterable[str], axis: int) -> Array:
    """Stack the values of the named `parts` of a term along a new `axis`, with zeros for absent parts. All
    have an axis P of recompute policies if any part has one."""
    policies = max(value.ndim for value in term.values()) > 1
    values = {part: value[:, None] if policies and value.ndim == 1 else value for part, value in term.items()}
    shape = np.broadcast_shapes(*(value.shape for value in values.values()))
    return np.stack([np.broadcast_to(values.get(part, np.zeros(1)), shape) for part in parts], axis=axis)


class RankMemory:
    """Memory model of a pipeline: peak bytes of each rank for any placement of blocks on stages."""

    def __init__(self, columns: Mapping[str, Array], table: ActionTable) -> None:
        """Store the memory coefficients `columns` by name, and find the moments at which memory can peak in
        the schedule `table`. Each coefficient is (1 or R, Q) or, with recompute policies, (1 or R, P, Q)."""
        self._x = {name: np.broadcast_to(size, (table.pp, *size.shape[1:])) for name, size in columns.items()}
        self._stages_RC = table.schedule.stages_of_rank(table.pp, table.vpp)
        self._last = int(table.rank_of_stage[-1])
        live, pending = peak_moments(table)
        self._live_RKC = _stacked_moments(live)
        self._pending_RKC = _stacked_moments(pending) if table.schedule.splits != "never" else None

    def peaks(self, blocks_SP: Ints) -> Array:
        """Peak bytes of each pipeline rank over the step, (..., R)."""
        return np.asarray(self.moments(blocks_SP).sum(axis=-1).max(axis=-1))

    def breakdowns(self, blocks_SP: Ints) -> tuple[Breakdown, ...]:
        """Bytes by part (weights, activations ...) of each pipeline rank at its memory peak, for one
        placement."""
        peaks_RQ = _largest_set(self.moments(blocks_SP)).tolist()
        return tuple(Breakdown(zip(MEMORY_PARTS, peak_Q, strict=True)) for peak_Q in peaks_RQ)

    def moments(self, blocks_SP: Ints) -> Array:
        """Bytes by part of each pipeline rank at every moment of a step at which memory can peak, (..., R, K
        + 1, Q); the last moment is the optimizer step."""
        x = self._x
        blocks_RCP = blocks_SP[..., self._stages_RC, :].astype(np.float64)
        blocks_R1P = blocks_RCP.sum(axis=-2, keepdims=True)
        held_R1Q = self._static_bytes(blocks_R1P)
        update_R1Q = held_R1Q + x["rank_update"][:, None] + self._bytes_of_blocks("layer_update", blocks_R1P)
        update_R1Q[..., 0, :, :] += x["embedding_update"][0]
        update_R1Q[..., self._last, :, :] += x["head_update"][self._last]
        training_RKQ = held_R1Q + self._bytes_of_blocks("layer_activation", self._live_RKC @ blocks_RCP)
        if self._pending_RKC is not None:
            waiting_RCP = blocks_RCP.copy()
            waiting_RCP[..., 0, 0, :] = 0.0  # the first stage runs no input half
            training_RKQ += self._bytes_of_blocks("layer_pending", self._pending_RKC @ waiting_RCP)
            head_K1 = self._pending_RKC[self._last, :, -1:]
            training_RKQ[..., self._last, :, :] += head_K1 * x["head_pending"][self._last]
        self._add_end_activations(training_RKQ)
        training_RKQ += self._working_bytes(blocks_RCP)[..., None, :]
        return np.concatenate([training_RKQ, update_R1Q], axis=-2)

    def _bytes_of_blocks(self, name: str, blocks_RKP: Array) -> Array:
        """Bytes of each rank's blocks by part of memory, (..., R, K, Q), from the coefficient `name` in bytes
        per block. `blocks_RKP` is the number of blocks under each recompute policy."""
        bytes_per_block = self._x[name]
        if bytes_per_block.ndim == 2:  # the same under all policies
            return np.asarray(blocks_RKP.sum(-1, keepdims=True) * bytes_per_block[:, None])
        return np.asarray(blocks_RKP @ bytes_per_block)

    def _static_bytes(self, blocks_R1P: Array) -> Array:
        """Bytes by part that each rank holds throughout the step, (..., R, 1, Q)."""
        held_R1Q: Array = self._x["static"][:, None] + self._bytes_of_blocks("layer_static", blocks_R1P)
        held_R1Q[..., 0, :, :] += self._x["embedding_static"][0]
        held_R1Q[..., self._last, :, :] += self._x["head_static"][self._last]
        return held_R1Q

    def _add_end_activations(self, training_RKQ: Array) -> None:
        """Add to `training_RKQ`, in bytes, the activations of live microbatches in embedding and head."""
        x, last, live_RKC = self._x, self._last, self._live_RKC
        training_RKQ[..., 0, :, :] += live_RKC[0, :, :1] * x["embedding_activation"][0]
        training_RKQ[..., last, :, :] += live_RKC[last, :, -1:] * x["head_activation"][last]

    @property
    def max_live(self) -> Array:
        """Maximum number of live microbatches (forward pass done, backward pass not yet) of each rank, (R,),
        for schedules with one chunk a rank."""
        return np.asarray(self._live_RKC.max(axis=(1, 2)))

    def peaks_besides_blocks(self, layers_R: Ints, policies: Sequence[int]) -> Array:
        """Peak bytes of each rank during the passes, (..., R), without activations that blocks keep for the
        backward pass. `layers_R` are blocks per rank, `policies` the recompute policies in use; for schedules
        with one chunk a rank."""
        used_RCP = np.zeros((len(self._live_RKC), 1, self._x["working"].shape[1]))
        used_RCP[..., policies] = 1.0
        held_R1Q = self._static_bytes(layers_R[..., None, None].astype(np.float64))
        training_RKQ = held_R1Q + np.zeros((self._live_RKC.shape[1], 1))
        self._add_end_activations(training_RKQ)
        training_RKQ += self._working_bytes(used_RCP)[:, None, :]
        return np.asarray(training_RKQ.sum(axis=-1).max(axis=-1))

    def _working_bytes(self, blocks_RCP: Array) -> Array:
        """Bytes by part of each rank's largest set of temporary tensors (of a block or of the loss), (..., R,
        Q)."""
        used_RP: Bools = np.asarray(blocks_RCP.any(axis=-2))
        working_RQ = _largest_set(np.where(used_RP[..., None], self._x["working"], 0.0))
        last_Q, head_Q = working_RQ[..., self._last, :], self._x["head_moment"][self._last]
        last_Q[...] = _largest_set(np.stack(np.broadcast_arrays(last_Q, head_Q), axis=-2))
        return working_RQ


def _largest_set(sets: Array) -> Array:
    """Select the set of tensors with the most bytes, (..., Q), among S sets, (..., S, Q)."""
    largest = sets.sum(axis=-1).argmax(axis=-1)[..., None, None]
    return np.take_along_axis(sets, largest, axis=-2)[..., 0, :]


def _stacked_moments(profiles: Sequence[Ints]) -> Array:
    """Stack each rank's counts of live microbatches, (moments, C), into one array, (R, K, C). Ranks with
    fewer moments repeat the last moment."""
    moments = np.arange(max(map(len, profiles)))
    return np.stack([one[np.minimum(moments, len(one) - 1)] for one in profiles]).astype(np.float64)


Column = Callable[[str], Array]
"""Function from a coefficient's name to its values on every stage (..., S) or, with recompute policies, (...,
S, P)."""


@dataclass(frozen=True)
class Pipeline:
    """Costs and schedule of a pipeline, from which step time and memory of any placement of blocks are
    computed."""

    costs: StageCosts
    """Cost coefficients of a stage, in one row for all pipeline ranks or one row for each rank."""
    pp: int
    vpp: int
    schedule: Schedule
    microbatches: int
    any_engine: bool = False
    """Whether other engines than PyTorch's may run the schedule, as in `schedules.registry.build`."""
    scenario_axes: int = 0
    """Number of axes of length 1 to insert after the rows of `costs`, if these are scenarios of hardware
    constants instead of ranks. With them scenarios broadcast against batches of placements; 0: rows are
    ranks."""

    @property
    def num_stages(self) -> int:
        """Number of virtual stages, pp × vpp."""
        return self.pp * self.vpp

    @property
    def splits_backward(self) -> bool:
        """Whether the schedule runs the two halves of a backward pass, for input and for weight gradients, at
        different times."""
        return self.schedule in SPLIT_BACKWARD

    @cached_property
    def table(self) -> ActionTable:
        """Action table of the schedule, which lists every rank's passes in execution order; with many
        microbatches, steady rounds are left out."""
        shape = (self.schedule, self.pp, self.vpp, self.microbatches)
        return shortened_table(*shape, any_engine=self.any_engine)

    @cached_property
    def timeline(self) -> Timeline:
        """Action table prepared for computing start and end times of its actions."""
        return compile_timeline(self.table)

    @cached_property
    def rank_of_stage(self) -> Ints:
        """Pipeline rank that holds each virtual stage, (S,)."""
        return schedule_named(self.schedule).rank_of_stage(self.pp, self.vpp)

    @cached_property
    def stage_of(self) -> Ints:
        """Virtual stage of each chunk of each rank, (C, R)."""
        return schedule_named(self.schedule).stages_of_rank(self.pp, self.vpp).T

    def cost(self, name: str) -> float:
        """Value of the cost column `name`, which must be equal on all ranks of the pipeline."""
        return float(getattr(self.costs, name)[0])

    @cached_property
    def by_rank(self) -> Column:
        """Cached function from the name of a cost column to its values on each rank, (R,) or, with recompute
        policies, (R, P). In K scenarios the values are (K, ..., 1) or (K, ..., 1, P), to broadcast with
        stages or ranks."""

        def values(name: str) -> Array:
            """Values of one coefficient on every pipeline rank, (R, ...)."""
            column: Array = getattr(self.costs, name)
            if self.scenario_axes:
                return column.reshape(-1, *[1] * self.scenario_axes, *column.shape[1:])
            return np.broadcast_to(column, (self.pp, *column.shape[1:]))

        return cache(values)

    @cached_property
    def by_stage(self) -> Column:
        """Cached function from the name of a cost column to its values on each virtual stage, (S,) or, with
        recompute policies, (S, P). In scenarios it is `by_rank`."""
        if self.scenario_axes:
            return self.by_rank
        return cache(lambda name: self.by_rank(name)[self.rank_of_stage])

    def sum_by_rank(self, value_S: Array) -> Array:
        """Sum the values (..., S) of virtual stages over the stages of each rank, (..., R)."""
        if value_S.ndim == 1:
            return np.bincount(self.rank_of_stage, weights=value_S, minlength=self.pp).astype(np.float64)
        return sum((value_S[..., chunk_R] for chunk_R in self.stage_of), start=np.zeros(self.pp))

    def forward(self, blocks_SP: Ints) -> Array:
        """Seconds of one forward pass of one microbatch on each virtual stage, (..., S)."""
        return on_stages(self.by_stage, "forward", blocks_SP)

    def backward(self, blocks_SP: Ints) -> Array:
        """Seconds of one complete backward pass with recomputation on each virtual stage, (..., S)."""
        return on_stages(self.by_stage, "backward", blocks_SP)

    def halves(self, blocks_SP: Ints) -> tuple[Array, Array]:
        """Seconds of the two halves of a backward pass, for input and for weight gradients, (..., S) each. If
        the schedule does not split backward passes, they are the complete pass and zero. The first stage's
        input, token numbers, needs no gradient: its weight half contains the complete pass of the blocks."""
        backward_S = self.backward(blocks_SP)
        if not self.splits_backward:
            return backward_S, np.zeros(self.num_stages)
        weight_S = on_stages(self.by_stage, "weight", blocks_SP)
        whole_S, later_S = self.by_stage("stage_backward"), self.by_stage("stage_weight")
        input_S, second_S = backward_S - weight_S, later_S + weight_S
        input_S[..., 0] = whole_S[..., 0]
        second_S[..., 0] = later_S[..., 0] + backward_S[..., 0] - whole_S[..., 0]
        return input_S, second_S

    def once_a_step(self, kind: Literal["sync", "optimizer"], blocks_SP: Ints) -> Array:
        """Seconds per step and rank of gradient synchronisation (`kind` "sync") or of the optimizer update
        ("optimizer"), (..., R)."""
        return self.sum_by_rank(on_stages(self.by_stage, kind, blocks_SP)) + self.by_rank(f"rank_{kind}")

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Seconds of a step for each placement, (...,)."""
        return self._step_seconds(self._durations(blocks_SP), self.by_rank("p2p")[..., 0])

    def step_of(self, blocks_SP: Ints) -> tuple[float, float, Array]:
        """Step seconds of one placement, step seconds without transfers between ranks, and busy seconds of
        each rank, (R,)."""
        delays, durations = np.array([self.cost("p2p"), 0.0]), self._durations(blocks_SP)
        step_seconds = np.broadcast_to(self._step_seconds(durations, delays), delays.shape)
        forward_S, first_S, second_S, sync_R, optimizer_R = durations
        busy_R: Array = self.microbatches * self.sum_by_rank(forward_S + first_S + second_S)
        return float(step_seconds[0]), float(step_seconds[1]), busy_R + sync_R + optimizer_R

    def _durations(self, blocks_SP: Ints) -> tuple[Array, ...]:
        """Seconds of each stage's forward pass and two backward halves, (..., S) each, and of each rank's
        gradient synchronisation and optimizer update, (..., R) each."""
        once_R = (self.once_a_step("sync", blocks_SP), self.once_a_step("optimizer", blocks_SP))
        return (self.forward(blocks_SP), *self.halves(blocks_SP), *once_R)

    def _step_seconds(self, durations: Sequence[Array], delay: Array) -> Array:
        """Seconds of a step for each placement, (...,), from the five arrays of `_durations` and the transfer
        `delay` between ranks in seconds."""
        forward_S, first_S, second_S, sync_R, optimizer_R = durations
        overhead = self.by_rank("step_overhead").max(axis=-1)
        if self.pp == 1:  # no rank to wait for
            ends_R = self.microbatches * (forward_S + first_S + second_S).sum(axis=-1, keepdims=True)
        else:
            ends_R = self.timeline.rank_ends(forward_S, first_S, delay, second_S)
        step: Array = (ends_R + sync_R).max(axis=-1) + optimizer_R.max(axis=-1) + overhead
        return step

    def step_seconds_by_scenario(self, costs: StageCosts, blocks_SP: Ints) -> Array:
        """Seconds of a step in each of K scenarios of hardware constants, (K, ...); row k of `costs` has the
        stage costs in scenario k. A scenario is a row of `costs`, which all ranks share."""
        scenarios = replace(self, costs=costs, scenario_axes=blocks_SP.ndim - 1)
        return Pipeline.step_seconds(scenarios, blocks_SP)

    @cached_property
    def overhead(self) -> float:
        """Fixed seconds of a step, the maximum over the ranks."""
        return float(self.costs.step_overhead.max())

    @cached_property
    def memory(self) -> RankMemory:
        """Memory model of the pipeline's ranks: peak bytes for any placement of blocks."""
        columns = {name: getattr(self.costs, name)[..., None] for name in BYTES}
        return RankMemory(columns, self.table)

    def rank_bytes(self, blocks_SP: Ints) -> Array:
        """Peak bytes of each rank over the passes and the optimizer step, (..., R)."""
        return self.memory.peaks(blocks_SP)


def on_stages(column: Column, kind: str, blocks_SP: Ints) -> Array:
    """Cost of the given `kind`, in seconds or bytes, on every virtual stage, (..., S). It adds the costs of
    the blocks `blocks_SP`, of embedding and head and, for a pass, of the stage itself."""
    layer, last = column(f"layer_{kind}"), column(f"head_{kind}")
    each_SP = layer if layer.ndim > last.ndim else layer[..., None]
    stage = column(f"stage_{kind}") if kind in ("forward", "backward") else 0.0
    values: Array = stage + (blocks_SP * each_SP).sum(axis=-1)
    if kind != "weight":  # embeddings have no weight half
        values[..., 0] += column(f"embedding_{kind}")[..., 0]
    values[..., -1] += last[..., -1]
    return values
