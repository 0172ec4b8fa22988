"""The weights of a rank: memory for the parts that it keeps, and which boxes of the full model these are.

Slices of the model are made without memory, then changed as the axes say; only what is left of each parameter gets
memory. A `DTensor` knows which part of the whole it is; parameters of routed experts are parts without being one; any
other is taken to be whole on every rank that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from executor.axes.axis import Slice
from executor.boxes import Box, boxes_of_range
from executor.engine.optimizer import Optimizer
from executor.mesh import as_part, held, local
from executor.models.experts import RoutedExperts
from executor.models.initial import Values, has_values
from executor.models.quantised import QuantisedLinear
from executor.models.transformer import Transformer
from executor.pinned import pinned_zeros

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


@contextmanager
def made_of(dtype: torch.dtype) -> Iterator[None]:
    """Context manager in which parameters are made with this type."""
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(default_dtype)


def make_room(part: Transformer, device: torch.device, on_host: Collection[str], *, flat: bool) -> None:
    """Move a model slice from the meta device, in place, to a device with memory; values are set later.

    Where parameters move into `flat` buffers, each has a single element of memory until then. Else their shards have
    theirs, those of blocks `on_host` in host memory.
    """
    assert not [*part.buffers()], "values of buffers are set where a module is made"
    if flat:
        _await_buffers(part, device)
        return
    away = {id(one) for name in on_host for one in part.blocks[name].parameters()}

    def with_memory(tensor: Tensor) -> Tensor:
        """The tensor with memory, in pinned host memory if its block is on the host of a GPU."""
        if not tensor.is_meta:  # tied to one that was brought before
            return tensor
        shard = held(tensor)
        if id(tensor) in away and device.type == "cuda":
            return as_part(pinned_zeros(shard.numel(), shard.dtype).view(shard.shape), tensor)
        memory = torch.device("cpu") if id(tensor) in away else device
        return as_part(torch.empty(shard.shape, dtype=shard.dtype, device=memory), tensor)

    # as `to_empty` does, of which `fully_shard` knows: what is pinned it leaves as it is
    part._apply(with_memory)  # type: ignore[no-untyped-call]


def _await_buffers(part: nn.Module, device: torch.device) -> None:
    """Give each frozen parameter its memory. Trained ones get one element, as a flat buffer will hold their values."""
    parameters: dict[int, nn.Parameter] = {}
    for module in part.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in parameters:
                shape = held(parameter).shape
                single = () if parameter.requires_grad else shape
                shard = torch.empty(single, dtype=parameter.dtype, device=device).expand(shape)
                parameters[id(parameter)] = nn.Parameter(as_part(shard, parameter), parameter.requires_grad)
            module.register_parameter(name, parameters[id(parameter)])


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """Name of a parameter, shape of the full parameter, and offsets of this rank's part in it."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def parameter_names(parts: Sequence[nn.Module]) -> dict[int, ParameterPlace]:
    """`id()` of each parameter → its `ParameterPlace`. Call it before modules get other parameter objects."""
    names: dict[int, ParameterPlace] = {}
    for part in parts:
        for prefix, module in part.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), _place_of(prefix, name, parameter, module))
    return names


@dataclass(frozen=True, slots=True)
class Owned:
    """Elements of one parameter that this rank updates, and where they are in the full model."""

    place: ParameterPlace
    boxes: list[Box]
    """Boxes of the full parameter that these elements make up, in their order in the updated tensor."""
    slice: Slice

    def pieces(self, like_it: Tensor) -> Iterator[tuple[Box, Tensor]]:
        """Yield each box with its elements of `like_it`, the updated tensor or one of its states."""
        values = torch.split(self.slice.of(like_it), [box.elements for box in self.boxes])
        yield from ((box, piece.view(box.sizes)) for box, piece in zip(self.boxes, values, strict=True))


def owned(optimizer: Optimizer, names: dict[int, ParameterPlace]) -> Iterator[Owned]:
    """Yield the elements of each parameter that this rank updates."""
    for piece in optimizer.slices():
        place, last = names[id(piece.parameter)], piece.first + piece.end - piece.begin
        yield Owned(place, _boxes(piece.parameter, place, piece.first, last), piece)


