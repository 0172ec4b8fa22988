"""A transformer's training state in checkpoints, under names that no layout changes.

    weights.NAME       fp32: the master copy where weights are 16 bits wide
    exp_avg.NAME       first moment of AdamW and LAMB      exp_avg_sq.NAME  its second
    step.NAME          number of updates of the parameter
    random.PLACE.RANK  a generator's state; of use to the same layout only

NAME is the parameter's place in the whole model, as `executor.models` names it; `executor.engine.weights` says which
boxes of the whole a rank holds. Tensors that follow these rules can be resharded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cost_models.reliability.job import checkpoint_bytes, resume_of
from executor.checkpoints.contents import Contents, Held, Piece, whole
from executor.checkpoints.manifest import Progress, descent_of
from executor.engine.engine import Engine
from executor.engine.lamb import Lamb
from executor.engine.weights import frozen, owned
from executor.mesh import as_part, held, local
from executor.models.copies import original
from executor.models.initial import InitialValues

_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    Lamb: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}


class TransformerState:
    """The weights and optimizer states of an engine; no step need have been made."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of what this rank holds; states that no step has made yet are made here."""
        contents: Contents = {}
        for one in owned(self.engine.optimizer, self.engine.names):
            states = {"weights": local(one.tensor.detach())} | _states(one.optimizer, one.tensor)
            for kind, tensor in states.items():
                key = f"{kind}.{one.named.name}"
                if tensor.dim() == 0:
                    contents[key] = whole(tensor, one.same)
                    continue
                contents.setdefault(key, Held(one.named.shape, tensor.dtype, same=one.same))
                contents[key].pieces += [Piece(box, values) for box, values in one.pieces(tensor)]
        if self.engine.plan.training.tuning is None:  # beside adapters they come from where they came from
            for named, box, values in frozen(self.engine.parts, self.engine.names):
                contents[f"weights.{named.name}"] = Held(named.shape, values.dtype, [Piece(box, values)])
        return contents

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """Copies that were not saved are loaded from what they are copies of, as a tied head from the embedding."""
        split = [name.partition(".") for name in contents]
        tied = self.engine.plan.model.tied_embeddings
        return {f"{kind}.{name}": f"{kind}.{original(name, tied=tied)}" for kind, _, name in split}

    def make_anew(self, contents: Contents) -> None:
        """Initial values for rows that only pad the vocabulary for this layout; their optimizer states are zero."""
        values = InitialValues.of(self.engine.plan, self.engine.options, self.engine.device)
        for name, rows in contents.items():
            kind, _, named = name.partition(".")
            for piece in rows.pieces if kind == "weights" else ():
                values.fill(named, rows.shape, piece.box, piece.tensor)

    def spread(self) -> None:
        """Copy loaded weights to all places where they are used."""
        self.engine.spread()

    def reads_once(self, rate: float) -> bool:
        """Whether the plan's links are faster than the storage, of which each rank reads `rate` bytes/s."""
        plan = self.engine.plan
        resume = resume_of(plan.question, plan.layout, checkpoint_bytes(plan.question))
        return resume.reads_once(rate * plan.layout.num_gpus)

    def progress(self, step: int, data: str) -> Progress:
        """The progress of the run after `step` steps on this data."""
        plan, options = self.engine.plan, self.engine.options
        return Progress(
            step=step,
            seed=options.seed,
            learning_rate=options.rate.at(step),
            descent=descent_of(options),
            data=data,
            layout=plan.layout,
            model=plan.model,
            training=plan.training,
        )


def _states(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The optimizer's states of one parameter as plain tensors, as its first step would make them where it has none."""
    moments = _MOMENTS[type(optimizer)]
    state = optimizer.state[parameter]
    if moments and not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for moment in moments:
            state[moment] = as_part(torch.zeros_like(held(parameter)), parameter)
    return {kind: local(state[kind].detach()) for kind in ("step", *moments) if kind in state}
