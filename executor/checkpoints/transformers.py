"""A transformer's training state, as checkpoints hold it."""

from __future__ import annotations

import torch

from executor.checkpoints.contents import Contents, parameter_names, training_state
from executor.checkpoints.manifest import Progress, descent_of
from executor.engine.engine import Engine
from executor.models.transformer import TIED


class TransformerState:
    """The weights and optimizer states of an engine; make it right after the engine, before the first step."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._names = engine, parameter_names(engine.parts)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of what this rank holds."""
        return training_state(self.engine, self._names)

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """A tied head that was not saved is loaded from the embedding."""
        tied = TIED if self.engine.plan.model.tied_embeddings else {}
        kinds = {name.partition(".")[0] for name in contents}
        return {f"{kind}.{copy}": f"{kind}.{of}" for kind in kinds for copy, of in tied.items()}

    def spread(self) -> None:
        """Bring what was loaded where optimizers update it to wherever else it is."""
        self.engine.optimizer.spread()

    def progress(self, step: int, data: str) -> Progress:
        """What is told of the run after so many steps on this data."""
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