def frozen(
    parts: Sequence[nn.Module], names: dict[int, ParameterPlace]
) -> Iterator[tuple[ParameterPlace, Box, Tensor]]:
    """Yield the place, box and values of each piece of the frozen parameters on this rank, quantised ones left out."""
    for parameter in {id(one): one for part in parts for one in part.parameters()}.values():
        place = names[id(parameter)]
        values = local(parameter.detach())
        if not parameter.requires_grad and parameter.is_floating_point():  # not bytes of what is quantised
            for box in _boxes(parameter, place, 0, values.numel()):
                yield place, box, values.view(box.sizes)


def fill_quantised(parts: Sequence[nn.Module], values: Values, group: dist.ProcessGroup | None) -> None:
    """Set frozen quantised matrices to these values, one matrix at a time; ranks of `group` share them."""
    for part in parts:
        for name, module in part.named_modules():
            if not isinstance(module, QuantisedLinear) or not has_values(module.weight):
                continue
            codes, *scales = (local(one.detach()) for one in module.stored)
            part_of, first = module.part, box_here(module.weight).offsets[0]
            sizes = (len(codes), part_of.columns)
            weights = torch.empty(sizes, device=codes.device)
            box = Box((part_of.row + first, part_of.column), sizes)
            values.fill(f"{_plain(name)}.weight", part_of.full_shape, box, weights)
            quantised_codes, block_scales, second_scales = part_of.quantised(weights, first, group)
            codes.copy_(quantised_codes)
            scales[0].copy_(block_scales)
            if second_scales is not None:
                first_group = box_here(module.stored[2]).offsets[0]
                scales[1].copy_(second_scales[first_group:][: len(scales[1])])


def _boxes(parameter: nn.Parameter, place: ParameterPlace, begin: int, end: int) -> list[Box]:
    """Boxes of the full parameter that hold elements `begin` to `end` − 1 of this rank's part."""
    shard = box_here(parameter)
    boxes = boxes_of_range(shard.sizes, begin, end)
    return [box.shifted(shard.offsets).shifted(place.offsets) for box in boxes]


def box_here(tensor: Tensor) -> Box:
    """Box of this rank's shard in the full tensor, if that is a `DTensor`; else the box of the whole tensor.

    Tensor ranks split before the ranks of `fully_shard` do, though these come first in the mesh (`_StridedShard`).
    `torch.distributed.tensor` answers by cutting up a tensor of all indices, which takes half a second for each of
    a thousand parameters over 512 ranks.
    """
    offsets, sizes = [0] * tensor.dim(), list(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Box(tuple(offsets), tuple(sizes))
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    split = zip(tensor.placements, place, tensor.device_mesh.shape, strict=True)
    for placement, rank_place, ranks in sorted(split, key=lambda entry: isinstance(entry[0], _StridedShard)):
        if isinstance(placement, (Shard, _StridedShard)):
            dim = placement.dim
            share = -(-sizes[dim] // ranks)
            begin, end = (min(at * share, sizes[dim]) for at in (rank_place, rank_place + 1))
            offsets[dim], sizes[dim] = offsets[dim] + begin, end - begin
    return Box(tuple(offsets), tuple(sizes))


def _place_of(prefix: str, name: str, parameter: nn.Parameter, module: nn.Module) -> ParameterPlace:
    """Name and place of a parameter in the full model, given the module that it belongs to."""
    shape = tuple(parameter.shape)  # a `DTensor` answers with the shape of the whole
    full_shape, offsets = shape, (0,) * len(shape)
    if isinstance(module, RoutedExperts):
        full_shape, offsets = module.full_shape(name, shape)
    return ParameterPlace(_plain(f"{prefix}.{name}" if prefix else name), full_shape, offsets)


def _plain(name: str) -> str:
    """Name of a parameter without the prefixes that wrappers for recomputation and compilation add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
