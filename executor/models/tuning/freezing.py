"""What of a model is not trained: all but adapters beside these, or the parts that a job freezes.

Autograd does the rest: without a gradient there is no state and no update, and no backward pass where nothing before is
trained.
"""

from __future__ import annotations

import torch
from torch import nn

from cost_models.specs.kinds import Frozen, frozen_parts
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.models.tuning.adapters import is_adapter


def freeze(part: nn.Module, model: TransformerSpec, training: TrainingSpec, dtype: torch.dtype) -> None:
    """Leave what is trained of a slice of the model; all else gets the type of products, as it has no other."""
    frozen, still = frozen_parts(model, training), set()
    for name, parameter in part.named_parameters():
        if _is_frozen(name, frozen) if training.tuning is None else not is_adapter(name):
            parameter.requires_grad_(False)
            still.add(id(parameter))
    part._apply(lambda one: one.to(dtype) if id(one) in still else one)  # type: ignore[no-untyped-call]


def _is_frozen(name: str, frozen: Frozen) -> bool:
    module, _, rest = name.partition(".")
    match module:
        case "blocks":
            return frozen.blocks[int(rest.partition(".")[0])]
        case "patches" | "tower_norm":
            return frozen.patches
        case "projector":
            return frozen.projector
        case "embedding":
            return frozen.embedding
        case "head":
            return frozen.head_matrix
    return frozen.head
