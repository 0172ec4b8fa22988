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
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """The columns; each has shape (N,) unless it says (N, P). Seconds and bytes."""

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
    """What a pass takes longer in two actions than in one."""
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

    static: Array
    layer_static: Array
    layer_activation: Array
    """(N, P): kept for the backward pass, per block and live microbatch."""
    layer_pending: Array
    """Gradients kept for the products towards the weights, per block and microbatch between the halves of backward."""
    layer_update: Array
    rank_update: Array
    """What the optimizer step of a rank holds besides, whatever its blocks."""
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

    def __len__(self) -> int:
        return len(self.layer_forward)

    def rows(self, index: npt.NDArray[np.int64] | slice) -> StageCosts:
        """The same columns for some of the layouts."""
        return StageCosts(**{field.name: getattr(self, field.name)[index] for field in fields(self)})
