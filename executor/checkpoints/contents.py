"""What this rank holds of a training state, by names that no layout changes.

    weights.NAME       fp32: the master copy where weights are 16 bits wide
    exp_avg.NAME       AdamW's first moment      exp_avg_sq.NAME  its second
    step.NAME          how often the optimizer updated the parameter
    random.PLACE.RANK  a generator's state; of use to the same layout only

NAME is the parameter's place in the whole model, as `executor.models` names it. A `DTensor` says itself which part of
the whole it is; any other parameter is taken to be whole on every rank that has it. Whatever keeps to that reshards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from executor.apply.local import local
from executor.checkpoints.boxes import Box, boxes_of_range

if TYPE_CHECKING:
    from executor.engine import Engine

_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a tensor and its values here: `tensor` has the box's sizes."""

    box: Box
    tensor: Tensor


@dataclass(slots=True)
class Held:
    """This rank's pieces of one named tensor of `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece] = field(default_factory=list)

    def staged(self) -> Held:
        """A copy in host memory, which training does not change."""
        pieces = [Piece(piece.box, piece.tensor.detach().to("cpu", copy=True)) for piece in self.pieces]
        return Held(self.shape, self.dtype, pieces)


Contents = dict[str, Held]


def parameter_names(parts: Sequence[nn.Module]) -> dict[int, str]:
    """id of each parameter → its name; take them before anything gathers or swaps parameters."""
    return {id(parameter): _plain(name) for part in parts for name, parameter in part.named_parameters()}


def training_state(engine: Engine, names: dict[int, str]) -> Contents:
    """Views of the weights and of the optimizer's states, which are made where no step has made them yet."""
    contents: Contents = {}
    flat = engine.optimizer.flat
    if flat is not None:
        states = {"weights": flat.shard.detach()} | _states(flat.optimizer, flat.shard)
        for parameter, begin, end, start in flat.owned():
            boxes = _boxes(parameter, begin, end)
            _add(contents, names[id(parameter)], _whole_shape(parameter), boxes, states, start)
        return contents
    for optimizer in engine.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                mine = local(parameter.detach())
                boxes = _boxes(parameter, 0, mine.numel())
                states = {"weights": mine} | _states(optimizer, parameter)
                _add(contents, names[id(parameter)], _whole_shape(parameter), boxes, states, 0)
    return contents


def whole(tensor: Tensor) -> Held:
    """A tensor that is here from end to end."""
    box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    return Held(tuple(tensor.shape), tensor.dtype, [Piece(box, tensor.detach())])


def _add(
    contents: Contents,
    name: str,
    shape: tuple[int, ...],
    boxes: list[Box],
    states: dict[str, Tensor],
    start: int,
) -> None:
    """The parameter's weights and states, whose elements begin at `start` in tensors that are read flat."""
    for kind, tensor in states.items():
        if tensor.dim() == 0:
            contents[f"{kind}.{name}"] = whole(tensor)
            continue
        held = contents[f"{kind}.{name}"] = Held(shape, tensor.dtype)
        flat, first = tensor.view(-1), start
        for box in boxes:
            held.pieces.append(Piece(box, flat[first : first + box.elements].view(box.sizes)))
            first += box.elements


def _boxes(parameter: nn.Parameter, begin: int, end: int) -> list[Box]:
    """Elements `begin` to `end` − 1 of the local tensor, as boxes of the whole."""
    if not isinstance(parameter, DTensor):
        return boxes_of_range(tuple(parameter.shape), begin, end)
    shape, offsets = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return [box.moved(tuple(offsets)) for box in boxes_of_range(tuple(shape), begin, end)]


def _whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(parameter.shape)  # a `DTensor` answers with the shape of the whole


def _states(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The optimizer's states of one parameter as plain tensors, as its first step would make them where it has none."""
    moments = _MOMENTS[type(optimizer)]
    state = optimizer.state[parameter]
    if moments and not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for moment in moments:
            state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {kind: local(state[kind].detach()) for kind in ("step", *moments) if kind in state}


def _plain(name: str) -> str:
    """Without what wrappers for recompute and compilation add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
