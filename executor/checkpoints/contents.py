"""The part of the training state that this rank holds, under names that no layout changes.

    weights.NAME       fp32: the master copy where weights are 16 bits wide
    exp_avg.NAME       first moment of AdamW and LAMB      exp_avg_sq.NAME  its second
    step.NAME          how often the optimizer updated the parameter
    random.PLACE.RANK  a generator's state; of use to the same layout only

NAME is the parameter's place in the whole model, as `executor.models` names it. A `DTensor` says itself which part of
the whole it is; for parameters that are parts without being a `DTensor` their module answers `parts_of_wholes()`; any
other is taken to be whole on every rank that has it. Whatever keeps to that reshards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from executor.checkpoints.boxes import Box, boxes_of_range
from executor.engine.engine import Engine
from executor.engine.lamb import Lamb
from executor.mesh import local

_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    Lamb: ("exp_avg", "exp_avg_sq"),
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


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter's name, the shape of the whole of which it is a part, and where in that it begins."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


@runtime_checkable
class Parted(Protocol):
    """A module some of whose own parameters are parts of larger ones, as those of the experts on one rank are."""

    def parts_of_wholes(self) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Name of the parameter in this module → (shape of the whole, where the part begins)."""


def parameter_names(parts: Sequence[nn.Module]) -> dict[int, Named]:
    """id of each parameter → its name and place; take them before anything gathers or swaps parameters."""
    names: dict[int, Named] = {}
    for part in parts:
        for prefix, module in part.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), _named(prefix, name, parameter, module))
    return names


def training_state(engine: Engine, names: dict[int, Named]) -> Contents:
    """Views of this rank's weights and optimizer states; states that no step has made yet are made here."""
    contents: Contents = {}
    for flat in engine.optimizer.flats:
        states = {"weights": flat.shard.detach()} | _states(flat.optimizer, flat.shard)
        for parameter, begin, end, start in flat.owned():
            named = names[id(parameter)]
            _add(contents, named, _boxes(parameter, named, begin, end), states, start)
    if engine.optimizer.flats:
        return contents
    for parameter, updated, optimizer in engine.optimizer.updated():
        mine = local(updated.detach())
        named = names[id(parameter)]
        states = {"weights": mine} | _states(optimizer, updated)
        _add(contents, named, _boxes(parameter, named, 0, mine.numel()), states, 0)
    return contents


def whole(tensor: Tensor) -> Held:
    """The entry of a tensor that is whole on this rank."""
    box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    return Held(tuple(tensor.shape), tensor.dtype, [Piece(box, tensor.detach())])


def _add(contents: Contents, named: Named, boxes: list[Box], states: dict[str, Tensor], start: int) -> None:
    """Add a parameter's weights and states, whose elements begin at `start` in flat tensors."""
    for kind, tensor in states.items():
        key = f"{kind}.{named.name}"
        if tensor.dim() == 0:
            contents[key] = whole(tensor)
            continue
        held = contents[key] = Held(named.shape, tensor.dtype)
        flat, first = tensor.view(-1), start
        for box in boxes:
            held.pieces.append(Piece(box, flat[first : first + box.elements].view(box.sizes)))
            first += box.elements


def _boxes(parameter: nn.Parameter, named: Named, begin: int, end: int) -> list[Box]:
    """Elements `begin` to `end` − 1 of the local tensor, as boxes of the whole."""
    shape, offsets = tuple(parameter.shape), named.offsets
    if isinstance(parameter, DTensor):
        shape, inside = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        offsets = tuple(outer + inner for outer, inner in zip(offsets, inside, strict=True))
    return [box.moved(offsets) for box in boxes_of_range(tuple(shape), begin, end)]


def _named(prefix: str, name: str, parameter: nn.Parameter, module: nn.Module) -> Named:
    shape = tuple(parameter.shape)  # a `DTensor` answers with the shape of the whole
    parts = module.parts_of_wholes() if isinstance(module, Parted) else {}
    whole_shape, offsets = parts.get(name, (shape, (0,) * len(shape)))
    return Named(_plain(f"{prefix}.{name}" if prefix else name), whole_shape, offsets)


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
    """A parameter's name without what wrappers for recompute and compilation add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
