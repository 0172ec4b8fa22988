"""Low-rank adapters beside frozen weights, and which parameters a job trains.

**Adapters** of low rank are beside the matrices of dense blocks (Hu et al. 2021, arXiv 2106.09685).

    y = x·W + s · x·A·B    A (in, r) and B (r, out); s = alpha / r; B begins at zero

An adapter is a module beside its matrix, called where the matrix is, and split over tensor ranks as that is.

**Frozen parameters** are all but adapters, or the parts that a job freezes. Autograd does the rest: without a gradient
there is no state and no update, and no backward pass where nothing before is trained.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from cost_models.operators.parameters import target_names
from cost_models.specs.kinds import Frozen, frozen_parts
from cost_models.specs.training import TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from executor.models.transformer import Block, Transformer

ENDING = "_adapter"
"""Suffix of an adapter's module name, after its matrix's name."""
MATRICES = {
    "attention.query": "q",
    "attention.key": "k",
    "attention.value": "v",
    "attention.out": "o",
    "cross.query": "q",
    "cross.key": "k",
    "cross.value": "v",
    "cross.out": "o",
    "mlp.gate": "gate",
    "mlp.up": "up",
    "mlp.down": "down",
}
"""Path of a matrix in a block → its usual name in tuning jobs."""
SPLIT_BY_ROWS = ("attention.out", "cross.out", "mlp.down")


class Adapter(nn.Module):
    """Low-rank adapter of one matrix: its factors A and B, and the scale of their product."""

    def __init__(self, tuning: TuningSpec, matrix: nn.Linear) -> None:
        super().__init__()
        self.down = nn.Linear(matrix.in_features, tuning.rank, bias=False)
        self.up = nn.Linear(tuning.rank, matrix.out_features, bias=False)
        self.scale, self.dropout = tuning.scale, tuning.dropout

    def forward(self, x_BSI: Tensor) -> Tensor:
        """Output of the adapter, to be added to the output of its matrix: (B, S, in) → (B, S, out)."""
        narrow = self.down(F.dropout(x_BSI, self.dropout, self.training))
        if isinstance(narrow, DTensor) and any(one.is_partial() for one in narrow.placements):
            narrow = narrow.redistribute(placements=[Replicate()])
        output: Tensor = self.up(narrow)
        return output * self.scale


def add_adapters(part: Transformer, tuning: TuningSpec) -> None:
    """Add adapters beside the matrices of a model slice that the tuning job names, in place."""
    targets = target_names(tuning)
    for block in part.blocks.values():
        modules = dict(block.named_modules())
        for path, name in MATRICES.items():
            parent, _, child = path.rpartition(".")
            module = modules.get(parent, block)
            matrix = getattr(module, child, None)
            if name in targets and isinstance(matrix, nn.Linear):
                adapter = Adapter(tuning, matrix)
                module.add_module(f"{child}{ENDING}", adapter)
                matrix.register_forward_hook(partial(_add_adapter, adapter))


def _add_adapter(adapter: Adapter, _matrix: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook of a matrix: the matrix's output plus the adapter's."""
    wider: Tensor = output + adapter(inputs[0])
    return wider


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return f"{ENDING}." in name


def adapter_plan(block: Block) -> dict[str, ParallelStyle]:
    """Parallel styles by which the adapters of a block are split over tensor ranks."""
    names = {f"{path}{ENDING}": path in SPLIT_BY_ROWS for path in MATRICES}
    modules = dict(block.named_modules())
    return {name: _BesideSplit(by_rows=by_rows) for name, by_rows in names.items() if name in modules}


class _BesideSplit(ParallelStyle):
    """Parallel style of an adapter whose matrix is split: B is split like the matrix's outputs, or A like its
    inputs.
    """

    def __init__(self, *, by_rows: bool) -> None:
        """`by_rows`: whether the matrix beside the adapter is split by its inputs."""
        self.by_rows = by_rows

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Split A and B of an adapter over the tensor ranks."""
        assert isinstance(module, Adapter)
        down, up = (Shard(1), Replicate()) if self.by_rows else (Replicate(), Shard(0))
        for matrix, placement in ((module.down, down), (module.up, up)):
            split = distribute_tensor(matrix.weight.detach(), device_mesh, [placement], src_data_rank=None)
            matrix.weight = nn.Parameter(split)
        return module


def freeze(part: nn.Module, model: TransformerSpec, training: TrainingSpec, dtype: torch.dtype) -> None:
    """Freeze the parameters in a model slice that the job does not train, and cast them to `dtype`, used in
    products.
    """
    frozen, still = frozen_parts(model, training), set()
    for name, parameter in part.named_parameters():
        if _is_frozen(name, frozen) if training.tuning is None else not is_adapter(name):
            parameter.requires_grad_(False)
            still.add(id(parameter))
    part._apply(lambda tensor: tensor.to(dtype) if id(tensor) in still else tensor)  # type: ignore[no-untyped-call]


def _is_frozen(name: str, frozen: Frozen) -> bool:
    """Whether the job freezes a parameter of this name."""
    module, _, place = name.partition(".")
    if module == "blocks":
        return frozen.blocks[int(place.partition(".")[0])]
    return bool(getattr(frozen, _FROZEN_PART.get(module, "head")))


_FROZEN_PART = {
    "patches": "patches",
    "tower_norm": "patches",
    "projector": "projector",
    "embedding": "embedding",
    "head": "head_matrix",
}
"""Module outside of blocks → its field of `Frozen`; all other modules have the field `head`."""
